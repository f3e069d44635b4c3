"""The tables behind ``tiny_models``: one file a family, one entry a type."""
