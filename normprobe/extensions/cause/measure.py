"""One untouched forward of a batch, and one an intervention: angles, and the answer.

The right answer stands behind each prompt, so that one forward says how probable each of its tokens
is (teacher forcing). Where the data hold none, the model's own most probable answer does. Tokens of
the answer belong to no group: angles are those of the prompt alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from xxhash import xxh3_64_intdigest

from normprobe.data.data_set import bundled_data_dir
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.extensions.cause.own_answers import is_right
from normprobe.hooks import (
    after_call,
    attached,
    hidden_state_of,
    observing,
    on_input,
    on_output,
    run_until,
)
from normprobe.inputs.answers import AnswerTokens, answer_tokens, with_tokens
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import completed, moved_to
from normprobe.model.find.overrides import ADDED, CROSS_ATTENTION, PREPENDED
from normprobe.model.find.parts import STREAMS
from normprobe.model.first_forward import check_forward
from normprobe.model.intervention_plan import (
    BLANK,
    KNOCKOUT,
    KNOCKOUT_LAYER,
    NORM_AT_LAYER,
    OF_ANOTHER_PICTURE,
    OF_ONE_LAYER,
    PATCH_LAYER,
    UNTOUCHED,
    Intervention,
    planned,
)
from normprobe.model.interventions import TokenRows, called_as_loud_as_text, intervened
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tower_join import TowerClasses
from normprobe.schema import PADDING, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.token_metrics import in_group, token_metrics, widened
from normprobe.tensors import find_named, to_host

#: Tokens of an answer that the model gives itself, at most.
LONGEST_ANSWER = 8

#: What is kept of a sample in each forward.
OUTCOMES = ("nll", "correct", "kl", "changed", "moved", "touched", "added", "greedy")
#: What is kept of a sample in each layer.
ANGLES = ("visual_angle_log_mean", "visual_tokens", "text_angle_log_mean", "text_tokens")

#: How far a mean logarithm of angles may be from that of the same prompt in the same shape.
_ROUNDING = 1e-3

_ANGLE = TOKEN_METRICS.index("angle")


@dataclass(frozen=True)
class SeenCause:
    """What the forwards of a batch leave, on their way to the CPU."""

    # what was done in each, the first ``UNTOUCHED``, and how many arrays it left
    forwards: list[tuple[Intervention, int]]
    answered: list[str]  # of each sample, how its answer was found
    # ``[batch]`` how many visual tokens each sample has; then of each forward outcomes ``[OUTCOMES,
    # batch]``, but of ``NORM_AT_LAYER``, and of each layer ``[ANGLES, batch]``, but of
    # ``OF_ONE_LAYER``
    arrived: Callable[[], list[NDArray[Any]]]


def observer(
    model: MeasuredModel, builder: InputBuilder, names: Sequence[str], *, answer: bool = False
) -> Callable[[Mapping[str, Any], Sequence[Sample]], SeenCause]:
    """What measures one batch after another; ``answer``: with what the model answers by itself."""
    _refuse(model)
    plan = planned(names, len(model.decoder_layers))
    classes = TowerClasses(model) if any(done.tokens for done in plan) else None
    checked = False

    def observe(inputs: Mapping[str, Any], samples: Sequence[Sample]) -> SeenCause:
        nonlocal checked
        with observing(model.model):
            batch = _Batch(model, builder, inputs, samples, classes)
            if not checked and not model.doubt:
                model.doubt = batch.doubt()
            checked = True
            return batch.seen(plan, answer=answer)

    return observe


def rows(seen: SeenCause, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """Of each sample and forward one row of outcomes, layer 0, and one row of angles a layer."""
    visual, *arrived = seen.arrived()
    names = sample_ids or [str(number) for number in range(len(seen.answered))]
    found = []
    for done, count in seen.forwards:
        arrays, arrived = arrived[:count], arrived[count:]
        outcomes, angles = (None, arrays) if done.name == NORM_AT_LAYER else (arrays[0], arrays[1:])
        for row, sample_id in enumerate(names):
            named = {"sample_id": sample_id, "intervention": done.label, "dose": done.dose}
            known = 1.0 if visual[row] else np.nan  # nothing was done to a sample without a picture
            if outcomes is not None:
                told = dict(zip(OUTCOMES, (known * outcomes[:, row]).tolist(), strict=True))
                answered = {"answered": seen.answered[row]}
                found.append({**named, "layer": done.layer, **answered, **told})
            for layer, of_layer in enumerate(angles, start=1):
                numbers = dict(zip(ANGLES, (known * of_layer[:, row]).tolist(), strict=True))
                found.append({**named, "layer": layer, **numbers})
    return pd.DataFrame(found)


class _Batch:
    """A batch with its answers, and what is known of its untouched forward."""

    def __init__(
        self,
        model: MeasuredModel,
        builder: InputBuilder,
        inputs: Mapping[str, Any],
        samples: Sequence[Sample],
        classes: TowerClasses | None = None,
    ) -> None:
        self.model, self.builder, self.samples = model, builder, samples
        self._tower_classes = classes
        self.layers = model.decoder_layers
        self.prompts = inputs
        self.rows: TokenRows | None = None
        config = getattr(model.model, "config", None)
        self._model_type = str(getattr(config, "model_type", ""))
        self.answered = ["greedy" if sample.answer is None else "right" for sample in samples]
        self.answers = [
            answer_tokens(builder, sample, sample.answer) if sample.answer else AnswerTokens()
            for sample in samples
        ]
        self._answer_the_rest()
        self._append_answers()
        check_forward(model, self.inputs)
        self._batch = model.batch(self.inputs)
        # What others are compared with: of each sample [answer tokens, vocabulary] logarithms of
        # probabilities, and [batch, positions, hidden] behind the last layer.
        self._untouched: tuple[list[Tensor], Tensor] | None = None
        self._free: _Batch | None = None
        self._limits: list[int] = []  # tokens of each greedy answer, at most
        self._pictured: dict[object, dict[str, Any]] = {}  # prompts about other pictures
        # Of each sample the visual tokens of each class; empty: not asked for yet.
        self._classes: list[Mapping[str, NDArray[np.int_]]] = []

    def seen(self, plan: Sequence[Intervention], *, answer: bool) -> SeenCause:
        """Run everything."""
        forwards = [Intervention(UNTOUCHED), *plan]
        if answer:
            self._free = self._without_answers()
        left = [(done, self._forward(done)) for done in forwards]
        assert self.rows is not None
        arriving = [self.rows.visual.sum(dim=-1), *(each for _, arrays in left for each in arrays)]
        counts = [(done, len(arrays)) for done, arrays in left if arrays]
        return SeenCause(counts, self.answered, to_host(arriving))

    def doubt(self) -> str:
        """What speaks against reading prompt and answer in one forward; empty: nothing.

        Where tokens see those behind them, the answer changes the states that are measured.
        """
        ids = find_named(self.prompts, "input_ids")
        lengths = [len(answer.given) + len(answer.scored) for answer in self.answers]
        words = [[int(ids[row, self.starts[row] - 1])] * n for row, n in enumerate(lengths)]
        angles = []
        for inputs in (self.inputs, with_tokens(self.prompts, words, self._model_type)[0]):
            reader = _Reader(self.rows_at)
            with attached(*reader.handles(self.layers)):
                inputs = moved_to(self.model.model, inputs)
                run_until(self.model.model, inputs, leaving=self.layers[-1])
            angles.append(torch.stack([each.to(reader.angles[0]) for each in reader.angles]))
        if bool(((angles[0] - angles[1]).abs().nan_to_num() < _ROUNDING).all()):
            return ""
        return (
            "the tokens of an answer change the states of the prompt before it: this decoder is "
            "not causal, and angles are not those of `layers`"
        )

    def _forward(self, done: Intervention) -> list[Tensor]:
        """Outcomes and angles of one forward; nothing: it cannot be done with this batch."""
        if done.name == NORM_AT_LAYER:
            return self._norms_at_layers()
        ran = self._run(done)
        if ran is None:
            return []
        logits, reader = ran
        angles = [] if done.name in OF_ONE_LAYER else reader.angles  # others only hear of it
        if done.name in (KNOCKOUT, KNOCKOUT_LAYER):
            self._check_hidden(done, reader.last)
        return [self._outcomes(done, logits, reader), *angles]

    def _run(self, done: Intervention) -> "tuple[Tensor, _Reader] | None":
        """The logits of one forward, and what its layers said; None: it cannot be done."""
        inputs, other = self.inputs, None
        if done.name in (BLANK, *OF_ANOTHER_PICTURE):
            pictured = self._with_other_pictures(_grey if done.name == BLANK else _another)
            if pictured is None:
                return None
            if done.name == BLANK and not done.tokens:
                inputs = pictured
            elif done.name == PATCH_LAYER:
                other = self._entering(pictured, self.layers[done.layer - 1])
            else:
                other = self.model.decoder_input(pictured)
        reader, logits = _Reader(self.rows_at), list[Tensor]()
        with ExitStack() as stack:
            if done.name == PATCH_LAYER:  # that a state is replaced is nothing that the model adds
                stack.enter_context(attached(*reader.handles(self.layers)))
            if self.rows is not None:
                rows = self._rows_for(done, self.rows)
                stack.enter_context(intervened(self.layers, done, rows, other))
            if done.name != PATCH_LAYER:
                stack.enter_context(attached(*reader.handles(self.layers)))
            stack.enter_context(attached(self._seeing_logits(logits)))
            run_until(self.model.model, moved_to(self.model.model, inputs))
        return logits[0], reader

    def _rows_for(self, done: Intervention, rows: TokenRows) -> TokenRows:
        """What is visual to an intervention: all tokens that are, or those of its class."""
        if not done.tokens:
            return rows
        assert self._tower_classes is not None
        if not self._classes:
            built = (completed(self.model.model, self.builder.build([s])) for s in self.samples)
            self._classes = [self._tower_classes.of(inputs) for inputs in built]
        chosen = torch.zeros_like(rows.visual)
        for row, classes in enumerate(self._classes):
            places = rows.visual[row].cpu().nonzero().flatten()
            chosen[row, places[torch.from_numpy(classes[done.tokens])].to(chosen.device)] = True
        return rows.only(chosen)

    def _entering(self, inputs: Mapping[str, Any], layer: nn.Module) -> Tensor:
        """What enters a layer, ``[batch, positions, hidden]``."""
        seen: list[Tensor] = []
        with attached(on_input(layer, seen.append)):
            run_until(self.model.model, moved_to(self.model.model, inputs), entering=layer)
        return seen[0]

    def _check_hidden(self, done: Intervention, last: Tensor | None) -> None:
        """Refuse attention that does not read the mask that it is given."""
        assert self._untouched is not None and self.rows is not None and last is not None
        if self.rows.visual.any() and torch.equal(last, self._untouched[1]):
            raise NormprobeError(
                f"{done.label} changes no state: attention of {self.model} does not read the mask "
                "of its layers, or no token stands behind a picture",
                f"leave {done.label} out",
            )

    def rows_at(self, x: Tensor) -> TokenRows:
        """Which rows are visual, and text of the prompts; asked for in the untouched forward."""
        if self.rows is None:
            groups = self._batch.groups_at(x)
            behind = self._offset(groups.shape[1])
            for row, (start, answer) in enumerate(zip(self.starts, self.answers, strict=True)):
                end = start + len(answer.given) + len(answer.scored)
                groups[row, start + behind : end + behind] = PADDING
            self.rows = _rows_of(groups, [_number_of(sample) % 2**32 for sample in self.samples])
        return self.rows

    def _offset(self, positions: int) -> int:
        """How many rows the decoder has before each answer that are none of its prompt."""
        fusion = self.model.parts.fusion
        before = positions - self._ids.shape[1] if fusion != ADDED else 0
        if before and fusion != PREPENDED and len(self.samples) > 1:
            raise NormprobeError(
                f"{self.model} inserts rows into its prompts, as many as each picture has",
                "use --batch-size 1",
            )
        return before

    def _seeing_logits(self, seen: list[Tensor]) -> RemovableHandle:
        def see(_: nn.Module, args: object, kwargs: object, output: Any) -> None:
            seen.append(hidden_state_of(output, "logits"))
            if seen[0].dim() != 3 or (isinstance(output, Mapping) and "logits" not in output):
                raise NormprobeError(
                    f"{self.model} returns no logits of its tokens: no answer has a probability",
                    "pass the model with its language modelling head",
                )
            if seen[0].shape[1] < self._ids.shape[1]:
                raise NormprobeError(
                    f"{self.model} returns logits of {seen[0].shape[1]} of "
                    f"{self._ids.shape[1]} tokens: the others of an answer have no probability",
                    "let its forward return the logits of all tokens",
                )

        return after_call(self.model.model, see)

    def _outcomes(self, done: Intervention, logits: Tensor, reader: "_Reader") -> Tensor:
        """``[OUTCOMES, batch]``."""
        last, name = reader.last, done.name
        assert self.rows is not None and last is not None
        probabilities = [
            torch.log_softmax(widened(logits[row, place : place + count]), dim=-1)
            for row, (place, count) in enumerate(self._predicted(logits.shape[1]))
        ]
        if self._untouched is None:
            self._untouched = probabilities, last
        before, states = self._untouched
        moved = _moved(states, last, self.rows.watched(name))
        touched = (
            self._rows_for(done, self.rows).touched(name).sum(dim=-1)
            if name != UNTOUCHED
            else torch.zeros_like(moved)
        )
        found = []
        greedy = [torch.nan] * len(self.samples) if self._free is None else self._free.right(done)
        for row, (now, was) in enumerate(zip(probabilities, before, strict=True)):
            nll, right = self.answers[row].outcome(now)
            # Among logits that are no numbers the first token would be the likeliest.
            finite = torch.nan if now.isnan().any() else 1.0
            known = finite if self.answered[row] == "right" else torch.nan
            numbers = [
                nll * known,
                right.to(nll) * known,
                _divergence(was, now),
                (now.argmax(dim=-1) != was.argmax(dim=-1)).any().to(nll) * finite,
                moved[row].to(nll),
                touched[row].to(nll),
                reader.added[row].to(nll),
                nll.new_tensor(greedy[row]),
            ]
            found.append(torch.stack(numbers))
        return torch.stack(found, dim=-1)

    def _predicted(self, positions: int) -> list[tuple[int, int]]:
        """Where the logits of each answer's tokens begin, and how many they are."""
        behind = self._offset(positions)
        return [
            (start + behind + len(answer.given) - 1, len(answer.scored))
            for start, answer in zip(self.starts, self.answers, strict=True)
        ]

    def _norms_at_layers(self) -> list[Tensor]:
        """``[ANGLES, batch]`` of each layer where it alone reads visual states like text."""
        found: list[Tensor] = []

        def call_again(
            layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: object
        ) -> None:
            assert self.rows is not None
            x, h = called_as_loud_as_text(layer, args, kwargs, self.rows)
            found.append(_angles(x, h, self.rows))

        with attached(*(after_call(layer, call_again) for layer in self.layers)):
            run_until(self.model.model, self.inputs, leaving=self.layers[-1])
        return found

    # --- answers and pictures --------------------------------------------------------------------

    def _answer_the_rest(self) -> None:
        """Give samples without an answer the model's own, token by token."""
        left = [row for row, how in enumerate(self.answered) if how == "greedy"]
        ends = _end_ids(self.model.model, self.builder.tokenizer)
        for _ in range(LONGEST_ANSWER):
            if not left:
                return
            self._append_answers()
            seen: list[Tensor] = []
            with attached(self._seeing_logits(seen)):
                run_until(self.model.model, self.inputs)
            for row in list(left):
                answer = self.answers[row]
                token = self._likeliest(seen[0], row, len(answer.scored))
                self.answers[row] = replace(answer, scored=(*answer.scored, token))
                if token in ends:
                    left.remove(row)

    def _likeliest(self, logits: Tensor, row: int, place: int) -> int:
        """The id that a greedy answer has at a place."""
        first = self.starts[row] + len(self.answers[row].given) - 1
        scores = logits[row, first + self._offset(logits.shape[1]) + place].clone()
        scores[[id_ for id_ in _media_ids(self.model) if id_ < len(scores)]] = -torch.inf
        return int(scores.argmax())

    def _without_answers(self) -> "_Batch":
        """The same batch, whose answers are to be found: all of them as long as any may be.

        What stands there is not seen by the tokens before it.
        """
        free = copy(self)
        ids = find_named(self.prompts, "input_ids")
        # One token more than the right one: nothing is right by where it is cut off.
        free._limits = [max(LONGEST_ANSWER, len(each.scored) + 1) for each in self.answers]
        free.answers = [
            replace(answer, scored=(int(ids[row, start - 1]),) * max(free._limits))
            for row, (answer, start) in enumerate(zip(self.answers, self.starts, strict=True))
        ]
        free.rows, free._untouched = None, None
        free._append_answers()
        free._batch = self.model.batch(free.inputs)
        return free

    def right(self, done: Intervention) -> list[float]:
        """Of each sample, whether its greedy answer is right, 0 or 1; NaN: nobody knows."""
        ends = _end_ids(self.model.model, self.builder.tokenizer)
        found = [torch.nan] * len(self.samples)
        left = [row for row, how in enumerate(self.answered) if how == "right"]
        for place in range(max(self._limits)):
            if not left:
                break
            self._append_answers()
            ran = self._run(done)
            if ran is None:
                return found
            for row in list(left):
                scored = [*self.answers[row].scored]
                scored[place] = self._likeliest(ran[0], row, place)
                self.answers[row] = replace(self.answers[row], scored=tuple(scored))
                ended = scored[place] in ends
                said = scored[: place + (not ended)]
                answer = self.samples[row].answer
                assert answer is not None
                found[row] = float(
                    is_right(self.builder.tokenizer.decode(said, skip_special_tokens=True), answer)
                )
                if ended or place + 1 == self._limits[row]:
                    left.remove(row)
        return found

    def _append_answers(self) -> None:
        """Put the answers known so far behind the prompts."""
        answered, self.starts = self._with_answers(self.prompts)
        self._ids = find_named(answered, "input_ids")
        self.inputs = moved_to(self.model.model, answered)

    def _with_answers(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
        tokens = [(*answer.given, *answer.scored) for answer in self.answers]
        return with_tokens(inputs, tokens, self._model_type)

    def _with_other_pictures(
        self, other: Callable[[Sample, Image.Image], Image.Image]
    ) -> dict[str, Any] | None:
        """The inputs about other pictures of the same sizes; None: they get other tokens."""
        if other not in self._pictured:
            pictured = [
                replace(
                    sample,
                    images=tuple(other(sample, image) for image in sample.images),
                    videos=tuple(
                        replace(video, frames=tuple(other(sample, frame) for frame in video.frames))
                        for video in sample.videos
                    ),
                )
                for sample in self.samples
            ]
            made = completed(self.model.model, self.builder.build(pictured))
            self._pictured[other] = made
        inputs, _ = self._with_answers(self._pictured[other])
        return inputs if torch.equal(find_named(inputs, "input_ids"), self._ids) else None


class _Reader:
    """Keeps the angles of each layer, and the state behind the last, of one forward."""

    def __init__(self, rows_at: Callable[[Tensor], TokenRows]) -> None:
        self._rows_at = rows_at
        self._entered: tuple[Tensor, int] | None = None
        #: Of each sample, in how many places visual states change between two layers (DeepStack).
        self.added = torch.zeros(0)
        self.angles: list[Tensor] = []
        self.last: Tensor | None = None

    def handles(self, layers: Sequence[nn.Module]) -> list[RemovableHandle]:
        """The hooks, behind those that intervene."""
        pairs = [(on_input(each, self._enter), on_output(each, self._leave)) for each in layers]
        return [handle for pair in pairs for handle in pair]

    def _enter(self, x: Tensor) -> None:
        self._entered = x, x._version
        if self.last is None:
            self.added = x.new_zeros(len(x), dtype=torch.float32)
        elif x is not self.last:
            visual = self._rows_at(x).visual.to(x.device)
            changed = (x != self.last.to(x)).any(dim=-1) & visual
            self.added = self.added.to(x.device) + changed.any(dim=-1)

    def _leave(self, h: Tensor) -> None:
        assert self._entered is not None
        x, version = self._entered
        if x._version != version:
            raise NormprobeError(
                f"decoder layer {len(self.angles) + 1} overwrites its input in place, so its "
                "update is lost",
                "open an issue with the model type",
            )
        self.angles.append(_angles(x, h, self._rows_at(x)))
        self.last = h


def angles_of(model: MeasuredModel, inputs: Mapping[str, Any]) -> list[NDArray[Any]]:
    """``[ANGLES, batch]`` of each layer, untouched and without an answer."""
    batch = model.batch(inputs)
    rows: list[TokenRows] = []

    def rows_at(x: Tensor) -> TokenRows:
        if not rows:
            rows.append(_rows_of(batch.groups_at(x), []))
        return rows[0]

    reader, layers = _Reader(rows_at), model.decoder_layers
    with observing(model.model), attached(*reader.handles(layers)):
        run_until(model.model, moved_to(model.model, inputs), leaving=layers[-1])
    return to_host(reader.angles)()


def _rows_of(groups: Tensor, seeds: Sequence[int]) -> TokenRows:
    visual, text = (in_group(group, groups) for group in (VISUAL, TEXT))
    return TokenRows(visual, text, seeds)


def _number_of(sample: Sample) -> int:
    return xxh3_64_intdigest(sample.id.encode())


def _angles(x: Tensor, h: Tensor, rows: TokenRows) -> Tensor:
    """``[ANGLES, batch]``: mean logarithms of the angles of tokens that turn, and their number."""
    logs = token_metrics(x, h)[_ANGLE].log()
    found = []
    for mask in (rows.visual, rows.text):
        held = mask.to(logs.device) & logs.isfinite()
        count = held.sum(dim=-1)
        found += [torch.where(held, logs, 0.0).sum(dim=-1) / count, count.to(logs)]
    return torch.stack(found)


def _divergence(was: Tensor, now: Tensor) -> Tensor:
    """KL, the mean over tokens; what has no probability before has no share of it."""
    apart = torch.where(was == -torch.inf, 0.0, was.exp() * (was - now))
    return apart.sum(dim=-1).mean().clamp_min(0.0)


def _moved(before: Tensor, after: Tensor, rows: Tensor) -> Tensor:
    """``[batch]``: the mean over some rows of 1 - the cosine of two states."""
    cosines = torch.cosine_similarity(widened(before), widened(after), dim=-1)
    rows = rows.to(cosines.device)
    moved: Tensor = torch.where(rows, 1 - cosines, 0.0).sum(dim=-1) / rows.sum(dim=-1)
    return moved.clamp_min(0.0)


def _grey(_: Sample, image: Image.Image) -> Image.Image:
    return Image.new("RGB", image.size, (128, 128, 128))


def _another(sample: Sample, image: Image.Image) -> Image.Image:
    """One of the bundled photographs, the same for a sample each time, in the size of its own."""
    photographs = sorted((bundled_data_dir() / "images").glob("*.jpg"))
    chosen = photographs[_number_of(sample) % len(photographs)]
    with Image.open(chosen) as photograph:
        return photograph.convert("RGB").resize(image.size)


def _media_ids(model: MeasuredModel) -> list[int]:
    """What stands for pixels and sounds: an answer that held it would ask for more of them."""
    parts = model.parts
    ids = [*parts.image_token_ids, *parts.video_token_ids, *parts.audio_token_ids]
    if parts.audio_token_ids:  # Qwen-Omni looks behind what begins them, too
        named = model.model.config.to_dict().items()
        ids += [id_ for name, id_ in named if name.endswith("_start_token_id") and id_ is not None]
    return [id_ for id_ in ids if id_ >= 0]


def _end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Ids that end an answer."""
    generation = getattr(model, "generation_config", None)
    said = getattr(generation, "eos_token_id", None)
    named = said if isinstance(said, list | tuple) else [said]
    return {token for token in (*named, tokenizer.eos_token_id) if token is not None}


def _refuse(model: MeasuredModel) -> None:
    """Refuse decoders in which there is no row of a visual token to intervene on."""
    reason = ""
    if model.parts.fusion == CROSS_ATTENTION:
        reason = "text attends to visual states that are no rows of its sequence"
    elif model.parts.stream is not STREAMS["single"]:
        reason = "its decoder layers pass several streams"
    elif getattr(getattr(model.model, "config", None), "is_encoder_decoder", False):
        reason = "another stack than the one that reads the picture writes the answer"
    if reason:
        raise NormprobeError(
            f"{model} has no visual state that an intervention could change: {reason}",
            "`normprobe layers` measures it",
        )
