"""Arithmetic of tokens and rows: pure functions, no model, no file."""
