"""What normprobe sees of a model, from its config and the headers of its weight files.

It loads no weights and makes no run, so it is no ``Measurement``.
"""
