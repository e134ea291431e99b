"""The site: the pages of the project, with what is made from the code, by Sphinx (docs/adr/0033)."""
