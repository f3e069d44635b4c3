"""A model over samples into a run: begin, collect, resume, and the run folder on disk."""
