"""What one step of a training tells: the states of its forward, gradients and updates of weights.

Hooks on the decoder layers reduce each state to numbers a token while it is there. Behind the last
layer these become sums by token group, and one copy of them to the host begins, which is awaited
at the end of the step. No hook is on the model outside of a forward that is measured.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.align.norm import NAME as ALIGNMENT_NORM
from normprobe.model.find.parts import Parts
from normprobe.model.measured_model import MeasuredBatch, layers_of_all_depths, text_ids
from normprobe.schema import GEOMETRIC_RATIOS, TEXT, TOKEN_GROUPS, VIDEO, VISUAL
from normprobe.statistics.token_metrics import in_group, token_metrics, token_norms, widened
from normprobe.tensors import to_host, with_tensors

#: Of a deeper decoder so many layers, of all depths, have angles and updates; all have norms.
FULL_LAYERS = 12

_METRICS = [0, 2, 4]  # of ``TOKEN_METRICS``: norm, angle, relative_update

#: Numbers of a weight that tell how far a step moves it, at most.
_SAMPLED = 4096


def _aside(method: Callable[..., None]) -> Callable[..., None]:
    """A method that leaves no trace in autograd, and computes in full precision."""

    @wraps(method)
    def called(self: "ForwardReader", *args: Any) -> None:
        device = args[-1].device.type
        with torch.no_grad(), torch.autocast(device, enabled=False):
            method(self, *args)

    return called


class ForwardReader:
    """Reads the states of one forward.

    Attributes:
        skipped: layers that overwrote what entered them: of these no update is known.
        varies: how visual tokens differ at the decoder input, relative to their size: the most
            within a sample, negative where it has fewer than two, and the means of samples.
        pixels: smallest and largest spread of pixels within a picture, then sums of the pixels of
            each sample, or of all; empty where there are none.
        prompts: a number that tells these prompts from others.
    """

    def __init__(self, batch: MeasuredBatch) -> None:
        self._batch, self._read = batch, batch.model.read_stream
        self._full = layers_of_all_depths(len(batch.model.decoder_layers), FULL_LAYERS)
        self._groups, self._dtype = batch.prompt_groups, torch.float32
        self._entered: tuple[Tensor, int, Tensor] | None = None  # state, its version, its norms
        self._left: tuple[Tensor, int, Tensor] | None = None
        self._tokens: dict[int, Tensor] = {}  # by layer: [3, batch, seq]
        self._spreads: tuple[Tensor, ...] = ()
        self.skipped: list[int] = []

    @_aside
    def enter(self, state: Tensor) -> None:
        """The state that enters a layer; that of layer 1 is the decoder input."""
        left, self._left = self._left, None
        if left is None or left[0] is not state or left[1] != state._version:
            left = state, state._version, token_norms(self._read(state))
        self._entered = left
        if not self._tokens:
            x = self._read(state)
            self._groups, self._dtype = self._batch.groups_at(x), state.dtype
            self._tokens[0] = _norms_alone(left[2])
            visual = in_group(VISUAL, self._groups)
            self._spreads = _visual_spreads(widened(x), visual)

    @_aside
    def leave(self, number: int, output: Tensor) -> None:
        """The state that leaves a layer."""
        entered, self._entered = self._entered, None
        if entered is None or number in self._tokens:
            return
        h = self._read(output)
        norms = token_norms(h)
        self._left = output, output._version, norms
        state, version, before = entered
        if state._version != version:
            self.skipped.append(number)
        if state._version != version or number not in self._full:
            self._tokens[number] = _norms_alone(norms)
            return
        x = self._read(state).to(h.device)
        moved = token_metrics(x, h, before.to(h.device), norms)
        self._tokens[number] = moved.metrics[_METRICS]

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
    yield torch.stack([ends.to(ranges[0].device) for ends in ranges]).amax()
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
    """Reads gradients when the optimizer is about to step, and how far the weights then move."""

    def __init__(self, weights: Mapping[str, Sequence[nn.Parameter]], optimizer: Optimizer) -> None:
        self._weights = weights
        self._gradients = {
            part: _gradient_norm(those, optimizer) for part, those in weights.items()
        }
        self._before = {part: _sampled(those) for part, those in weights.items()}

    def rows(self) -> pd.DataFrame:
        """One row a part: the norm of its gradient, and update over weight."""
        numbers = []
        for part, before in self._before.items():
            moved = (_sampled(self._weights[part]) - before).norm() / before.norm()
            numbers.append(torch.stack([self._gradients[part], moved]))
        columns = ["gradient_norm", "update_ratio"]
        rows = pd.DataFrame(np.array(to_host(numbers)()).reshape(-1, 2), columns=columns)
        rows.insert(0, "stage", [*self._weights])
        return rows


@torch.no_grad()
def _gradient_norm(weights: Sequence[nn.Parameter], optimizer: Optimizer) -> Tensor:
    """The L2 norm of all gradients of some weights, of sharded ones of all shards; 0 of none."""
    norms = [torch.zeros((), device=_local(weights[0]).device)]
    in_pieces = any(hasattr(weight, "_hp_mapping") for weight in weights)
    gradients = (_piece(each, optimizer) if in_pieces else each.grad for each in weights)
    for gradient in (each for each in gradients if each is not None):
        dense = gradient.coalesce().values() if gradient.is_sparse else gradient
        of_one: Any = torch.linalg.vector_norm(dense, dtype=torch.float32)
        whole = of_one.full_tensor() if hasattr(of_one, "full_tensor") else of_one
        norms.append(whole.to(norms[0].device))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if in_pieces:
        torch.distributed.all_reduce(square := norm.square())
        return square.sqrt()
    return norm


def _piece(weight: Any, optimizer: Optimizer) -> Tensor | None:
    """Of a gradient that ZeRO keeps in pieces, the one of this process."""
    if (held := weight._hp_mapping) is None:
        return None
    (flat,) = optimizer.param_groups[held.param_group_index]["params"]
    address = held.hp_fragment_address
    return None if flat.grad is None else flat.grad.narrow(0, address.start, address.numel)


@torch.no_grad()
def _sampled(weights: Sequence[nn.Parameter]) -> Tensor:
    """Numbers spread evenly over each matrix (of a norm, its vectors), scaled to have its norm."""
    taken = []
    # Matrices are what a learning rate is made for.
    for weight in [weight for weight in weights if weight.dim() > 1] or weights:
        flat = _local(weight).flatten()
        some = flat[:: -(-flat.numel() // _SAMPLED) or 1].float()
        taken.append(some * math.sqrt(flat.numel() / max(some.numel(), 1)))
    return torch.cat([some.to(taken[0].device) for some in taken])


def _local(weight: Tensor) -> Tensor:
    """Of a sharded weight, the shard of this process."""
    shard: Any = weight.detach()
    local: Tensor = shard.to_local() if hasattr(shard, "to_local") else shard
    return local
