"""Which modules made the token states that the decoder reads, and how visual tokens meet text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normprobe.model.tracing.language import Language, Stack, VisualTokens, holds, states_until
from normprobe.model.tracing.observation import Observation, ObservedCall
from normprobe.model.tracing.recording import SAME_DIRECTION, misfit, same_numbers, share_among

#: A module emits visual tokens when at least this share of them is among its outputs: a model may
#: have several sources (an overview and tiles), each with a module.
_SHARE = 0.5


def find_embedding(calls: Sequence[ObservedCall], language: Language) -> str | None:
    """The innermost module that takes ids and returns the states of the text tokens.

    They are looked for in layer 1's input and in every earlier state with as many text tokens, so
    norms and position terms on the way do not hide the table.
    """
    read = language.stack.input
    lookups = [call for call in calls if call.reads_ids and call.began < language.stack.began]
    found = {
        name
        for state in states_until(calls, language.stack.began)
        if len(state.text_changes) in (len(read.text_changes), int(language.text.sum()))
        for name in emitters_of(lookups, state, lambda seen: seen.text_changes)
    }
    innermost = [n for n in found if not any(n != m and holds(n, m) for m in found)]
    return min(innermost, key=[call.name for call in calls].index, default=None)


@dataclass(frozen=True)
class Source:
    """Where the visual tokens come from."""

    name: str  # of the outermost module that emits them
    emitters: tuple[str, ...]  # all modules that emit them, in order of time


def find_projector(
    model: nn.Module,
    calls: Sequence[ObservedCall],
    visual: VisualTokens,
    apart: Sequence[str],
) -> Source | None:
    """The outermost module with a matrix that emits the visual tokens.

    Norms on the way are stepped over: they hold no matrix, so their inputs are looked for instead.
    """
    candidates = [
        call
        for call in calls
        if call.ended <= visual.read
        and not any(holds(call.name, name) or holds(name, call.name) for name in apart)
        and not any(out.has_text for out in call.outputs)
    ]
    projecting = {call.name: _has_matrix(model.get_submodule(call.name)) for call in candidates}
    for matching in (emitters_of, _regroupers):
        waiting, followed = list(visual.states), set[str]()
        for state in waiting:  # grows below
            names = matching(candidates, state)
            found = [name for name in names if projecting[name]]
            if found:
                outermost = (n for n in found if not any(n != m and holds(m, n) for m in found))
                return Source(next(outermost), tuple(found))
            for call in candidates:
                if call.name in names and call.name not in followed:
                    waiting.extend(call.inputs)
            followed.update(names)
    return None


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters())


def emitters_of(
    calls: Sequence[ObservedCall],
    state: Observation,
    changes: Callable[[Observation], Tensor] = lambda seen: seen.pixel_changes,
) -> list[str]:
    """Modules that emit the changing vectors of a state, over all their calls."""
    given: dict[str, list[Tensor]] = {}
    for call in calls:
        for out in call.outputs:
            if out.base.width == state.base.width:
                given.setdefault(call.name, []).append(changes(out))
    wanted = changes(state)
    return [n for n, own in given.items() if share_among(wanted, torch.cat(own)) >= _SHARE]


def _regroupers(calls: Sequence[ObservedCall], state: Observation) -> list[str]:
    """Modules that return the numbers of the visual tokens in vectors of another width."""
    visual = state.by_pixels.flatten()
    numbers = int(visual.sum()) * state.base.width
    return [
        call.name
        for call in calls
        for out in call.outputs
        if out.base.width != state.base.width
        and len(out.base.vectors) * out.base.width == numbers
        and same_numbers(state.base.moments[visual], out.base.moments)
        and same_numbers(state.other_pixels.moments[visual], out.other_pixels.moments)
    ]


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
    Without a list of blocks, the outermost one around the module that saw the pixels first. Where
    code calls methods of that module in place of itself, what ran last inside.
    """
    seeing = [call for call in calls if any(out.by_pixels.any() for out in call.outputs)]
    if not seeing:
        return None
    first = min(seeing, key=lambda call: call.ended).name
    path = (blocks.name if blocks else first).split(".")
    around = [".".join(path[:depth]) for depth in range(len(path))]
    around = [name for name in around if not any(holds(name, part) for part in apart)]
    ran = {call.name for call in calls}
    if around and not ran & set(around):
        inside = [call for call in seeing if holds(around[0], call.name)]
        return max(inside, key=lambda call: call.ended).name if inside else around[0]
    around = [name for name in around if name in ran]
    around = [name for name in around if holds(name, first)] or around
    without = [name for name in around if projector is None or not holds(name, projector)]
    if blocks is None:
        without = [name for name in without if projector is None or not holds(projector, name)]
        return without[0] if without else None
    return without[0] if without else around[-1] if around else None


def is_looked_up(calls: Sequence[ObservedCall], visual: VisualTokens, embedding: str) -> bool:
    """Whether visual tokens are rows of the text table: an image tokenizer chose their ids."""
    lookups = [call for call in calls if call.name == embedding]
    return any(emitters_of(lookups, state) for state in visual.states)


def fusion_of(
    calls: Sequence[ObservedCall],
    language: Language,
    visual: VisualTokens,
    replaced: Sequence[Tensor],
    projector: str | None,
    embedding: str | None,
) -> str:
    """One of the words of ``TracedParts.fusion``, discrete tokens aside."""
    if language.visual is None:
        return "cross-attention" if language.stack.output.by_pixels.any() else "none"
    if language.visual.shape not in [mask.shape for mask in replaced]:
        before = int(language.visual.int().sum(1).min())
        return "prepended" if language.visual[:, :before].all() else "in-sequence"
    if projector and embedding and _is_added(calls, visual, projector, embedding):
        return "added"
    return "in-sequence"


def _is_added(
    calls: Sequence[ObservedCall], visual: VisualTokens, projector: str, embedding: str
) -> bool:
    """Whether visual tokens are the projector's output plus the embedding of the placeholder.

    Then they resemble that output more with the embedding subtracted than without.
    """
    projected = _outputs(calls, projector)
    embedded = _outputs(calls, embedding)
    whole, without = [float("inf")], [float("inf")]
    for state in visual.states:
        changed = state.by_pixels.flatten()
        of_width = [out.base.vectors for out in projected if out.base.width == state.base.width]
        if not of_width:
            continue
        among = torch.cat(of_width)
        whole.append(misfit(state.base.vectors[changed], among))
        for out in embedded:
            if out.tensor_shape == state.tensor_shape:
                rest = state.base.vectors - out.base.vectors
                without.append(misfit(rest[changed], among))
    return min(without) < min(*whole, SAME_DIRECTION)


def _outputs(calls: Sequence[ObservedCall], name: str) -> list[Observation]:
    return [out for call in calls if call.name == name for out in call.outputs]
