"""``--also massive``: the few dimensions and the few tokens that hold most of what is large."""
