"""Where the decoder layers read the visual tokens, and where these are on the way there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from normprobe.model.tracing.language import Language
from normprobe.model.tracing.observation import Observation, ObservedCall
from normprobe.model.tracing.stacks import Stack, stream_in


@dataclass(frozen=True)
class VisualTokens:
    """The visual tokens as the decoder layers read them.

    Attributes:
        states: the tensors that hold them, the last in time first.
        read: the time at which they are read.
    """

    states: tuple[Observation, ...]
    read: int


def visual_tokens(
    calls: Sequence[ObservedCall], stacks: Sequence[Stack], language: Language
) -> VisualTokens:
    """Layer 1's input and all earlier states that hold as many visual tokens beside text.

    Where the image is not in the sequence: the states that the text attends to.
    """
    if language.visual is None:
        attended = list(_attended_states(stacks))
        read = min((time for time, _ in attended), default=0)
        return VisualTokens(tuple(state for time, state in attended if time == read), read)
    read = language.stack.began
    counts = (len(language.stack.input.pixel_changes), int(language.visual.sum()))
    states = (
        state
        for state in states_until(calls, read)
        if len(state.pixel_changes) in counts and state.by_text.any()
    )
    return VisualTokens(tuple(states), read)


def states_until(calls: Sequence[ObservedCall], until: int) -> list[Observation]:
    """The inputs and outputs of all modules up to a time, the last first."""
    seen = [(call.began, state) for call in calls for state in call.inputs]
    seen += [(call.ended, state) for call in calls for state in call.outputs]
    return [state for time, state in sorted(seen, key=lambda s: -s[0]) if time <= until]


def _attended_states(stacks: Iterable[Stack]) -> Iterator[tuple[int, Observation]]:
    """The states that text attends to, with the time at which a block takes them.

    A block that reads text takes them beside its hidden state; they change with the pixels alone.
    """
    for stack in stacks:
        for call in stack.calls if stack.input.by_text.any() else ():
            stream = stream_in(call)
            for state in call.inputs:
                if state is not stream and state.by_pixels.any() and not state.by_text.any():
                    yield call.began, state
