"""Figures of a survey, drawn from its tables alone."""
