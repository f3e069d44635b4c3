"""Find the parts of a model by running it: a check on what its structure says.

    trace_parts(model, inputs)   three forwards: which modules do pixels and words reach?
    verify(parts, traced)        the parts by structure and by trace side by side

The given inputs run first, then the same with other pixels, then with other words. What changes
tells which stack reads text, which positions hold the image, and which module made the visual
tokens. No name, no config field and no accessor of the model is consulted.

    perturbation   other pixels, other words
    recording      one forward with hooks on every module
    sketches       what is kept of an activation: eleven numbers a vector
    observation    three forwards side by side
    stacks         lists of blocks that ran
    language       which stack reads the text, and where the image is in it
    visual_tokens  where that stack reads the visual tokens
    origins        which module made the states of visual and text tokens
    encoder        which module saw the pixels
    fusion         how visual tokens meet text
    trace          all of these together
"""

from normprobe.model.tracing.trace import TracedParts, trace_parts
from normprobe.model.tracing.verify import verify

__all__ = ["TracedParts", "trace_parts", "verify"]
