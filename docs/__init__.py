"""The project's pages; in site/ what makes a site of them."""
