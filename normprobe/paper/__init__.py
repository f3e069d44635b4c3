"""The numbers of the paper, the commands that measure them, and what its tables call them."""

ENCODER = "vision encoder output"
BEFORE = "before the projector"
MERGED = "before it, patches merged"
AFTER = "after the projector"
TEXT_TABLE = "text embedding"
VISUAL_TABLE = "visual embedding"

#: Where the paper leaves open which of two a number is: both stand beside it.
ALSO = {BEFORE: (MERGED,)}
