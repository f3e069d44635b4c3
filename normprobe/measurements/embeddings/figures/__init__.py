"""Figures of a run of embeddings, drawn from its tables alone."""
