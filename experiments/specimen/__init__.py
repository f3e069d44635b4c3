"""Training of the bundled specimen, from drawn scenes to a checkpoint."""
