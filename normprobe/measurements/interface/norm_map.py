"""How loud each visual token of a picture is, stage by stage from the encoder to the decoder."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.inputs.on_device import inputs_for
from normprobe.measurements.interface.measure import run_stages
from normprobe.model.image_places import (
    Array,
    PlacesUnknown,
    lines_after_thumbnail,
    places_of_rows,
)
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.token_places import NormMap, Picture, own_positions, rows_at
from normprobe.model.vision_stages import VisionStages
from normprobe.schema import DECODER_INPUT, STAGES
from normprobe.statistics.token_metrics import token_norms


def norm_map(model: MeasuredModel, picture: Picture) -> NormMap:
    """Norm of each visual token in the stages whose rows lie over the picture.

    The places of each stage are derived and tested on its own rows. Class and register rows have
    none. A stage that merges or reorders its rows in a way that is not known is left out.
    """
    unknown: dict[str, str] = {}
    positions = None
    try:
        positions = own_positions(model, picture) if model.has_decoder else None
    except PlacesUnknown as reason:
        unknown[DECODER_INPUT] = str(reason)
    stages = _Stages(model, picture, positions)
    places: dict[str, Array] = {}
    for together in stages.alike():
        try:
            boxes, agreements = places_of_rows(
                picture.build,
                picture.image,
                partial(stages.rows, together),
                stages.lines(together[0]),
            )
        except PlacesUnknown as reason:
            boxes, agreements = np.empty((0, 4)), [str(reason)] * len(together)
        for stage, agreement in zip(together, agreements, strict=True):
            if isinstance(agreement, str):
                unknown[stage] = agreement
            else:
                places[stage] = boxes
    shown = [stage for stage in STAGES if stage in places]
    tables = [
        rows_at(places[stage], stage=stage, norm=token_norms(rows).double().cpu().numpy())
        for stage, rows in zip(shown, stages.rows(shown, picture.inputs), strict=True)
    ]
    return NormMap(pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(), unknown)


class _Stages:
    """The rows of each stage that come from one picture."""

    def __init__(
        self, model: MeasuredModel, picture: Picture, positions: NDArray[np.bool_] | None
    ) -> None:
        self._model, self._positions = model, positions
        states = self._states(picture.inputs)
        self._own = {stage: torch.ones(len(rows)).bool() for stage, rows in states.items()}
        if not picture.alone:
            other = self._states(picture.other_inputs)
            self._own = {s: (rows != other[s]).any(dim=-1).cpu() for s, rows in states.items()}

    def alike(self) -> list[list[str]]:
        """Stages with as many rows, laid out alike: one test serves them."""
        found: dict[Any, list[str]] = {}
        for stage, own in self._own.items():
            found.setdefault((int(own.sum()), self.lines(stage)), []).append(stage)
        return list(found.values())

    def lines(self, stage: str) -> tuple[int, int, int] | None:
        """Of ``lines_after_thumbnail``: newlines between the rows are there for the decoder."""
        if stage != DECODER_INPUT or self._positions is None:
            return None
        return lines_after_thumbnail(self._positions)

    def rows(self, stages: Sequence[str], inputs: Mapping[str, Any]) -> list[Tensor]:
        """The states ``[rows, hidden]`` of some stages."""
        states = self._states(inputs)
        if any(len(states[stage]) != len(self._own[stage]) for stage in stages):
            raise PlacesUnknown("the number of rows depends on more than the image's size")
        return [states[stage][self._own[stage].to(states[stage].device)] for stage in stages]

    def _states(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Of each stage ``[rows, hidden]``, those of other images among them."""
        stages = VisionStages(self._model.parts, keep=torch.clone)
        x = run_stages(self._model, inputs_for(self._model.model, inputs), stages)
        states = stages.visual_rows()
        if x is not None and self._positions is not None:
            if len(x[0]) != len(self._positions):
                raise PlacesUnknown("the number of tokens depends on more than the image's size")
            states[DECODER_INPUT] = x[0, torch.from_numpy(self._positions).to(x.device)]
        return states
