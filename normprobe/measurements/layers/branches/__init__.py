"""``--also branches``: what attention and the MLP of each layer write, each by itself."""
