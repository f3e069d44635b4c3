"""A model to measure: its parts, and the token groups of the batches that are put to it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, before_call, observing, on_input, run_until
from normprobe.inputs.on_device import moved_to, pixel_inputs, transformers_config
from normprobe.model.find.norms import norm_placement_note
from normprobe.model.find.parts import Parts, holders_of, weight_of
from normprobe.model.find.residual import norms_of
from normprobe.model.part_checks import check_parts
from normprobe.model.provenance import Placed, Provenance, fitted
from normprobe.model.structural_states import SAME_STATE, StructuralStates
from normprobe.model.vision_stages import VisionStages
from normprobe.schema import (
    IMAGE_NUMBERS,
    SPECIAL,
    STRUCTURAL,
    TEXT,
    TOKEN_GROUPS,
    TURN_NUMBERS,
    VIDEO,
    VISUAL,
)
from normprobe.statistics.token_metrics import token_norms
from normprobe.tensors import to_device

_VISUAL, _STRUCTURAL = map(TOKEN_GROUPS.index, (VISUAL, STRUCTURAL))

#: Of positions of rotary tables by time, row and column (Qwen2-VL).
_AXES = 3


class MeasuredModel:
    """A model with its parts, and what has to be known of it only once."""

    def __init__(
        self,
        model: nn.Module,
        parts: Parts,
        special_token_ids: Iterable[int] | None = (),
        vocabulary_ids: Sequence[int] | None = None,
        found_by: str = "structure",
        token_text: Callable[[int], str] | None = None,
    ) -> None:
        self.model: Any = model
        self.parts = parts
        self.special_token_ids = list(special_token_ids or ())
        # Where there is no tokenizer, and nobody says which they are.
        self.knows_special = special_token_ids is not None
        self.vocabulary_ids = None if vocabulary_ids is None else list(vocabulary_ids)
        self.found_by = found_by
        self.token_text = token_text
        self._parts_seen = False
        self.same_axes = False  # whether layer 1 gets one position on all axes of its rotary table
        self.counted = False  # whether it gets positions that count rows one by one
        self._provenance = Provenance(self)
        self._structural = StructuralStates(self, self._provenance)
        self._last_watched: tuple[Mapping[str, Any], dict[str, Tensor], Tensor] | None = None
        self._stages: VisionStages | None = None  # of the same inputs
        self.doubt = ""
        self.forward_seen = self.entry_seen = False  # of ``first_forward``
        self.idle_seen = False  # of ``part_checks``
        text = self._text_config
        self.padding_id: int | None = getattr(text, "pad_token_id", None)
        self.begin_id = self._begin_id()
        self._where = self._modules()

    def __str__(self) -> str:
        """The class of the model, for messages."""
        return type(self.model).__name__

    @property
    def has_decoder(self) -> bool:
        """False for a bare vision encoder."""
        return self.parts.decoder_layers is not None

    @cached_property
    def decoder_layers(self) -> list[nn.Module]:
        """The decoder layers in order."""
        if self.parts.decoder_layers is None:
            raise NormprobeError(
                f"{self} has no decoder layers to measure",
                "use `normprobe interface` for a bare vision encoder",
            )
        return layers_in(self.parts.decoder_layers.module)

    def is_current(self) -> bool:
        """Whether the modules that were found stand where they were found."""
        return self._where == self._modules()

    def _modules(self) -> list[int]:
        """Which modules stand under the names of the parts, and which layers the decoder has."""
        modules = dict(self.model.named_modules(remove_duplicate=False))
        found = [modules.get(part.name) for _, part in self.parts]
        if self.parts.decoder_layers is not None:
            found += [*(modules.get(self.parts.decoder_layers.name) or nn.ModuleList()).children()]
        return [*map(id, found)]

    def afresh(self) -> "MeasuredModel":
        """The same model and parts, of whose forwards nothing is known yet."""
        special = self.special_token_ids if self.knows_special else None
        known = special, self.vocabulary_ids, self.found_by, self.token_text
        found = MeasuredModel(self.model, self.parts, *known)
        found.padding_id = self.padding_id
        return found

    @cached_property
    def layer_norms(self) -> list[list[nn.Module]]:
        """Of each decoder layer its norms, those inside its branches among them."""
        return [norms_of(layer) for layer in self.decoder_layers]

    @cached_property
    def norm_placement(self) -> str:
        """Where the norms of the decoder stand, of ``norm_placement_note``."""
        return norm_placement_note(self.model, self.parts)

    def read_stream(self, state: Tensor) -> Tensor:
        """What a decoder layer takes or returns as ``[batch, seq, hidden]``."""
        return self.parts.stream.read(state, self._text_config)

    @property
    def positions(self) -> int | None:
        """How many positions the decoder was made for; None: its config sets no limit."""
        return positions_of(transformers_config(self.model))

    @cached_property
    def _text_config(self) -> Any:
        config = transformers_config(self.model)
        return config.get_text_config(decoder=True) if config is not None else None

    def _begin_id(self) -> int | None:
        """The token that begins a prompt, by the config of the model, or around its layers."""
        configs, layers = [self._text_config], self.parts.decoder_layers
        for name in holders_of(layers.name) if layers is not None else ():
            configs.append(getattr(self.model.get_submodule(name), "config", None))
        told = [getattr(config, "bos_token_id", None) for config in configs]
        return next((number for number in told if isinstance(number, int)), None)

    def decoder_input(self, inputs: Mapping[str, Any]) -> Tensor:
        """What enters decoder layer 1, ``[batch, seq, hidden]``. No decoder layer runs."""
        first = self.decoder_layers[0]
        seen: list[Tensor] = []
        with observing(self.model), attached(on_input(first, seen.append)):
            run_until(self.model, moved_to(self.model, inputs), entering=first)
        state = self.read_stream(seen[0])
        if state.dim() != 3:
            raise NormprobeError(
                f"decoder layer 1 of {self} receives {list(state.shape)}: expected [batch, rows, "
                "hidden]",
                "where prompts are packed into one row of tokens, let the layers take it as a "
                "batch of one: x[None]",
            )
        return state

    def placed(self, inputs: Mapping[str, Any]) -> Placed:
        """The group and the id of every token, without asking which placeholders are structural."""
        placed = self._provenance.placed(inputs)
        return placed if self.knows_special else self._with_begin_token(placed)

    def _with_begin_token(self, placed: Placed) -> Placed:
        """With the token that begins prompts as special, where the first word of one is that.

        Its norm is often far from that of words (TinyGPT-V, in memory without its tokenizer).
        """
        if placed.ids is None or self.begin_id is None:
            return placed
        words = placed.groups == TOKEN_GROUPS.index(TEXT)
        opens = words & (words.cumsum(-1) == 1) & (placed.ids == self.begin_id).to(words.device)
        special = torch.where(opens, TOKEN_GROUPS.index(SPECIAL), placed.groups)
        return placed._replace(groups=special.to(placed.groups.dtype))

    def notice_changed_weights(self) -> None:
        """Learn structural tokens anew, of a model that has some, if a weight changed since.

        It reads weights back from the device: call it once a run, not for every batch.
        """
        self._structural.notice_changed_weights()

    def batch(self, inputs: Mapping[str, Any]) -> "MeasuredBatch":
        """Tell the token groups of a batch.

        Where no token id tells visual tokens, other pixels do: the vision side runs twice.
        """
        placed = self.placed(inputs)
        structural = self._structural.of(inputs, placed)
        batch = MeasuredBatch(self, inputs, placed.groups, structural, placed.ids)
        # Frames of a video may pass through other modules, or through the same ones.
        if not self._parts_seen and pixel_inputs(inputs) and not pixel_inputs(inputs, VIDEO):
            self._parts_seen = check_parts(self, batch)  # what was refused is looked at again
        self._last_watched = self._stages = None  # states of a batch do not stay
        return batch

    def entered(self, inputs: Mapping[str, Any]) -> Tensor:
        """The decoder input; the vision side is watched until its parts have been checked."""
        return self.decoder_input(inputs) if self._parts_seen else self.watched(inputs)[1]

    def handed_over(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the vision side hands anything over before decoder layer 1."""
        return bool(self.watched(inputs)[0])

    def watched(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
        """What the vision side hands over, and the decoder input; those of the last inputs kept."""
        if self._last_watched is None or self._last_watched[0] is not inputs:
            stages = VisionStages(self.parts, keep=Tensor.clone)
            seeing = before_call(self.decoder_layers[0], self._see_positions)
            with attached(*stages.handles(), seeing):
                entered = self.decoder_input(inputs)
            self._last_watched = inputs, stages.visual_rows(), entered
            self._stages = stages
        return self._last_watched[1:]

    def _see_positions(self, _: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Whether layer 1 gets positions on three axes that are all the same, or plain ones."""
        given = kwargs.get("position_ids")
        if isinstance(given, Tensor) and given.dim() == 3 and len(given) == _AXES:
            self.same_axes = bool((given == given[:1]).all())
        if isinstance(given, Tensor) and given.dim() == 2:
            rows = torch.arange(given.shape[1], device=given.device)
            self.counted = bool((given - given[:, :1] == rows).all())

    def take(self, parts: Parts) -> None:
        """Go on with other parts."""
        self.parts, self._last_watched = parts, None

    def calls_beside(self, visual: Tensor) -> tuple[int, int]:
        """Of what was watched last: ``VisionStages.calls_beside``."""
        return self._stages.calls_beside(visual) if self._stages else (0, 0)

    def rows_beside(self, entered: Tensor, visual: int) -> tuple[int, int]:
        """Likewise, row by row."""
        return self._stages.rows_beside(entered, visual) if self._stages else (0, 0)

    @property
    def rows_given(self) -> int:
        """Of what was watched last: how many rows the projector was given, in all arguments."""
        return self._stages.rows_given if self._stages else 0

    def add_doubt(self, said: str) -> None:
        """Say once what may not be as it was taken."""
        if said not in self.doubt:
            self.doubt = "; ".join(filter(None, [self.doubt, said]))


@dataclass(frozen=True)
class MeasuredBatch:
    """The inputs of one forward, and which group each of their tokens belongs to."""

    model: MeasuredModel  # which they are for
    inputs: Mapping[str, Any]  # what the processor returned
    # ``[batch, seq]`` int8 codes of ``schema.TOKEN_GROUPS``, every placeholder visual, padding
    # ``schema.PADDING``
    prompt_groups: Tensor
    # ``[states, hidden]`` at the decoder input; None: there cannot be any
    structural: Tensor | None
    ids: Tensor | None = None  # of tokens, in the shape of ``prompt_groups``; None: there are none

    @property
    def may_be_structural(self) -> bool:
        """Whether a row of it may be structural."""
        known = self.structural is not None and len(self.structural) > 0
        return known or bool((self.prompt_groups == _STRUCTURAL).any())

    def groups_at(self, decoder_input: Tensor) -> Tensor:
        """The token groups of what enters decoder layer 1.

        Args:
            decoder_input: ``[batch, positions, hidden]``.

        Returns:
            ``[batch, positions]`` codes on the device of ``decoder_input``.
        """
        on_device = to_device(self.prompt_groups, decoder_input.device)
        groups = fitted(on_device, decoder_input, self.model.parts)
        if self.structural is not None:
            for state in self.structural.to(decoder_input):
                away = token_norms(decoder_input - state)
                same = (away <= SAME_STATE * token_norms(state)) & (groups == _VISUAL)
                groups = torch.where(same, _STRUCTURAL, groups)
        return groups

    def images_at(self, groups: Tensor) -> Tensor | None:
        """Which image of its sample each visual token belongs to, by its number from 1.

        Args:
            groups: ``[batch, positions]``, of ``groups_at``.

        Returns:
            ``[batch, positions]``, 0 where there is no visual token, and in a sample that has none
            for one of its images: these cannot be told apart. None where no sample is known to have
            several images, or these are not in the sequence.
        """
        numbers = self.inputs.get(IMAGE_NUMBERS)
        if numbers is None or numbers.shape != groups.shape:
            return None
        numbers = numbers.to(groups.device)
        images = torch.where(groups == _VISUAL, numbers, 0)
        for found, told in zip(images, numbers, strict=True):
            if len(found[found > 0].unique()) < int(told.max()):
                found.zero_()
        return images

    def turns_at(self, groups: Tensor) -> Tensor | None:
        """Which turn of its sample each token belongs to, by its number from 1.

        Args:
            groups: ``[batch, positions]``, of ``groups_at``.

        Returns:
            ``[batch, positions]``, 0 at padding; None where the inputs do not say, or the decoder
            reads other positions.
        """
        numbers: Tensor | None = self.inputs.get(TURN_NUMBERS)
        fits = numbers is not None and numbers.shape == groups.shape
        return numbers.to(groups.device) if numbers is not None and fits else None

    def states_of(self, group: str) -> Tensor:
        """The states of a token group at the decoder input, ``[tokens, hidden]``."""
        x = self.model.decoder_input(self.inputs)
        chosen: Tensor = x[self.groups_at(x) == TOKEN_GROUPS.index(group)]
        if not len(chosen):
            raise NormprobeError(
                f"the inputs bring no {group} token to the decoder of {self.model}",
                "pass a prompt with text and an image",
            )
        return chosen


def layers_in(stack: nn.Module) -> list[nn.Module]:
    """The layers of a list, in order.

    Raises:
        NormprobeError: one layer stands in it more than once.
    """
    layers = [module for module in stack._modules.values() if module is not None]
    for number, layer in enumerate(layers, start=1):
        if (first := next(n for n, each in enumerate(layers, 1) if each is layer)) < number:
            raise NormprobeError(
                f"decoder layer {number} is layer {first}: it runs several times in one forward",
                "layers that share a module are not supported",
            )
    return layers


def embedding_scale(parts: Parts, input_ids: Tensor, x: Tensor, groups: Tensor) -> float | None:
    """The one scalar between table rows and the decoder input, if there is one.

    Gemma scales inside the embedding module, Granite after it; position terms make it more than a
    scalar. Measured on the text tokens of the prompt: x = s w up to rounding.

    Args:
        parts: of a model whose embedding weights are in memory.
        input_ids: ``[batch, seq]``.
        x: ``[batch, seq, hidden]``, the decoder input.
        groups: ``[batch, seq]`` token group codes of ``x``.

    Returns:
        s; None where no scalar fits, or the prompt holds no text token.
    """
    if parts.text_embedding is None or groups.shape != input_ids.shape:
        return None  # rows before or behind the prompt come with positions
    weight = weight_of(parts.text_embedding)
    text = (groups == TOKEN_GROUPS.index(TEXT)).to(input_ids.device) & (input_ids < len(weight))
    w = weight[input_ids[text].to(weight.device)].float()
    x = x[text.to(x.device)].to(w).float()
    length = torch.linalg.vecdot(w, w)
    w, x, length = w[length > 0], x[length > 0], length[length > 0]
    if not len(w):
        return None
    scales = torch.linalg.vecdot(x, w) / length
    scale = float(scales.median())
    rounding = max(4 * torch.finfo(weight.dtype).eps, 1e-5)
    misfit = token_norms(x - scale * w) / token_norms(x)
    return scale if bool((misfit <= rounding).all()) else None


def positions_of(config: Any) -> int | None:
    """How many positions the decoder of a config was made for; None: it sets no limit."""
    text = getattr(config, "get_text_config", lambda **_: None)(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def layers_of_all_depths(layers: int, shown: int) -> list[int]:
    """Numbers of ``shown`` layers spread evenly over the model, the last among them."""
    shown = min(shown, layers)
    return [round(layers * step / shown) for step in range(1, shown + 1)]
