"""What one step of a training tells: the states of its forward, gradients and updates of weights.

Hooks on the decoder layers reduce each state to numbers a token while it is there. Behind the last
layer these become sums by token group, and one copy of them to the host begins, which is awaited
at the end of the step. No hook is on the model outside of a forward that is measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.align.norm import NAME as ALIGNMENT_NORM
from normprobe.model.find.parts import Parts
from normprobe.model.measured_model import MeasuredBatch, layers_of_all_depths, text_ids
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.statistics.token_metrics import token_metrics, token_norms, widened
from normprobe.tensors import to_host, with_tensors

#: Of a deeper decoder so many layers, of all depths, have angles and updates; all have norms.
FULL_LAYERS = 12

#: The means of a token group at a layer.
MEANS = ("norm_mean", "norm_log_mean", "angle_mean", "relative_update_mean")
_METRICS = [0, 2, 4]  # of ``TOKEN_METRICS``: norm, angle, relative_update

#: Numbers of a weight that tell how far a step moves it, at most.
_SAMPLED = 16384

_VISUAL = TOKEN_GROUPS.index(VISUAL)


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
    """

    def __init__(self, batch: MeasuredBatch) -> None:
        self._batch, self._read = batch, batch.model.read_stream
        self._layers = batch.model.decoder_layers
        self._full = set(layers_of_all_depths(len(self._layers), FULL_LAYERS))
        self._groups = batch.prompt_groups
        self._entered: tuple[Tensor, int, Tensor] | None = None  # state, its version, its norms
        self._left: tuple[Tensor, int, Tensor] | None = None
        self._tokens: dict[int, Tensor] = {}  # by layer: [3, batch, seq]
        self._spreads: list[Tensor] = []
        self.dtype = torch.float32
        self.skipped: list[int] = []

    def enter(self, state: Tensor) -> None:
        """The state that enters a layer; that of layer 1 is the decoder input."""
        if not self._tokens:
            self._read_decoder_input(state)
        self._enter(state)

    @_aside
    def _read_decoder_input(self, state: Tensor) -> None:
        x = self._read(state)
        self.dtype = state.dtype
        self._groups = self._batch.groups_at(x)
        norms = token_norms(x)
        self._left = state, state._version, norms
        self._tokens[0] = _norms_alone(norms)
        self._spreads = list(_visual_spreads(widened(x), self._groups == _VISUAL))

    @_aside
    def _enter(self, state: Tensor) -> None:
        left, self._left = self._left, None
        if left is not None and left[0] is state and left[1] == state._version:
            self._entered = left
        else:
            self._entered = state, state._version, token_norms(self._read(state))

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
        overwritten = state._version != version
        if overwritten:
            self.skipped.append(number)
        if overwritten or number not in self._full:
            self._tokens[number] = _norms_alone(norms)
            return
        x = self._read(state).to(h.device)
        moved = token_metrics(x, h, before.to(h.device), norms)
        self._tokens[number] = moved.metrics[_METRICS]

    def seen(self, inputs: Mapping[str, Any]) -> "SeenForward | None":
        """What the forward left, on its way to the host; None where no decoder layer ran."""
        self._left = None
        if not self._tokens:
            return None
        device = self._groups.device
        tokens = torch.stack([metrics.to(device) for metrics in self._tokens.values()])
        sums = _sums(tokens.flatten(2), self._groups.flatten())
        arrived = to_host(
            [
                sums,
                *self._spreads,
                *_pixel_facts(inputs, self._batch.model.parts, len(self._groups)),
            ]
        )
        return SeenForward([*self._tokens], str(self.dtype).removeprefix("torch."), arrived)


class SeenForward:
    """What one forward left.

    Attributes:
        dtype: of the states.
        varies: how visual tokens differ at the decoder input, relative to their size: the most
            within a sample, negative where it has fewer than two, and the means of samples.
        pixels: smallest and largest spread of pixels within a picture, then sums of the pixels of
            each sample, or of all; empty where there are none.
        prompts: a number that tells these prompts from others.
    """

    def __init__(self, layers: list[int], dtype: str, arrived: Callable[[], list[Any]]) -> None:
        self._layers, self._arrived, self.dtype = layers, arrived, dtype

    def rows(self) -> pd.DataFrame:
        """One row a layer and token group. The host waits for the device."""
        sums, within, between, self.prompts, *self.pixels = self._arrived()
        self.varies = float(within), float(between)
        columns: dict[str, Any] = {"layer": [], "group": [], "dtype": self.dtype}
        numbers = []
        for place, layer in enumerate(self._layers):
            for code, group in enumerate(TOKEN_GROUPS):
                if sums[place, code, :2].any():
                    columns["layer"].append(layer)
                    columns["group"].append(group)
                    numbers.append(sums[place, code])
        table = np.array(numbers).reshape(len(numbers), -1).T
        tokens, nonfinite, largest, *moments = table
        columns |= {"tokens": tokens.astype(int), "nonfinite": nonfinite.astype(int)}
        halves = np.split(np.array(moments), 2)
        with np.errstate(invalid="ignore"):
            means = {name: s / n for name, s, n in zip(MEANS, *halves, strict=True)}
        means["norm_geometric_mean"] = np.exp(means.pop("norm_log_mean"))
        rows = pd.DataFrame(columns | means | {"norm_max": np.where(tokens > 0, largest, np.nan)})
        text = rows[rows["group"] == TEXT].set_index("layer")["norm_geometric_mean"]
        rows["norm_geometric_ratio_to_text"] = rows["norm_geometric_mean"] / rows["layer"].map(text)
        return rows


