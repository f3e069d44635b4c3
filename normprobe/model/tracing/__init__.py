"""Find the parts of a model by running it: the check on what static discovery says.

    trace_parts(model, inputs)   three small forwards: where pixels and words arrive
    verify(parts, traced)        static and traced findings side by side

The given inputs run first, then other pixels, then other words. What changes tells which stack
reads text, which positions hold the image, and, row by row, which module made them. No name, no
config field and no accessor of the model is consulted.

    recording      one forward with hooks on every module
    sketches       what is kept of an activation: eleven numbers a row
    perturbation   other pixels, other words
    observation    three forwards side by side
    stacks         which list of blocks reads the text
    provenance     which module made the rows
    encoder        which module saw the pixels
"""

from normprobe.model.tracing.trace import TracedParts, trace_parts
from normprobe.model.tracing.verify import verify

__all__ = ["TracedParts", "trace_parts", "verify"]
