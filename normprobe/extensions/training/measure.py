"""What one step of a training tells: the states of its forward, gradients and updates of weights.

Hooks on the decoder layers reduce each state to numbers a token while it is there. Behind the last
layer these become sums by token group, and one copy of them to the host begins, which is awaited
at the end of the step. No hook is on the model outside of a forward that is measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normprobe.hooks import in_full_precision
from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.align.norm import NAME as ALIGNMENT_NORM
from normprobe.model.find.parts import Parts
from normprobe.model.measured_model import MeasuredBatch, layers_of_all_depths
from normprobe.model.provenance import text_ids
from normprobe.schema import GEOMETRIC_RATIOS, TEXT, TOKEN_GROUPS, VIDEO, VISUAL
from normprobe.statistics.token_metrics import (
    ScaledState,
    in_group,
    lengths_of,
    metrics_of,
    moved,
    state_of,
    widened,
)
from normprobe.tensors import to_host, with_tensors

#: Of a deeper decoder so many layers, of all depths, have angles and updates; all have norms.
FULL_LAYERS = 12

_METRICS = [0, 2, 4]  # of ``TOKEN_METRICS``: norm, angle, relative_update

#: Numbers of a weight that tell how far a step moves it, at most.
_SAMPLED = 4096


class ForwardReader:
    """Reads the states of one forward.

    Attributes:
        skipped: layers that overwrote what entered them: of these no update is known.
        varies: how visual tokens differ at the decoder input, relative to their size: the most
            within a sample, negative where it has fewer than two, and the means of samples.
        pixels: largest spread of pixels within a picture, the smallest and the largest of all
            pixels; then sums of the pixels of each sample, or of all; empty where there are none.
        prompts: a number that tells these prompts from others.
    """

    def __init__(self, batch: MeasuredBatch) -> None:
        self._batch, self._read = batch, batch.model.read_stream
        self._full = layers_of_all_depths(len(batch.model.decoder_layers), FULL_LAYERS)
        self._groups, self._dtype = batch.prompt_groups, torch.float32
        self._entered: tuple[Tensor, int, ScaledState] | None = None  # a state, its version
        self._left: tuple[Tensor, int, ScaledState] | None = None
        self._tokens: dict[int, Tensor] = {}  # by layer: [3, batch, seq]
        self._spreads: tuple[Tensor, ...] = ()
        self.skipped: list[int] = []

    @torch.no_grad()
    @in_full_precision
    def enter(self, state: Tensor) -> None:
        """The state that enters a layer; that of layer 1 is the decoder input."""
        left, self._left = self._left, None
        if left is None or left[0] is not state or left[1] != state._version:
            left = state, state._version, state_of(self._read(state))
        self._entered = left
        if not self._tokens:
            x = self._read(state)
            self._groups, self._dtype = self._batch.groups_at(x), state.dtype
            self._tokens[0] = _norms_alone(left[2].norms)
            visual = in_group(VISUAL, self._groups)
            self._spreads = _visual_spreads(widened(x), visual)

    @torch.no_grad()
    @in_full_precision
    def leave(self, number: int, output: Tensor) -> None:
        """The state that leaves a layer."""
        entered, self._entered = self._entered, None
        if entered is None or number in self._tokens:
            return
        h = self._read(output)
        left = state_of(h)
        self._left = output, output._version, left
        state, version, before = entered
        if state._version != version:
            self.skipped.append(number)
        if state._version != version or number not in self._full:
            self._tokens[number] = _norms_alone(left.norms)
            return
        before = before.to(h.device)
        lengths = lengths_of(before, left, moved(before, left))
        self._tokens[number] = metrics_of(lengths)[_METRICS]

    def send(self, inputs: Mapping[str, Any]) -> bool:
        """Start the copy to the host; False where no decoder layer ran."""
        self._left = None
        if not self._tokens:
            return False
        tokens = [metrics.to(self._groups.device) for metrics in self._tokens.values()]
        facts = _pixel_facts(inputs, self._batch.model.parts, len(self._groups))
        self._arrived = to_host([self._groups, torch.stack(tokens), *self._spreads, *facts])
        self._tokens = dict.fromkeys(self._tokens, self._groups)
        return True

    def ids(self) -> list[list[int]]:
        """Of each sample, the ids that the decoder reads; empty where there are none."""
        ids, _ = text_ids(self._batch.inputs, self._batch.model.parts)
        return [] if ids is None else ids.tolist()

    def rows(self) -> pd.DataFrame:
        """One row a layer and token group. The host waits for the device.

        A token whose state is not finite is counted, and enters no mean.
        """
        groups, tokens, within, between, self.prompts, *self.pixels = self._arrived()
        self.varies = float(within), float(between)
        norm, angle, update = tokens.astype(float).swapaxes(0, 1).reshape(3, -1)
        finite = np.isfinite(norm)
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = {"norm_mean": norm, "norm_geometric_mean": np.log(norm)}
        columns |= {"angle_mean": angle, "relative_update_mean": update}
        table = pd.DataFrame(columns).replace([np.inf, -np.inf], np.nan)
        table.loc[~finite] = np.nan
        table["layer"] = np.repeat([*self._tokens], groups.size)
        table["group"] = np.tile(groups.ravel(), len(self._tokens))
        table["nonfinite"] = ~finite
        if (of_videos := table[table["group"] == TOKEN_GROUPS.index(VIDEO)]).size:  # visual, too
            table = pd.concat([table, of_videos.assign(group=TOKEN_GROUPS.index(VISUAL))])
        found = table[table["group"] >= 0].groupby(["layer", "group"])
        rows = found.mean().assign(
            tokens=found["norm_mean"].count(),
            nonfinite=found["nonfinite"].sum(),
            norm_max=found["norm_mean"].max(),
            dtype=str(self._dtype).removeprefix("torch."),
        )
        rows["norm_geometric_mean"] = np.exp(rows["norm_geometric_mean"])
        rows = rows.reset_index()
        rows["group"] = [TOKEN_GROUPS[code] for code in rows["group"]]
        text = rows[rows["group"] == TEXT].set_index("layer")["norm_geometric_mean"]
        ratio = rows["norm_geometric_mean"] / rows["layer"].map(text)
        return rows.assign(**{GEOMETRIC_RATIOS["norm"]: ratio})


def _norms_alone(norms: Tensor) -> Tensor:
    return torch.stack([norms, *[torch.full_like(norms, torch.nan)] * (len(_METRICS) - 1)])


def _visual_spreads(x: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
    """``ForwardReader.varies``."""
    mask, count = visual.unsqueeze(-1), visual.sum(-1)
    x = torch.where(mask, x, 0.0)
    means = x.sum(1) / count.clamp_min(1)[:, None]
    away = torch.where(mask, x - means[:, None], 0.0).square().sum((1, 2))
    several = count > 1
    within = torch.where(several, away.sqrt() / x.square().sum((1, 2)).sqrt(), -torch.inf)
    has = count > 0
    center = means.sum(0) / has.sum()
    apart = torch.where(has[:, None], means - center, 0.0).square().sum().sqrt()
    between = torch.where(has.sum() > 1, apart / means.square().sum().sqrt(), torch.nan)
    zero = x.abs().amax() == 0
    return torch.where(zero & several.any(), 0.0, within.amax()), between


def _pixel_facts(inputs: Mapping[str, Any], parts: Parts, samples: int) -> Iterator[Tensor]:
    """A number that tells prompts apart; then ``ForwardReader.pixels``."""
    ids, _ = text_ids(inputs, parts)
    ids = torch.zeros(1) if ids is None else ids.flatten()
    yield (ids * torch.arange(1, len(ids) + 1, device=ids.device)).sum()
    pixels: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        pixels.extend([tensor] * tensor.is_floating_point())
        return tensor

    with_tensors(pixel_inputs(inputs), keep)
    if not pixels:
        return
    ranges = [_range(tensor) for tensor in pixels]
    extremes = [torch.stack([each.amin(), each.amax()]).float() for each in pixels]
    ends = torch.stack([each.to(ranges[0].device) for each in extremes])
    spread = torch.stack([each.to(ranges[0].device) for each in ranges]).amax()
    yield torch.stack([spread, ends[:, 0].amin(), ends[:, 1].amax()])
    first = pixels[0].float()
    yield first.flatten(1).sum(1) if len(first) == samples else first.sum().reshape(1)


def _range(pixels: Tensor) -> Tensor:
    """The largest difference between two places of one channel: 0 of blank pictures.

    The last two axes are places, or, of patches in a row, the last but one is.
    """
    axes = (-2, -1) if pixels.dim() >= 4 else (-2,)
    return (pixels.amax(axes) - pixels.amin(axes)).amax().float()


# --- gradients and updates -----------------------------------------------------------------------


def part_weights(model: nn.Module, parts: Parts) -> dict[str, list[nn.Parameter]]:
    """The weights of each part that are trained; a projector inside the encoder is its own part."""
    modules = {role: part.module for role, part in parts}
    for module in model.modules():
        if isinstance(norm := getattr(module, ALIGNMENT_NORM, None), nn.Module):
            modules[ALIGNMENT_NORM] = norm
    weights = {role: list(module.parameters()) for role, module in modules.items()}
    inside = {id(weight) for weight in weights.get("projector", ())}
    if "vision_encoder" in weights:
        encoder = weights["vision_encoder"]
        weights["vision_encoder"] = [weight for weight in encoder if id(weight) not in inside]
    return {
        role: trained
        for role, those in weights.items()
        if (trained := [weight for weight in those if weight.requires_grad])
    }


class UpdateReader:
    """Reads gradients when an optimizer is about to step, and how far the weights then move.

    Args:
        weights: by part, as they are before the first of them moves.
    """

    def __init__(self, weights: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self._weights = weights
        self._gradients: dict[nn.Parameter, Tensor] = {}  # norms, of float32
        self._reached = set[nn.Parameter]()
        self._before = {part: _sampled(those) for part, those in weights.items()}

    def read(self, optimizer: Optimizer) -> None:
        """Read the gradients of an optimizer's weights; the first time, those of all weights.

        There may be several: an optimizer a part, each unscaled by itself, or one a weight, which
        steps inside the backward and clears the gradient behind it.
        """
        groups = optimizer.param_groups
        held = {id(weight) for group in groups for weight in group["params"]}
        wanted = [
            weight
            for weight in dict.fromkeys(each for those in self._weights.values() for each in those)
            if not self._gradients or id(weight) in held
        ]
        if wanted:
            self._reached |= {
                each for each in wanted if each.grad is not None or hasattr(each, "_hp_mapping")
            }
            self._gradients |= dict(zip(wanted, _gradient_norms(wanted, optimizer), strict=True))

    @property
    def any_gradient(self) -> bool:
        """Whether a weight had one when its optimizer was about to step."""
        return bool(self._reached)

    def rows(self) -> pd.DataFrame:
        """One row a part: the norm of its gradient, and update over weight."""
        numbers = []
        for part, before in self._before.items():
            after = _sampled(self._weights[part])
            gradients = [self._gradients[weight].to(after.device) for weight in self._weights[part]]
            moved = (after - before).norm() / before.norm()
            digests = _digest(before), _digest(after)
            numbers.append(torch.stack([torch.stack(gradients).norm(), moved, *digests]))
        columns = ["gradient_norm", "update_ratio", "weights_before", "weights_after"]
        arrays = np.array(to_host(numbers)()).reshape(-1, len(columns))
        rows = pd.DataFrame(arrays, columns=columns)
        rows.insert(0, "stage", [*self._weights])
        reached = [any(each in self._reached for each in those) for those in self._weights.values()]
        return rows.assign(reached=reached)

    def digests(self) -> dict[str, float]:
        """By part, a number that tells its weights from others."""
        numbers = to_host([_digest(before) for before in self._before.values()])()
        return {part: float(each) for part, each in zip(self._before, numbers, strict=True)}


def _digest(sampled: Tensor) -> Tensor:
    places = torch.arange(1, len(sampled) + 1, device=sampled.device) / len(sampled)
    return (sampled * places).sum()


@torch.no_grad()
def _gradient_norms(weights: Sequence[nn.Parameter], optimizer: Optimizer) -> Tensor:
    """The L2 norm of each weight's gradient, of a sharded one of all shards; 0 of none."""
    in_pieces = any(hasattr(weight, "_hp_mapping") for weight in weights)
    zero = torch.zeros((), device=_local(weights[0]).device)
    norms = []
    for weight in weights:
        gradient = _piece(weight, optimizer) if in_pieces else weight.grad
        if gradient is None:
            norms.append(zero)
            continue
        dense = gradient.coalesce().values() if gradient.is_sparse else gradient
        of_one: Any = torch.linalg.vector_norm(dense, dtype=torch.float32)
        whole = of_one.full_tensor() if hasattr(of_one, "full_tensor") else of_one
        norms.append(whole.to(zero.device))
    found = torch.stack(norms)
    if in_pieces:
        torch.distributed.all_reduce(square := found.square())
        return square.sqrt()
    return found


