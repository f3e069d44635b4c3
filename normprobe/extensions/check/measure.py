"""A fingerprint of each state on its way through the model, by token group.

Of each token its norm is kept, and sums of the numbers of x/||x||, each with fixed signs. Over the
tokens of a group these are summed plainly, and with a sign a token. The square of a difference of
such a sum is, on average, the summed squared distance of the directions (Johnson, Lindenstrauss
1984): a few numbers tell how far thousands of states are apart, and notice rows that change places.

One sample a forward: nothing depends on a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from xxhash import xxh3_64_intdigest

from normprobe.hooks import after_call, attached, observing, on_input, on_output, run_until
from normprobe.inputs.on_device import moved_to, pixel_inputs
from normprobe.model.first_forward import check_forward
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.recording import tensors
from normprobe.model.vision_stages import VisionStages
from normprobe.schema import AUDIO, DECODER_INPUT, STAGES, TEXT, TOKEN_GROUPS, VIDEO, VISUAL
from normprobe.statistics.token_metrics import masks_of, squarable, token_norms, widened
from normprobe.tensors import to_host

#: Numbers of a fingerprint: plain sums over tokens, then sums with a sign for each token.
PLAIN, SIGNED = 4, 12

#: Stages that are none of ``interface``: what the processor returns, and the last token's logits.
INPUTS, LOGITS = "inputs", "logits"
_FIRST = (INPUTS, *STAGES)

_SEED = 251208374


@dataclass(frozen=True)
class SeenStates:
    """What one forward leaves, on its way to the CPU."""

    stages: list[tuple[str, int]]  # and their hidden sizes, in the order of the forward
    # of each stage ``[rows, 2 + PLAIN + SIGNED]``, of ``reduced``; then of each ``[rows]`` groups
    arrived: Callable[[], list[NDArray[Any]]]


def observe(model: MeasuredModel, inputs: Mapping[str, Any]) -> SeenStates:
    """One forward, to the logits where the model returns them."""
    # Before a hook is there: the batch may run the vision side to tell its token groups.
    if model.has_decoder:
        check_forward(model, inputs)
    batch = model.batch(inputs) if model.has_decoder else None
    layers = model.decoder_layers if batch is not None else []
    kept: dict[str, tuple[Tensor, Tensor, int]] = {}  # reduced, groups, hidden size
    vision = VisionStages(model.parts, keep=reduced)
    groups: list[Tensor] = []

    def keep(stage: str, tensor: Tensor) -> None:
        assert batch is not None
        state = model.read_stream(tensor)
        if stage == DECODER_INPUT:
            groups[:] = [batch.groups_at(state).flatten()]
        told = groups[0].to(state.device)
        kept[stage] = reduced(state).flatten(0, -2), told, state.shape[-1]

    def keep_logits(_: nn.Module, args: object, kwargs: object, output: Any) -> None:
        if (logits := logits_in(output)) is not None:
            last = logits[0, -1:]
            last = last.masked_fill(
                last <= torch.finfo(last.dtype).min, 0.0
            )  # of tokens never said
            text = torch.full((1,), TOKEN_GROUPS.index(TEXT), device=last.device)
            kept[LOGITS] = reduced(last), text, last.shape[-1]

    handles = [*vision.handles(), after_call(model.model, keep_logits)]
    if layers:
        handles.append(on_input(layers[0], partial(keep, DECODER_INPUT)))
    handles += [
        on_output(layer, partial(keep, layer_stage(number)))
        for number, layer in enumerate(layers, start=1)
    ]
    # A dual encoder such as CLIP wants texts too: its vision side runs alone.
    encoder = model.parts.vision_encoder
    runs = encoder.module if encoder is not None and not layers else model.model
    with observing(model.model), attached(*handles):
        run_until(runs, moved_to(model.model, inputs))
    found = {**_of_inputs(inputs), **vision.kept_rows(), **kept}
    states, codes, sizes = zip(*found.values(), strict=True)
    return SeenStates(list(zip(found, sizes, strict=True)), to_host([*states, *codes]))


def logits_in(output: Any) -> Tensor | None:
    """The logits ``[batch, tokens, vocabulary]`` that a model returns; None: it returns none."""
    logits = output.get("logits") if isinstance(output, Mapping) else None
    return logits if isinstance(logits, Tensor) and logits.dim() == 3 else None


def layer_stage(number: int) -> str:
    """The stage behind a decoder layer, from 1."""
    return f"layer {number}"


def block_stage(number: int) -> str:
    """The stage behind a block of the vision encoder, from 1: of files of states alone."""
    return f"vision block {number}"


def place_of(stage: str) -> tuple[int, int]:
    """Where a stage stands in the forward."""
    if stage in _FIRST:
        return _FIRST.index(stage), 0
    if stage == LOGITS:
        return len(_FIRST) + 1, 0
    kind, _, number = stage.rpartition(" ")
    return (len(_FIRST) if kind == "layer" else 0), int(number)


def reduced(states: Tensor) -> Tensor:
    """``[..., hidden]`` to ``[..., 2 + PLAIN + SIGNED]``: norm, largest number, signed sums.

    NaN for the direction of a zero row.
    """
    states = widened(states)
    norms = token_norms(states).unsqueeze(-1)
    scaled = squarable(states)
    units = scaled / token_norms(scaled).unsqueeze(-1)
    projected = units @ _signs_of(states.shape[-1]).to(units)
    return torch.cat([norms, states.abs().amax(-1, keepdim=True), projected], dim=-1)


def signs(seed: int, rows: int) -> NDArray[np.float64]:
    """``[rows, PLAIN + SIGNED]`` of 1 and -1, the same with every version of NumPy."""
    width = PLAIN + SIGNED
    raw = np.random.PCG64(seed).random_raw(-(-rows * width // 64)).astype("<u8")
    bits = np.unpackbits(raw.view(np.uint8))[: rows * width]
    return 2.0 * bits.reshape(rows, width).astype(np.float64) - 1.0


@cache
def _signs_of(size: int) -> Tensor:
    return torch.from_numpy(signs(_SEED, size))


def _of_inputs(inputs: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor, int]]:
    """What the processor made of pictures, videos and sounds: rows of numbers."""
    found = [
        (reduced(tensor).flatten(0, -2), TOKEN_GROUPS.index(group), tensor.shape[-1])
        for group in (VISUAL, VIDEO, AUDIO)
        for tensor in tensors(pixel_inputs(inputs, group))
        if tensor.dim() > 1 and tensor.is_floating_point()
    ]
    if not found:
        return {}
    codes = [torch.full((len(rows),), code, device=rows.device) for rows, code, _ in found]
    return {INPUTS: (torch.cat([rows for rows, _, _ in found]), torch.cat(codes), found[0][2])}


def rows(seen: SeenStates, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a (stage, token group): sums over its tokens."""
    (sample_id,) = sample_ids or ["0"]
    arrays = seen.arrived()
    seed = xxh3_64_intdigest(sample_id.encode(errors="surrogatepass"))
    found = []
    for place, (stage, size) in enumerate(seen.stages):
        of_stage, codes = arrays[place], arrays[len(seen.stages) + place]
        for group, mask in masks_of(codes).items():
            if group in TOKEN_GROUPS:
                named = {"sample_id": sample_id, "stage": stage, "group": group}
                of_group = of_stage[mask].astype(np.float64)
                found.append(named | {"hidden_size": size} | _summed(of_group, seed))
    return pd.DataFrame(found)


