"""Where a model keeps its parts, told by its interfaces and its module tree."""