def _piece(weight: Any, optimizer: Optimizer) -> Tensor | None:
    """Of a gradient that ZeRO keeps in pieces, the one of this process."""
    if (held := weight._hp_mapping) is None:
        return None
    (flat,) = optimizer.param_groups[held.param_group_index]["params"]
    address = held.hp_fragment_address
    return None if flat.grad is None else flat.grad.narrow(0, address.start, address.numel)


@torch.no_grad()
def _sampled(weights: Sequence[nn.Parameter]) -> Tensor:
    """Numbers spread evenly over each matrix (of a norm, its vectors), scaled to have its norm.

    The distance between them shares no factor with the columns: else few of these would be seen.
    """
    taken = []
    # Matrices are what a learning rate is made for.
    for weight in [weight for weight in weights if weight.dim() > 1] or weights:
        flat = _local(weight).flatten()
        stride, columns = -(-flat.numel() // _SAMPLED) or 1, weight.shape[-1:].numel()
        while math.gcd(stride, columns) > 1:
            stride += 1
        some = flat[::stride].float()
        taken.append(some * math.sqrt(flat.numel() / max(some.numel(), 1)))
    return torch.cat([some.to(taken[0].device) for some in taken])


def _local(weight: Tensor) -> Tensor:
    """Of a sharded weight, the shard of this process."""
    shard: Any = weight.detach()
    local: Tensor = shard.to_local() if hasattr(shard, "to_local") else shard
    return local
