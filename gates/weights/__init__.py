"""The files of a model: there, whole, of the kind that the engine reads."""
