"""How loud each visual token of a picture is in a few decoder layers, and how far they turn it."""

from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.hooks import attached, observing, on_input, on_output, run_until
from normprobe.inputs.on_device import inputs_for
from normprobe.model.image_places import PlacesUnknown, image_places
from normprobe.model.measured_model import MeasuredModel, layers_of_all_depths
from normprobe.model.token_places import NormMap, Picture, own_positions, rows_at
from normprobe.schema import TOKEN_METRICS
from normprobe.statistics.token_metrics import token_metrics, token_norms

_SHOWN = 4  # layers, beside layer 0

_NORM, _ANGLE = TOKEN_METRICS.index("norm"), TOKEN_METRICS.index("angle")


def norm_map(model: MeasuredModel, picture: Picture) -> NormMap:
    """Norm and angle of each visual token, in layer 0 and a few layers of all depths."""
    try:
        own = own_positions(model, picture)
        boxes, _ = image_places(model, picture.build, picture.image, own)
    except PlacesUnknown as unknown:
        return NormMap(pd.DataFrame(), {"visual tokens": str(unknown)})
    numbers = _norms_and_angles(model, picture, own)
    layers = [
        rows_at(boxes, layer=layer, norm=norms, angle=angles)
        for layer, (norms, angles) in numbers.items()
    ]
    return NormMap(pd.concat(layers, ignore_index=True), {})


def _norms_and_angles(
    model: MeasuredModel, picture: Picture, own: NDArray[np.bool_]
) -> dict[int, NDArray[np.float64]]:
    """Of each shown layer ``[2, tokens]``, by one forward."""
    layers = model.decoder_layers
    shown = layers_of_all_depths(len(layers), _SHOWN)
    entered: dict[int, Tensor] = {}
    seen: dict[int, Tensor] = {}

    def tokens(state: Tensor) -> Tensor:
        """A copy: a layer may overwrite its input."""
        return model.read_stream(state)[0, torch.from_numpy(own).to(state.device)].float()

    def enters_the_decoder(state: Tensor) -> None:
        norms = token_norms(tokens(state))
        seen[0] = torch.stack([norms, torch.full_like(norms, torch.nan)])

    def enters(layer: int, state: Tensor) -> None:
        entered[layer] = tokens(state)

    def leaves(layer: int, state: Tensor) -> None:
        metrics = token_metrics(entered.pop(layer).to(state.device), tokens(state))
        seen[layer] = metrics[[_NORM, _ANGLE]]

    handles = [on_input(layers[0], enters_the_decoder)]
    for number in shown:
        handles.append(on_input(layers[number - 1], partial(enters, number)))
        handles.append(on_output(layers[number - 1], partial(leaves, number)))
    with observing(model.model), attached(*handles):
        run_until(model.model, inputs_for(model.model, picture.inputs), leaving=layers[-1])
    return {layer: seen[layer].double().cpu().numpy() for layer in (0, *shown)}
