"""What the lab stands on: settings, the cache, the console, work on several hosts at once."""
