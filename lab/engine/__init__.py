"""The real vLLM for the lab: wheels, an image's archive, a venv's layer."""
