"""The site: the project's pages, with what is made from the code, by Sphinx (docs/adr/0033)."""
