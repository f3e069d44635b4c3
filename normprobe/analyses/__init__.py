"""One question each, read top to bottom: load, find the parts, observe, rows."""
