"""Which modules made the token states that the decoder layers read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normprobe.model.tracing.language import Language
from normprobe.model.tracing.observation import Observation, ObservedCall
from normprobe.model.tracing.sketches import same_numbers, share_found
from normprobe.model.tracing.stacks import holds
from normprobe.model.tracing.visual_tokens import VisualTokens, states_until

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
    """Where the visual tokens come from.

    Attributes:
        name: of the outermost module that emits them.
        emitters: all modules that emit them, in order of time.
    """

    name: str
    emitters: tuple[str, ...]


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
    return [n for n, own in given.items() if share_found(wanted, torch.cat(own)) >= _SHARE]


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
