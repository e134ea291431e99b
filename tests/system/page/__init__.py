"""A report's pages and the site in a real browser, with no network."""
