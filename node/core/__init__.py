"""What all rooms stand on: errors, validation, processes, commands with limits."""
