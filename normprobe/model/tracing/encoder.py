"""Which module is the vision encoder: it turns pixels into what the projector reads."""

from collections.abc import Sequence

from normprobe.model.tracing.observation import ObservedCall
from normprobe.model.tracing.stacks import Stack, holds

#: A list of blocks with a smaller share of the parameters of the largest is a stem: it cuts
#: patches, or is a list of convolutions.
_STEM_SHARE = 0.1


def find_blocks(stacks: Sequence[Stack], language: Stack | None, read: int) -> Stack | None:
    """The blocks of the encoder: the first stack that changes with the pixels, not the words."""
    seeing = [
        stack
        for stack in stacks
        if stack is not language
        and stack.began < read
        and stack.input.by_pixels.any()
        and not stack.input.by_text.any()
    ]
    largest = max((stack.size for stack in seeing), default=0)
    weighty = [stack for stack in seeing if stack.size >= _STEM_SHARE * largest]
    return min(weighty, key=lambda stack: stack.began, default=None)


def find_encoder(
    calls: Sequence[ObservedCall],
    blocks: Stack | None,
    projector: str | None,
    apart: Sequence[str],
) -> str | None:
    """The outermost module that holds the blocks and saw the pixels first, without the projector.

    Where the projector is inside every such module (the merger of Qwen-VL), the innermost one.
    Without a list of blocks, the outermost one around the module that saw the pixels first.
    """
    seeing = [call for call in calls if any(out.by_pixels.any() for out in call.outputs)]
    if not seeing:
        return None
    first = min(seeing, key=lambda call: call.ended).name
    path = (blocks.name if blocks else first).split(".")
    around = [".".join(path[:depth]) for depth in range(len(path))]
    around = [name for name in around if not any(holds(name, part) for part in apart)]
    ran = {call.name for call in calls}
    around = [name for name in around if name in ran] or around
    around = [name for name in around if holds(name, first)] or around
    without = [name for name in around if projector is None or not holds(name, projector)]
    if blocks is None:
        without = [name for name in without if projector is None or not holds(projector, name)]
        return without[0] if without else None
    return without[0] if without else around[-1] if around else None
