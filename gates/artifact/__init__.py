"""Images, venvs, patches and versions: whether what is installed is what the recipe needs."""
