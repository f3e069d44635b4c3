"""Figures of a run of grounding, drawn from its tables alone."""
