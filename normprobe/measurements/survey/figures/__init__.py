"""Figures of a run of layers, drawn from its tables alone."""
