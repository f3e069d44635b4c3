"""Norms that vision encoder and projector handed over, as rows of a table and image by image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from normprobe.errors import NormprobeError
from normprobe.schema import NON_VISUAL, PADDING, VISION_ENCODER
from normprobe.statistics.sample_statistics import statistics_of
from normprobe.statistics.token_metrics import masks_of


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
