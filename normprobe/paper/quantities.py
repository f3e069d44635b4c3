"""What the paper's tables call the quantities that a measurement can repeat."""

ENCODER = "vision encoder output"
BEFORE = "before the projector"
AFTER = "after the projector"
TEXT_TABLE = "text embedding"
VISUAL_TABLE = "visual embedding"
