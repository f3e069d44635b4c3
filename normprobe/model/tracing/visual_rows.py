"""Where the language stack reads the visual rows, and where they are on the way there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from normprobe.model.tracing.language import Language
from normprobe.model.tracing.observation import Observation, ObservedCall
from normprobe.model.tracing.stacks import Stack, stream_in


@dataclass(frozen=True)
class VisualRows:
    """Tensors that hold the visual rows as the language stack reads them.

    Attributes:
        states: the last in time first.
        read: the time at which the stack reads them.
    """

    states: tuple[Observation, ...]
    read: int


def visual_rows(
    calls: Sequence[ObservedCall], stacks: Sequence[Stack], language: Language
) -> VisualRows:
    """Layer 1's input and earlier states with as many visual rows beside text.

    Without visual positions: what the text attends to.
    """
    if language.visual is None:
        attended = list(_attended_states(stacks))
        read = min((time for time, _ in attended), default=0)
        return VisualRows(tuple(state for time, state in attended if time == read), read)
    read = language.stack.began
    counts = (len(language.stack.entered.pixel_changes), int(language.visual.sum()))
    states = (
        state
        for state in states_until(calls, read)
        if len(state.pixel_changes) in counts and state.by_text.any()
    )
    return VisualRows(tuple(states), read)


def states_until(calls: Sequence[ObservedCall], until: int) -> list[Observation]:
    """What entered and left all modules up to a time, the last first."""
    seen = [(call.began, state) for call in calls for state in call.inputs]
    seen += [(call.ended, state) for call in calls for state in call.outputs]
    return [state for time, state in sorted(seen, key=lambda s: -s[0]) if time <= until]


def _attended_states(stacks: Iterable[Stack]) -> Iterator[tuple[int, Observation]]:
    """What blocks that read text take beside their stream, and changes with the pixels alone.

    With the time at which it enters.
    """
    for stack in stacks:
        for call in stack.calls if stack.entered.by_text.any() else ():
            stream = stream_in(call)
            for state in call.inputs:
                if state is not stream and state.by_pixels.any() and not state.by_text.any():
                    yield call.began, state
