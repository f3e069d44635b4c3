"""Find the parts of a model by running it: a check on what its structure says.

The given inputs run first, then the same with other pixels, then with other words. What changes
tells which stack reads text, which positions hold the image, and which module made the visual
tokens. No name, no config field and no accessor of the model is consulted.
"""
