"""The way from pixels to the decoder: norms, reduced as the modules return; and its parts, checked.

A part is found by names and structure. The first batch with an image shows what it hands over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import (
    HIDDEN_STATE,
    PROJECTED_STATE,
    after_call,
    before_call,
    hidden_state_of,
    in_full_precision,
    on_call,
    on_call_as_given,
)
from normprobe.model.decoder_rows import HIDES_A_KEY
from normprobe.model.find.overrides import ADDED, CROSS_ATTENTION
from normprobe.model.find.parts import PROJECTS_SOUND, Parts, size_of
from normprobe.model.structural_states import SAME_STATE
from normprobe.model.tracing.recording import tensors
from normprobe.schema import (
    AUDIO,
    AUDIO_ENCODER,
    AUDIO_PROJECTOR_INPUT,
    AUDIO_PROJECTOR_OUTPUT,
    MERGED_INPUT,
    NON_VISUAL,
    PADDING,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    SPECIAL,
    STRUCTURAL,
    TOKEN_GROUPS,
    VIDEO,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.statistics.sample_statistics import statistics_of
from normprobe.statistics.token_metrics import masks_of, token_norms
from normprobe.tensors import to_host
from normprobe.versions import reader_of_encoder

_VISUAL, _STRUCTURAL = map(TOKEN_GROUPS.index, (VISUAL, STRUCTURAL))

#: Distances of near rows, to all digits.
_EXACT = "donot_use_mm_for_euclid_dist"

#: Which rows a mask hides from the blocks of an encoder, among what it was given.
_HIDDEN = "hidden_rows"

#: What the encoder hands over, what the projector receives and what it returns.
_STAGES = {
    VISUAL: (VISION_ENCODER, PROJECTOR_INPUT, PROJECTOR_OUTPUT),
    AUDIO: (AUDIO_ENCODER, AUDIO_PROJECTOR_INPUT, AUDIO_PROJECTOR_OUTPUT),
}


class VisionStages:
    """Watches vision encoder and projector; keeps a norm and a group code a row, on the device.

    Class and register rows are special. Padded patches and empty tiles count nowhere: what masks
    and positions the vision encoder was given tells them, wherever a stage has one row for each of
    its rows. Without a vision encoder the projector is given them.

    Args:
        parts: of the model.
        keep: what is kept of states ``[..., hidden]``: by default their norms ``[...]``; a copy of
            the states, where ``visual_rows`` is to return them.
        group: ``AUDIO``: watches the audio encoder and its projector.
    """

    def __init__(
        self, parts: Parts, keep: Callable[[Tensor], Tensor] = token_norms, group: str = VISUAL
    ) -> None:
        self._group = group
        if group == AUDIO:
            hears: dict[str, Any] = {
                "vision_encoder": parts.audio_encoder,
                "projector": parts.audio_projector,
            }
            parts = replace(parts, class_rows=0, channels_first=False, **hears)
        self._encoder, self._entered, self._left = _STAGES[group]
        self._parts = parts
        self._class_rows = parts.class_rows
        encoder = parts.vision_encoder
        weights = encoder.module.parameters() if encoder is not None else ()
        # Of norms, biases and convolutions, of which the last may have no bias (OneChart).
        self._widths = {len(weight) for weight in weights if weight.dim() in (1, 4)}
        self._keep_of = keep
        self._counted: Tensor | None = None  # [rows of what is given patches] bool
        self._rows_of_tile: int | None = None
        self._hidden: Tensor | None = None  # [images, rows] bool, of those that blocks attend to
        self._rows_of_blocks = 0  # how many entered the first block since the encoder returned
        self._rows_of_a_tile = 0  # how many of these an image has
        self._rows_before = self._rows_read = 0  # all that entered it, all that the projector read
        self._waiting: list[tuple[list[Tensor], Mapping[Any, Any], int]] = []
        self._which: int | None = None  # of several states that the encoder returns
        self._of_several = 0  # states that the projector was given side by side
        self.rows_given = 0  # of all states that the projector was given (Ola's are two)
        self._of_projector = 0  # states that the projector returns side by side
        self._of_encoder = False  # whether the encoder returned them so
        self._scales: list[int] = []  # of states that the encoder returns, if they are several
        self._kept: dict[str, list[tuple[Tensor, Tensor, int]]] = {}

    def handles(self) -> list[RemovableHandle]:
        """The hooks to attach while the model runs."""
        encoder, projector = self._parts.vision_encoder, self._parts.projector
        handles = []
        if encoder is not None:
            reader = reader_of_encoder(encoder.module, projector.module if projector else None)
            if self._group == AUDIO:
                children = encoder.module.named_children()
                inside = [child for name, child in children if PROJECTS_SOUND.search(name)]
                reader = inside[0] if projector and projector.module in inside else None
            own = not is_native(encoder.module)
            if reader is None:
                # Sound may come as whole numbers (Inkling).
                watch = partial(on_call, codes=True) if self._group == AUDIO else on_call
                states = self._handed_over if own else _states_of
                handles.append(watch(encoder.module, self._returned, states))
            else:
                handles.append(on_call(reader, self._read))
            may_pad = self._group == VISUAL and own
            looks = self._class_rows or may_pad or (reader is not None and self._group == VISUAL)
            block = _first_block(encoder.module) if looks else None
            cuts = (m for m in encoder.module.modules() if isinstance(m, nn.Conv2d | nn.Conv3d))
            if block is not None:
                handles.append(before_call(block, self._entered_blocks))
            elif looks and (first := next(cuts, None)) is not None:
                handles.append(after_call(first, self._cut))
        if projector is not None:
            native = is_native(projector.module)
            reads = _projected_state if native else self._projected_of
            watched = projector.module, self._projected, reads
            handles += [on_call(*watched)] if native else on_call_as_given(*watched)
        return handles

    def norms(self) -> "StageNorms":
        """What was kept. The host does not wait for it."""
        kept = self.kept_rows()
        norms, codes, sizes = zip(*kept.values(), strict=True) if kept else ((), (), ())
        stage = self._left if self._parts.projector is not None else self._encoder
        stages = list(zip(kept, sizes, strict=True))
        return StageNorms(stages, to_host([*norms, *codes]), stage)

    def kept_rows(self) -> dict[str, tuple[Tensor, Tensor, int]]:
        """What was kept of each stage's rows, their group codes ``[rows]``, and the hidden size."""
        self._settle(None)
        found = {}
        for stage, calls in self._kept.items():
            kept, groups, sizes = zip(*calls, strict=True)
            found[stage] = torch.cat(kept), torch.cat(groups), sizes[0]
        return found

    def tell_videos(self, other: "VisionStages | None") -> None:
        """Say which visual rows come from a video, and keep norms alone.

        ``other``: the same calls with another video, which changes its rows; both keep copies of
        states. None: all rows are, and norms are kept.
        """
        for stage, calls in self._kept.items():
            for place, (state, groups, size) in enumerate(calls):
                norms, of_video = state, groups == _VISUAL
                if other is not None:
                    norms = token_norms(state)
                    of_video = of_video & (state != other._kept[stage][place][0]).any(dim=-1)
                groups = torch.where(of_video, TOKEN_GROUPS.index(VIDEO), groups)
                calls[place] = norms, groups, size

    @property
    def _last(self) -> str:
        """The stage that hands rows to the decoder."""
        return self._left if self._left in self._kept else self._encoder

    @in_full_precision
    def tell_structural(self, rows: Tensor) -> None:
        """Say which rows that the projector returns enter as structural ones; keep norms alone.

        It may end lines with learned rows (Tarsier, Q-Align). ``rows``: those that entered,
        ``[tokens, hidden]``; copies of states were kept.
        """
        last = self._last
        learned = list[Tensor]()  # of each call of the projector, which of its rows
        for state, groups, size in self._kept.get(last, []):
            same = torch.zeros_like(groups, dtype=torch.bool)
            if size == rows.shape[-1] and len(rows):
                known = rows.to(state.device).float()
                away = torch.cdist(state.float(), known, compute_mode=_EXACT)
                same = (away <= SAME_STATE * token_norms(known)).any(dim=-1) & (groups == _VISUAL)
            learned.append(same)
        for stage, calls in self._kept.items():
            for place, (state, groups, size) in enumerate(calls):
                # Row by row: what entered was learned, too (Phi-4-multimodal), and what the
                # encoder handed over, if the tower puts them there (GeoPixel).
                fits = place < len(learned) and learned[place].shape == groups.shape
                if stage == self._encoder and last == self._left:
                    enters = self._kept.get(self._entered, [])
                    fits = fits and place < len(enters) and torch.equal(state, enters[place][0])
                if fits:
                    groups = torch.where(learned[place], _STRUCTURAL, groups)
                calls[place] = token_norms(state), groups, size

    @in_full_precision
    def count_entered(self, entered: Tensor) -> None:
        """Count the rows of a sound that enter the decoder, not what pads it; keep norms alone.

        ``entered``: ``[tokens, hidden]``. Where it does not tell which they are, no stage is kept.
        """
        last = self._last
        if last not in self._kept or not len(entered):
            self._kept.clear()
            return
        left = torch.cat([state for state, _, _ in self._kept[last]])
        there = torch.ones(len(left), dtype=torch.bool, device=left.device)
        if len(left) != len(entered) and left.shape[-1] == entered.shape[-1]:
            same = _unit(left.float()) @ _unit(entered.float()).T
            there = same.nan_to_num().amax(dim=-1) > SAME_ROW
        for stage, calls in list(self._kept.items()):
            states = torch.cat([state for state, _, _ in calls])
            of_each, rest = divmod(len(states), len(left))
            if rest or int(there.sum()) != len(entered):
                del self._kept[stage]
                continue
            code = torch.tensor(TOKEN_GROUPS.index(self._group), dtype=torch.int8)
            codes = torch.where(there.repeat_interleave(of_each), code.to(left.device), PADDING)
            self._kept[stage] = [(token_norms(states), codes, calls[0][2])]

    def visual_rows(self) -> dict[str, Tensor]:
        """What was kept of each stage's visual rows, ``[rows]`` or ``[rows, hidden]``."""
        rows = self.kept_rows().items()
        return {stage: kept[groups == _VISUAL] for stage, (kept, groups, _) in rows}

    @property
    def joined(self) -> str:
        """A doubt where the projector inside an encoder reads fewer rows than its blocks have.

        What joins them is taken for a part of the encoder: transformers takes GLM-4V's so.
        """
        tower, projector, read = self._parts.vision_encoder, self._parts.projector, self._rows_read
        if tower is None or projector is None or not 0 < 2 * read <= self._rows_before:
            return ""
        return (
            f"{tower.name} makes one of several rows before "
            f"{projector.name} reads them, and the stage vision_encoder is behind that; --part "
            "vision_encoder=NAME names what holds its layers without that"
        )

    @in_full_precision
    def calls_beside(self, visual: Tensor) -> tuple[int, int]:
        """How many calls of the projector return no row that enters the decoder; how many others.

        ``visual``: visual tokens at the decoder input, ``[tokens, hidden]``; states were kept.
        """
        visual, enters = _unit(visual.float()), list[bool]()
        for kept, groups, size in self._kept.get(self._left, []):
            kept = kept[groups == _VISUAL]
            if kept.any() and size == visual.shape[-1]:
                alike = _unit(kept.float()) @ visual.to(kept.device).T
                enters.append(bool(alike.nan_to_num().max() > SAME_ROW))
        return enters.count(False), enters.count(True)

    @in_full_precision
    def rows_beside(self, entered: Tensor, visual: int) -> tuple[int, int]:
        """How many rows that the projector returns are none that enters the decoder; of how many.

        (0, 0) where fewer are found than visual rows enter. ``entered``: these and structural ones,
        ``[tokens, hidden]``; ``visual``: how many are no structural ones.
        """
        entered, found, rows = _unit(entered.float()), 0, 0
        for kept, groups, size in self._kept.get(self._left, []):
            kept = kept[groups == _VISUAL]
            if size == entered.shape[-1] and len(kept):
                alike = _unit(kept.float()) @ entered.to(kept.device).T
                found += int((alike.nan_to_num().amax(dim=-1) > SAME_ROW).sum())
                rows += len(kept)
        return (rows - found, rows) if found >= visual else (0, 0)

    def leave_out_chosen(self) -> str:
        """Leave out what entered a projector that was given several states; a doubt that says so.

        It may choose one of them by itself, or read them all (Tarsier). Several widths have no norm
        in common (Med3DVLM).
        """
        if self._scales:
            assert self._parts.vision_encoder is not None
            for stage in (self._encoder, self._entered):
                self._kept.pop(stage, None)
            widths = " and ".join(map(str, self._scales))
            return (
                f"{self._parts.vision_encoder.name} hands over states of several widths, {widths}: "
                "the stages vision_encoder and projector_input are left out; --part "
                "vision_encoder=NAME may name what makes one of them"
            )
        if self._of_projector > 1:
            assert self._parts.projector is not None
            return (
                f"{self._parts.projector.name} returns {self._of_projector} states side by side: "
                "its stage holds the first alone; --part projector=NAME may name what joins them"
            )
        if self._of_several < 2 or self._kept.pop(self._entered, None) is None:
            return ""
        assert self._parts.projector is not None
        stages = "stage projector_input is"
        if self._of_encoder and self._kept.pop(self._encoder, None) is not None:
            stages = "stages vision_encoder and projector_input are"  # of two towers (URSA)
        return (
            f"{self._parts.projector.name} is given {self._of_several} states side by side, and "
            f"nothing tells which it reads: the {stages} left out; --part "
            "projector=NAME may name what projects inside it"
        )

    def _read(self, state: Tensor, left: Tensor, arguments: Mapping[Any, Any]) -> None:
        """What a module inside the encoder reads are the encoder's states; a merger's: patches."""
        del arguments
        without_them = self._rows_of_a_tile not in (0, state.shape[-2])
        if without_them or left[..., 0].numel() < state[..., 0].numel():
            self._class_rows = 0
        self._rows_read += state[..., 0].numel()
        self._encoded(state, {})

    def _entered_blocks(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        states = (t for t in tensors((args, kwargs)) if t.is_floating_point() and t.dim() > 1)
        state = next(states, torch.empty(0, 0))
        entered, self._rows_of_a_tile = state[..., 0].numel(), state.shape[-2]
        self._rows_of_blocks += entered  # a tower may run them for one picture after another
        self._rows_before += entered
        self._hidden = _hidden_rows(state, {**dict(enumerate(args)), **kwargs})

    def _cut(self, _: nn.Module, args: Any, kwargs: Any, patches: Tensor) -> None:
        """Of an encoder without blocks: as many rows as patches: no class row (Mono-InternVL)."""
        self._rows_of_a_tile = patches[0, 0].numel() + self._class_rows
        self._rows_of_blocks = self._rows_of_a_tile * len(patches)

    def _projected_of(self, output: Any) -> Tensor:
        state = _projected_state(output)
        if isinstance(output, tuple):
            found = [each for each in output if isinstance(each, Tensor) and each.dim() > 1]
            alike = [e for e in found if e.shape[-1] == state.shape[-1] and e.shape[-2] > 1]
            self._of_projector = max(self._of_projector, len(alike))
        return state

    def _handed_over(self, output: Any) -> list[Tensor]:
        if isinstance(output, list):
            self._note_scales(output)
        return _states_of(output)

    def _note_scales(self, states: Sequence[Any]) -> None:
        """States of several widths that are one picture's."""
        found = [each for each in states if isinstance(each, Tensor) and each.is_floating_point()]
        maps = any(self._as_rows(each) is not each for each in found)  # then all of them (PIIP)
        axis = -3 if maps else -1
        widths = [each.shape[axis] for each in found if each.dim() > 2 + maps]
        if len(set(widths)) > 1:
            self._scales = widths

    def _returned(self, _: Any, states: list[Tensor], arguments: Mapping[Any, Any]) -> None:
        self._of_encoder |= [state.shape for state in states].count(states[0].shape) > 1
        self._waiting.append((states, {**arguments, _HIDDEN: self._hidden}, self._rows_of_blocks))
        self._rows_of_blocks, self._hidden = 0, None
        if len(states) == 1 or self._parts.projector is None:
            self._settle(None)

    def _settle(self, entered: Tensor | None) -> None:
        """Keep, of what the encoder returned, the state that the projector takes."""
        waiting, self._waiting = self._waiting, []
        if waiting and self._which is None:
            self._which = self._place_of_tokens([states for states, *_ in waiting], entered)
        for states, arguments, rows_of_blocks in waiting:
            state = states[self._which or 0]
            rows = state[..., 0].numel()
            patches = self._rows_of_a_tile - self._class_rows
            of_layers = patches > 0 and state.shape[-2] % patches == 0  # of several (LHRS-Bot)
            of_layers = of_layers and state.shape[-2] % self._rows_of_a_tile > 0
            # Tiles in a row, cut to what each has (LLaVA-UHD v2).
            tiles = rows_of_blocks // max(self._rows_of_a_tile, 1)
            joined = tiles > rows // state.shape[-2] and state.shape[-2] % self._rows_of_a_tile > 0
            # Merged by the tower itself, as four patches to a row (ViSpeak).
            of_tile = rows // max(tiles, 1)
            merged = 0 < of_tile == state.shape[-2] < patches and patches % of_tile == 0
            if (
                of_layers
                or joined
                or merged
                or rows_of_blocks == rows + self._class_rows * rows // state.shape[-2]
            ):
                self._class_rows = 0  # they ran beside the patches, and are not handed over
            self._encoded(state, arguments)

    def _place_of_tokens(self, calls: Sequence[list[Tensor]], entered: Tensor | None) -> int:
        """Which of several states holds tokens, and not what is pooled of them.

        The rows that enter the projector are of it. Where they are of none: the first, unless it is
        a row an image beside one that has several.
        """
        first, *others = calls[0]
        if entered is not None and others:
            taken = _as_list(self._as_rows(entered))
            alike = []
            for place in range(len(calls[0])):
                rows = torch.cat([_as_list(self._as_rows(states[place])) for states in calls])
                fits = rows.shape[-1] == taken.shape[-1]
                alike.append(float(cosines(taken, rows).median()) if fits else 0.0)
            if max(alike) > SAME_ROW:
                return alike.index(max(alike))
        # How many rows an image has in each state.
        each = [s[..., 0].numel() // len(s) if s.dim() > 2 else 1 for s in calls[0]]
        pooled = each[0] == 1 and any(
            n > 1 and len(state) == len(first) for n, state in zip(each, calls[0], strict=True)
        )
        sizes = [state.numel() if n > 1 else 0 for n, state in zip(each, calls[0], strict=True)]
        return sizes.index(max(sizes)) if pooled else 0

    def _encoded(self, state: Tensor, arguments: Mapping[Any, Any]) -> None:
        rows = self._as_rows(state)
        if rows is not state:
            self._class_rows = 0  # a map has none (PIIP)
        state = rows
        self._rows_of_tile = state.shape[-2]
        self._counted = counted_rows(state, arguments)
        self._keep(self._encoder, state)

    def _projected(self, entered: Tensor, left: Tensor, arguments: Mapping[Any, Any]) -> None:
        self._settle(entered)
        self._of_several = max(self._of_several, _side_by_side(arguments))
        for given in arguments.values():
            if isinstance(given, tuple | list):
                self._note_scales(given)
        alike = [each for each in tensors(arguments) if each.shape[-1:] == entered.shape[-1:]]
        self.rows_given += sum(each[..., 0].numel() for each in alike if each.dim() > 1)
        # Older code projects zeros in the place of an image, where a prompt has none (LLaVA 1.0).
        made_up = ~entered.any()
        if self._parts.vision_encoder is None:  # the projector receives pixels
            self._counted = counted_rows(left, arguments)
        else:
            self._keep(self._entered, self._as_rows(entered), made_up)
            if merged := self._merged(entered, left, arguments):
                rows = entered.reshape(-1, merged * entered.shape[-1])
                self._keep(MERGED_INPUT, rows, made_up)
        self._keep(self._left, left, made_up)

    def _merged(self, entered: Tensor, left: Tensor, arguments: Mapping[Any, Any]) -> int:
        """How many patches, handed over in groups, leave as one row (Kimi-VL: 2 x 2); else 0.

        A projector that forms the groups itself does not tell which patches they hold.
        """
        assert self._parts.projector is not None
        patches, rest = divmod(entered[..., 0].numel(), max(left[..., 0].numel(), 1))
        given = chain.from_iterable(v if isinstance(v, list) else [v] for v in arguments.values())
        groups = (item for item in given if isinstance(item, Tensor) and item.dim() == 3)
        if patches < 2 or rest or not any(group.shape[1] == patches for group in groups):
            return 0
        modules = self._parts.projector.module.modules()
        width = patches * entered.shape[-1]
        joins = any(isinstance(m, nn.Linear) and m.in_features == width for m in modules)
        return patches if joins else 0

    def _as_rows(self, state: Tensor) -> Tensor:
        """Maps ``[..., hidden, height, width]`` as ``[..., height, width, hidden]``.

        Where nothing says so, the weights of the encoder tell which axis is the hidden one.
        """
        is_map = state.dim() > 3 and (
            self._parts.channels_first
            or (state.shape[-3] in self._widths and state.shape[-1] not in self._widths)
        )
        return state.movedim(-3, -1) if is_map else state

    def _keep(self, stage: str, state: Tensor, made_up: Tensor | None = None) -> None:
        code = TOKEN_GROUPS.index(self._group)
        groups = torch.full(state.shape[:-1], code, dtype=torch.int8, device=state.device)
        if state.shape[-2] == self._rows_of_tile:
            # Of several tiles, or levels, in a row each has its own (WeMM).
            several = self._rows_of_a_tile and state.shape[-2] % self._rows_of_a_tile == 0
            tile = self._rows_of_a_tile if several else state.shape[-2]
            tiles = groups.view(*groups.shape[:-1], -1, tile)
            tiles[..., : self._class_rows] = TOKEN_GROUPS.index(SPECIAL)
        groups = groups.flatten()
        if self._counted is not None and self._counted.numel() == groups.numel():
            groups = torch.where(self._counted.to(groups.device), groups, PADDING)
        if made_up is not None:
            groups = torch.where(made_up.to(groups.device), PADDING, groups)
        kept = self._keep_of(state).flatten(0, state.dim() - 2)
        self._kept.setdefault(stage, []).append((kept, groups, state.shape[-1]))


def _side_by_side(arguments: Mapping[Any, Any]) -> int:
    """The most states of one shape that a list or tuple among arguments holds."""
    most = 0
    for value in arguments.values():
        if isinstance(value, tuple | list):
            states = [each for each in value if isinstance(each, Tensor) and each.dim() > 1]
            alike = [each for each in states if each.shape == states[0].shape]
            most = max(most, len(alike) * bool(alike and alike[0].is_floating_point()))
    return most


def _states_of(output: Any) -> list[Tensor]:
    """The states that a module returns side by side; one where a field names it."""
    first = hidden_state_of(output)
    named = isinstance(output, Mapping) and output.get(HIDDEN_STATE) is not None
    items = output.values() if isinstance(output, Mapping) else output
    if named or not isinstance(output, Mapping | tuple):
        return [first]
    tensors_in = (item for item in items if isinstance(item, Tensor) and item is not first)
    return [first, *(t for t in tensors_in if t.is_floating_point() and t.dim() > 1)]


def _projected_state(output: Any) -> Tensor:
    """What a projector returns for the language model, and not one row an image pooled of it."""
    state, rows = hidden_state_of(output, field=PROJECTED_STATE), hidden_state_of(output)
    pooled = rows.dim() == 3 and rows.shape[1] > 1 and state.shape[:-1] == rows.shape[:1]
    return rows if pooled else state


def _first_block(encoder: nn.Module) -> nn.Module | None:
    """The first of the largest list of modules of one class."""
    lists = [
        module
        for module in encoder.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(set(map(type, module))) == 1
    ]
    return next(max(lists, key=size_of).children()) if lists else None


def _as_list(state: Tensor) -> Tensor:
    """``[..., hidden]`` as ``[rows, hidden]``."""
    return state.reshape(-1, state.shape[-1])


def _hidden_rows(state: Tensor, given: Mapping[Any, Any]) -> Tensor | None:
    """Which rows, ``[images, rows]`` bool, a mask of attention hides from all, if there is one.

    So code pads pictures of several sizes in one batch (LLaVA-UHD v2). It runs in each forward:
    unlike ``decoder_rows``, it does not wait for the device to tell which way a mask hides.
    """
    for name, mask in given.items():
        if (
            not isinstance(mask, Tensor)
            or state.dim() != 3
            or mask.shape[-1:] != state.shape[-2:-1]
        ):
            continue
        if mask.dim() in (3, 4) and "position" not in str(name):
            away = mask <= HIDES_A_KEY if mask.is_floating_point() else ~mask.bool()
            away = away.flatten(1, -2).all(1)
        elif (
            mask.shape == state.shape[:-1] and "mask" in str(name) and not mask.is_floating_point()
        ):
            away = ~mask.bool()
        else:
            continue
        away = away & ~away[:, :1]  # True may hide, too; the first row is one of the picture
        return away.expand(len(state), -1) if len(away) in (1, len(state)) else None
    return None


def counted_rows(state: Tensor, arguments: Mapping[Any, Any]) -> Tensor:
    """Which rows of ``state``, ``[..., hidden]``, are no padding: bool, ``[rows]``."""
    rows = state.shape[:-1].numel()
    counted = torch.ones(rows, dtype=torch.bool, device=state.device)
    for name, told in arguments.items():
        if not isinstance(told, Tensor) or told.numel() < 2:
            continue
        if name == _HIDDEN:
            told = told[:, -state.shape[-2] :]  # class rows before it may be gone
            if told.numel() != rows:
                continue
            there = ~told.reshape(-1)
        elif "mask" in str(name) and rows % told.numel() == 0:  # one value a row, or a tile of rows
            there = told.reshape(-1).repeat_interleave(rows // told.numel()).bool()
        elif "position" in str(name) and told.shape[:-1] == state.shape[:-1]:  # [..., axes]
            there = (told != -1).any(dim=-1).reshape(-1)
        else:
            continue
        counted &= there.to(state.device)
    return counted


@dataclass(frozen=True)
class StageNorms:
    """What ``VisionStages`` kept, on its way to the CPU. Asking for it waits until it is there."""

    stages: list[tuple[str, int]]  # and the hidden size of each, in the order they ran
    arrived: Callable[[], list[NDArray[Any]]]  # norms of each, then groups of each, [rows]
    attended_stage: str

    def rows(self) -> list[dict[str, Any]]:
        """One row a (stage, group): stage, group, hidden_size and the statistics of the norm."""
        rows = []
        found = self._by_stage()
        for stage, size in self.stages:
            norms, groups = found[stage]
            for group, mask in masks_of(groups).items():
                if group != NON_VISUAL:  # class rows are nothing beside it
                    row = statistics_of(norms[None, mask], ["norm"])
                    rows.append({"stage": stage, "group": group, "hidden_size": size, **row})
        return rows

    def attended(self, images: Sequence[int]) -> list[list[NDArray[Any]]]:
        """Norms of the states that text attends to, ``[states]`` an image of each sample."""
        found = self._by_stage()
        if self.attended_stage not in found:
            role = VISION_ENCODER if self.attended_stage == VISION_ENCODER else "projector"
            raise NormprobeError(
                f"what is taken for the {role.replace('_', ' ')} hands over nothing that text "
                "could attend to",
                f"name the module that does: --part {role}=NAME",
            )
        norms, groups = found[self.attended_stage]
        shape = (len(images), max(*images, 1), -1)
        norms, counted = norms.reshape(shape), groups.reshape(shape) != PADDING
        return [
            [norms[sample, image, counted[sample, image]] for image in range(count)]
            for sample, count in enumerate(images)
        ]

    def _by_stage(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Norms and group codes of each stage."""
        arrays, count = self.arrived(), len(self.stages)
        pairs = zip(arrays[:count], arrays[count:], strict=True)
        return {stage: pair for (stage, _), pair in zip(self.stages, pairs, strict=True)}


#: Rows that are looked for among what a part hands over, evenly over all of them.
_LOOKED_FOR = 64

#: The cosine of a visual token and of the row that it comes from: 1 but for rounding. It stays
#: above 1 - 2 ** -11 in bfloat16; other rows of a projector are far below.
SAME_ROW = 0.999


def wrong_part(
    parts: Parts, handed_over: dict[str, Tensor], visual: Tensor
) -> tuple[str, str] | None:
    """Which part looks wrong by one batch with an image, and why.

    Args:
        parts: of a model whose visual tokens have rows of their own in the sequence.
        handed_over: rows ``[rows, hidden]`` by stage, of ``VisionStages.visual_rows``.
        visual: visual tokens at the decoder input, ``[tokens, hidden]``, without structural ones.

    Returns:
        The role of the part, and what it does that it should not; None: all looks right.
    """
    encoder, projector = (
        (part, handed_over.get(stage))
        for part, stage in (
            (parts.vision_encoder, VISION_ENCODER),
            (parts.projector, PROJECTOR_OUTPUT),
        )
    )
    for role, (part, rows) in (("vision_encoder", encoder), ("projector", projector)):
        never_called = part is None or isinstance(part.module, nn.ModuleList)
        if rows is None and not never_called:
            return role, "hands over nothing before decoder layer 1, though the prompt has an image"
    encoded, projected = encoder[1], projector[1]
    taken = handed_over.get(PROJECTOR_INPUT)
    # A learned newline may follow each line before the projector; a merger takes four rows for one.
    if encoded is not None and taken is not None and 2 * len(encoded) < len(taken):
        return (
            "vision_encoder",
            f"hands over {len(encoded)} rows, and the projector takes {len(taken)}",
        )
    if projected is None or parts.behind or parts.fusion in (ADDED, CROSS_ATTENTION):
        return None
    if len(projected) < len(visual):
        return (
            "projector",
            f"hands over {len(projected)} rows, and {len(visual)} visual tokens enter the decoder",
        )
    if projected.shape[-1] != visual.shape[-1]:
        return (
            "projector",
            f"hands over rows of size {projected.shape[-1]}, and the decoder reads "
            f"{visual.shape[-1]}",
        )
    cosine = float(cosines(visual, projected).min())
    if cosine < SAME_ROW:
        return (
            "projector",
            "hands over other rows than enter the decoder at visual places: the cosine of one with "
            f"the nearest is {cosine:.2f}, expected 1",
        )
    return None


def share_of_rows(projected: Tensor | None, visual: Tensor) -> float:
    """Of the visual tokens that are looked at, the share that are rows of a projector."""
    if projected is None or projected.shape[-1] != visual.shape[-1] or not len(projected):
        return 0.0
    return float((cosines(visual, projected) >= SAME_ROW).float().mean())


def are_among(rows: Tensor, others: Tensor) -> bool:
    """Whether each row has the direction of another one."""
    return rows.shape[-1] == others.shape[-1] and bool(cosines(rows, others).min() > SAME_ROW)


def is_one_of_several(projected: Tensor | None, visual: Tensor, *, named: bool = False) -> bool:
    """Whether all rows of a projector are visual tokens, to which another module adds some.

    ``named``: it was named by hand, and may make fewer than half of them.
    """
    if projected is None or projected.shape[-1] != visual.shape[-1]:
        return False
    fewer = len(visual) > len(projected) and (named or 2 * len(projected) > len(visual))
    return fewer and bool(cosines(projected, visual).min() >= SAME_ROW)


@in_full_precision
def cosines(wanted: Tensor, rows: Tensor) -> Tensor:
    """Of some rows the cosine of each with the nearest of others; 1 where there are none."""
    wanted = wanted[wanted.isfinite().all(-1) & (wanted != 0).any(-1)].float()
    if not len(wanted):
        return torch.ones(1)
    places = torch.linspace(0, len(wanted) - 1, min(len(wanted), _LOOKED_FOR)).long()
    looked_for = _unit(wanted[places.to(wanted.device)])
    rows = _unit(rows.to(wanted)).nan_to_num()
    nearest = rows[(looked_for @ rows.T).argmax(-1)]
    return (looked_for * nearest).sum(-1)


def _unit(rows: Tensor) -> Tensor:
    """Each row at length 1; by its largest number first, for squares may overflow."""
    return nn.functional.normalize(rows / rows.abs().amax(-1, keepdim=True), dim=-1)
