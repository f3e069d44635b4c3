"""What processors raise on images and texts that they cannot take: they have no exception for it.

Not ``NormprobeError``: that already says what is wrong.
"""

REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
