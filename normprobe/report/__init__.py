"""How anything is shown: on a terminal, in figures, on a page."""
