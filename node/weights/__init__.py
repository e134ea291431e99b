"""Weights: headers, manifest, what a node gives and takes."""
