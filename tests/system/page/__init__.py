"""A report's pages in a real browser, with no network."""
