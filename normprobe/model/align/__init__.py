"""The paper's remedy: a norm behind the projector, its gain, and its files."""
