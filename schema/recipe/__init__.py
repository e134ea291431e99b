"""A recipe and what stands in it: flags, patches, placeholders, known versions."""
