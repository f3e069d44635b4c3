"""The way from pixels to the decoder: what its parts hand over, reduced as the modules return."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.failures import is_native
from normprobe.hooks import in_full_precision, on_call, on_call_as_given
from normprobe.model.class_rows import ClassRows, encoder_blocks
from normprobe.model.find.parts import PROJECTS_SOUND, Parts
from normprobe.model.handed_rows import SAME_ROW, cosines, enter_among
from normprobe.model.stage_norms import StageNorms
from normprobe.model.stage_states import (
    HIDDEN_ROWS,
    counted_rows,
    most_side_by_side,
    projected_state,
    returned_states,
    states_apart,
)
from normprobe.model.structural_states import SAME_STATE
from normprobe.model.tracing.recording import tensors
from normprobe.schema import (
    AUDIO,
    AUDIO_ENCODER,
    AUDIO_PROJECTOR_INPUT,
    AUDIO_PROJECTOR_OUTPUT,
    MERGED_INPUT,
    PADDING,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    STRUCTURAL,
    TOKEN_GROUPS,
    VIDEO,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.statistics.token_metrics import token_norms
from normprobe.tensors import to_host
from normprobe.versions import reader_of_encoder

_VISUAL, _STRUCTURAL = map(TOKEN_GROUPS.index, (VISUAL, STRUCTURAL))

#: Distances of near rows, to all digits.
_EXACT = "donot_use_mm_for_euclid_dist"

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
        self._classes = ClassRows(parts.class_rows)
        encoder = parts.vision_encoder
        weights = encoder.module.parameters() if encoder is not None else ()
        inside = list(parts.projector.module.modules()) if parts.projector is not None else []
        # Whether the projector is around the encoder: pixels enter it (Nemotron-Parse).
        self._holds_encoder = encoder is not None and any(encoder.module is m for m in inside[1:])
        # Of norms, biases and convolutions, of which the last may have no bias (OneChart). A gate
        # is one number, and no width (MOSS-Video).
        widths = {len(weight) for weight in weights if weight.dim() in (1, 4)}
        self._widths = widths - {1}
        # Sizes that its norms read; a projector inside it may read what joins them (Moondream).
        blocks = encoder.module.modules() if encoder is not None else ()
        norms = [m for m in blocks if m not in inside and "norm" in type(m).__name__.lower()]
        self._normed = {len(w) for m in norms for w in m.parameters() if w.dim() == 1}
        self._keep_of = keep
        self._counted: Tensor | None = None  # [rows of what is given patches] bool
        self._rows_read = 0  # by a projector inside the encoder
        self._of_no_norm = 0  # their size, where the encoder has no norm of it
        self._waiting: list[tuple[list[Tensor], Mapping[Any, Any], int, Tensor | None]] = []
        self._of_last_layer: Tensor | None = None  # of a list of what all layers left (MolmoAct)
        self._which: int | None = None  # of several states that the encoder returns
        self._of_several = 0  # states that the projector was given side by side
        self.rows_given = 0  # of all states that the projector was given (Ola's are two)
        self._of_projector = 0  # states that the projector returns side by side
        self._of_encoder = False  # whether the encoder returned them so
        self._of_tower = 0  # states of any width that the encoder returned
        self._joined = False  # whether the projector joins what it is given
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
                states = self._handed_over if own else returned_states
                handles.append(watch(encoder.module, self._returned, states))
            else:
                handles.append(on_call(reader, self._read))
            may_pad = self._group == VISUAL and own
            reads_inside = reader is not None and self._group == VISUAL
            if self._classes.count or may_pad or reads_inside:
                handles += self._classes.watch(encoder.module)
        if projector is not None:
            native = is_native(projector.module)
            reads = projected_state if native else self._projected_of
            watched = projector.module, self._projected, reads
            handles += [on_call(*watched)] if native else on_call_as_given(*watched)
        return handles

    def norms(self) -> StageNorms:
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
            there = enter_among(left, entered)
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
        if tower is None or projector is None:
            return ""
        if 0 < 2 * read <= self._classes.entered:
            return (
                f"{tower.name} makes one of several rows before "
                f"{projector.name} reads them, and the stage vision_encoder is behind that; --part "
                f"vision_encoder=NAME names what holds its layers without that{self._or_last}"
            )
        if self._of_no_norm:
            return (
                f"{projector.name} reads rows of size {self._of_no_norm}, which no norm of "
                f"{tower.name} has: states are joined before that, and the stage vision_encoder is "
                "behind that; --part vision_encoder=NAME names what holds its layers without that"
                f"{self._or_last}"
            )
        return ""

    @property
    def _or_last(self) -> str:
        """What else can be named: where layers are walked, nothing that holds them runs."""
        tower = self._parts.vision_encoder
        names = [*encoder_blocks(tower.module)] if tower is not None else []
        return f", or the last of them, {tower.name}.{names[-1]}" if tower and names else ""

    @in_full_precision
    def calls_beside(self, visual: Tensor) -> tuple[int, int]:
        """How many calls of the projector return no row that enters the decoder; how many others.

        ``visual``: visual tokens at the decoder input, ``[tokens, hidden]``; states were kept.
        """
        enters = list[bool]()
        for kept, groups, size in self._kept.get(self._left, []):
            kept = kept[groups == _VISUAL]
            if kept.any() and size == visual.shape[-1]:
                enters.append(bool(enter_among(kept, visual).any()))
        return enters.count(False), enters.count(True)

    @in_full_precision
    def rows_beside(self, entered: Tensor, visual: int) -> tuple[int, int]:
        """How many rows that the projector returns are none that enters the decoder; of how many.

        (0, 0) where fewer are found than visual rows enter. ``entered``: these and structural ones,
        ``[tokens, hidden]``; ``visual``: how many are no structural ones.
        """
        found = rows = 0
        for kept, groups, size in self._kept.get(self._left, []):
            kept = kept[groups == _VISUAL]
            if size == entered.shape[-1] and len(kept):
                found += int(enter_among(kept, entered).sum())
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
        tower = self._parts.vision_encoder
        if self._holds_encoder and tower is not None and self._parts.projector is not None:
            return (
                f"{self._parts.projector.name} holds {tower.name}, and is given pixels: the stage "
                "projector_input is left out; --part projector=NAME may name what projects inside"
            )
        if self._joined and self._of_tower > 1 and tower is not None:
            return (
                f"{tower.name} hands over {self._of_tower} states, which the projector joins: the "
                "stage vision_encoder holds one of them"
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
        self._classes.read_inside(state, left)
        self._rows_read += state[..., 0].numel()
        if self._normed and state.shape[-1] not in self._normed:
            self._of_no_norm = state.shape[-1]
        self._encoded(state, {})

    def _projected_of(self, output: Any) -> Tensor:
        state = projected_state(output)
        if isinstance(output, tuple):
            found = [each for each in output if isinstance(each, Tensor) and each.dim() > 1]
            alike = [e for e in found if e.shape[-1] == state.shape[-1] and e.shape[-2] > 1]
            self._of_projector = max(self._of_projector, len(alike))
        return state

    def _handed_over(self, output: Any) -> list[Tensor]:
        if isinstance(output, list):
            self._note_scales(output)
            if self._classes.are_of_layers(output):
                self._of_last_layer = output[-1]
        return returned_states(output)

    def _note_scales(self, states: Sequence[Any]) -> None:
        """States of several widths that are one picture's."""
        found = [each for each in states if isinstance(each, Tensor) and each.is_floating_point()]
        maps = any(self._as_rows(each) is not each for each in found)  # then all of them (PIIP)
        axis = -3 if maps else -1
        widths = [each.shape[axis] for each in found if each.dim() > 2 + maps]
        if len(set(widths)) > 1:
            self._scales = widths

    def _returned(self, _: Any, states: list[Tensor], arguments: Mapping[Any, Any]) -> None:
        self._of_tower = max(self._of_tower, len(states))
        self._of_encoder |= [state.shape for state in states].count(states[0].shape) > 1
        rows_of_blocks, hidden = self._classes.since_last()
        last, self._of_last_layer = self._of_last_layer, None
        self._waiting.append((states, {**arguments, HIDDEN_ROWS: hidden}, rows_of_blocks, last))
        if (len(states) == 1 and last is None) or self._parts.projector is None:
            self._settle(None)

    def _settle(self, entered: Tensor | None) -> None:
        """Keep, of what the encoder returned, the state that the projector takes."""
        waiting, self._waiting = self._waiting, []
        if waiting and self._which is None:
            self._which = self._place_of_tokens([states for states, *_ in waiting], entered)
        of_last = [last for *_, last in waiting if last is not None]
        # Levels one behind the other enter the projector all (WeMM); else the last counts.
        levels = entered is not None and all(
            entered.shape[-1] == last.shape[-1]
            and entered[..., 0].numel() > sum(each[..., 0].numel() for each in of_last)
            for last in of_last
        )
        for states, arguments, rows_of_blocks, last in waiting:
            state = states[self._which or 0] if last is None or levels else last
            self._classes.compare(state, rows_of_blocks)
            self._encoded(state, arguments)

    def _place_of_tokens(self, calls: Sequence[list[Tensor]], entered: Tensor | None) -> int:
        """Which of several states holds tokens, and not what is pooled of them.

        The rows that enter the projector are of it. Where they are of none: the first, unless it is
        a row an image beside one that has several.
        """
        first, *others = calls[0]
        if entered is not None and others:
            taken = self._as_rows(entered).flatten(0, -2)
            alike = []
            for place in range(len(calls[0])):
                rows = torch.cat([self._as_rows(states[place]).flatten(0, -2) for states in calls])
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
        self._classes.hand_over(rows.shape[-2], of_map=rows is not state)
        self._counted = counted_rows(rows, arguments)
        self._keep(self._encoder, rows)

    def _projected(self, entered: Tensor, left: Tensor, arguments: Mapping[Any, Any]) -> None:
        assert self._parts.projector is not None
        if isinstance(self._parts.projector.module, nn.Conv1d):
            entered, left = entered.mT, left.mT  # rows are its second axis (Nemotron-Parse)
        self._settle(entered)
        self._of_several = max(self._of_several, most_side_by_side(arguments))
        for given in arguments.values():
            if isinstance(given, tuple | list):
                self._note_scales(given)
        alike = [each for each in tensors(arguments) if each.shape[-1:] == entered.shape[-1:]]
        self.rows_given += sum(each[..., 0].numel() for each in alike if each.dim() > 1)
        # Older code projects zeros in the place of an image, where a prompt has none (LLaVA 1.0).
        made_up = ~entered.any()
        if len(apart := self._apart(arguments, entered)) > 1:
            if self._reads(sum(each.shape[-1] for each in apart)):
                entered = torch.cat(apart, dim=-1)  # as it does itself, in some order
                self._joined = True
            else:
                self._of_several = max(self._of_several, len(apart))
        if self._parts.vision_encoder is None:  # the projector receives pixels
            self._counted = counted_rows(left, arguments)
        else:
            if not self._holds_encoder:
                self._keep(self._entered, self._as_rows(entered), made_up)
            if merged := self._merged(entered, left, arguments):
                rows = entered.reshape(-1, merged * entered.shape[-1])
                self._keep(MERGED_INPUT, rows, made_up)
        self._keep(self._left, left, made_up)

    def _merged(self, entered: Tensor, left: Tensor, arguments: Mapping[Any, Any]) -> int:
        """How many patches, handed over in groups, leave as one row (Kimi-VL: 2 x 2); else 0.

        A projector that forms the groups itself does not tell which patches they hold.
        """
        patches, rest = divmod(entered[..., 0].numel(), max(left[..., 0].numel(), 1))
        given = chain.from_iterable(v if isinstance(v, list) else [v] for v in arguments.values())
        groups = (item for item in given if isinstance(item, Tensor) and item.dim() == 3)
        if patches < 2 or rest or not any(group.shape[1] == patches for group in groups):
            return 0
        return patches if self._reads(patches * entered.shape[-1]) else 0

    def _apart(self, arguments: Mapping[Any, Any], entered: Tensor) -> list[Tensor]:
        """States that a projector of own code is given side by side, as arguments."""
        assert self._parts.projector is not None
        native = is_native(self._parts.projector.module)
        return [] if native else states_apart(arguments, entered)

    def _reads(self, width: int) -> bool:
        """Whether a weight of the projector reads states of this width."""
        assert self._parts.projector is not None
        modules = self._parts.projector.module.modules()
        return any(isinstance(m, nn.Linear) and m.in_features == width for m in modules)

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
        self._classes.mark(groups)
        groups = groups.flatten()
        if self._counted is not None and self._counted.numel() == groups.numel():
            groups = torch.where(self._counted.to(groups.device), groups, PADDING)
        if made_up is not None:
            groups = torch.where(made_up.to(groups.device), PADDING, groups)
        kept = self._keep_of(state).flatten(0, state.dim() - 2)
        self._kept.setdefault(stage, []).append((kept, groups, state.shape[-1]))
