"""Figures of a run of attention, drawn from its tables alone."""