def _norms_alone(norms: Tensor) -> Tensor:
    return torch.stack([norms, *[torch.full_like(norms, torch.nan)] * (len(_METRICS) - 1)])


def _sums(tokens: Tensor, groups: Tensor) -> Tensor:
    """Sums over the tokens of each group, ``[layers, groups, 3 + 2 * len(MEANS)]`` in float64.

    Tokens, non-finite tokens, the largest norm; then of each of ``MEANS`` the sum, and over how
    many tokens. A token whose state is not finite enters none of them.
    """
    wide = torch.float32 if tokens.device.type == "mps" else torch.float64
    codes = torch.arange(len(TOKEN_GROUPS), device=groups.device)
    masks = (groups == codes[:, None]).to(wide)  # [groups, tokens]
    norm, angle, update = tokens.to(wide).unbind(1)
    finite = torch.isfinite(norm)
    values = torch.stack([norm, norm.log(), angle, update], dim=1)
    counted = finite[:, None] & torch.isfinite(values)
    sums = torch.where(counted, values, 0.0) @ masks.T
    counts = counted.to(wide) @ masks.T
    largest = (torch.where(finite, norm, 0.0)[:, None] * masks).amax(-1)
    known, lost = (kind.to(wide) @ masks.T for kind in (finite, ~finite))
    first = torch.stack([known, lost, largest], dim=1)
    return torch.cat([first, sums, counts], dim=1).transpose(1, 2)


def _visual_spreads(x: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
    """``SeenForward.varies``."""
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
    """A number that tells prompts apart; then ``SeenForward.pixels``."""
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

    def __init__(self, weights: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self._weights = weights
        self._moving = {part: _matrices(those) for part, those in weights.items()}
        self.gradients = {part: _gradient_norm(those) for part, those in weights.items()}
        self._before = self._sample()

    @torch.no_grad()
    def rows(self) -> pd.DataFrame:
        """One row a part: the norm of its gradient, and update over weight."""
        numbers = []
        for part, after in self._sample().items():
            before, shares = self._before[part], self._shares(part, after.device)
            moved, size = (((t**2) * shares).sum().sqrt() for t in (after - before, before))
            numbers.append(torch.stack([self.gradients[part], moved / size]).float())
        table = to_host(numbers)()
        columns = ["gradient_norm", "update_ratio"]
        rows = pd.DataFrame(np.array(table).reshape(-1, 2), columns=columns)
        rows.insert(0, "stage", [*self._weights])
        return rows

    @torch.no_grad()
    def _sample(self) -> dict[str, Tensor]:
        return {
            part: torch.cat([_local(weight).flatten()[:: _stride(weight)] for weight in those])
            .float()
            .clone()
            for part, those in self._moving.items()
        }

    def _shares(self, part: str, device: torch.device) -> Tensor:
        """How many numbers of its weight each sampled number stands for."""
        sizes = [(_local(weight).numel(), _stride(weight)) for weight in self._moving[part]]
        counts = [-(-numel // stride) for numel, stride in sizes]
        shares = [numel / max(count, 1) for (numel, _), count in zip(sizes, counts, strict=True)]
        return torch.tensor(shares).repeat_interleave(torch.tensor(counts)).to(device)


@torch.no_grad()
def _gradient_norm(weights: Sequence[nn.Parameter]) -> Tensor:
    """The L2 norm of all gradients of some weights; 0 where there is none."""
    device = _local(weights[0]).device
    found = [_norm(weight.grad).to(device) for weight in weights if weight.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([*found, torch.zeros((), device=device)]))
    return norm


def _norm(gradient: Tensor) -> Tensor:
    """In float32; of a sharded one, of all shards."""
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    norm: Any = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _local(weight: Tensor) -> Tensor:
    """Of a sharded weight, the shard of this process."""
    shard: Any = weight.detach()
    local: Tensor = shard.to_local() if hasattr(shard, "to_local") else shard
    return local


def _matrices(weights: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
    """What a learning rate is made for; of a norm, its vectors."""
    return [weight for weight in weights if weight.dim() > 1] or weights


def _stride(weight: Tensor) -> int:
    return -(-_local(weight).numel() // _SAMPLED) or 1