def _summed(kept: NDArray[np.float64], seed: int) -> dict[str, Any]:
    """Sums over rows ``[rows, 2 + PLAIN + SIGNED]`` of a sample. A zero row has no direction."""
    by_row = signs(seed, len(kept))
    by_row[:, :PLAIN] = 1.0
    norms, finite = kept[:, 0], np.isfinite(kept[:, 0])
    positive = finite & (norms > 0)
    return {
        "tokens": int(finite.sum()),
        "nonfinite": int((~finite).sum()),
        "positive": int(positive.sum()),
        "norm_sum": norms[finite].sum(),
        "log_norm_sum": np.log(norms[positive]).sum(),
        "largest": kept[finite, 1].max(initial=0.0),
        "sums": (by_row * kept[:, 2:])[positive].sum(axis=0),
    }


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``check`` contains."""
    found = []
    for key, of in rows.groupby(["stage", "group"], sort=False):
        stage, group = map(str, key)
        total = of[["tokens", "nonfinite", "positive", "norm_sum", "log_norm_sum"]].sum()
        tokens, positive = total["tokens"] or np.nan, total["positive"] or np.nan
        scale = np.repeat([positive, positive**0.5], [PLAIN, SIGNED])
        fingerprint = np.sum(of["sums"].tolist(), axis=0) / scale
        row: dict[str, Any] = {"stage": stage, "group": group}
        row |= {"hidden_size": int(of["hidden_size"].iloc[0]), "samples": len(of)}
        row |= {name: int(total[name]) for name in ("tokens", "nonfinite")}
        row["norm_mean"] = total["norm_sum"] / tokens
        row["norm_geometric_mean"] = float(np.exp(total["log_norm_sum"] / positive))
        row["largest"] = of["largest"].max()
        row["fingerprint"] = " ".join(f"{number:.7g}" for number in fingerprint)
        found.append(row)
    found.sort(key=lambda row: place_of(row["stage"]))
    return {"check": pd.DataFrame(found)}
