"""The numbers of arXiv 2512.08374, and the commands that measure them."""
