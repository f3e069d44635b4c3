"""Figures of a run of interface, drawn from its tables alone."""
