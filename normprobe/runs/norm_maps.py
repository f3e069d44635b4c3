"""The norms of visual tokens laid over the first pictures of a run: ``map.csv``."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd
from PIL import Image

from normprobe.data.bad_rows import BadRows
from normprobe.data.data_set import DataSet
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.norm_map import NormMap, Picture
from normprobe.runs.progress import progress
from normprobe.runs.run_store import RunStore, image_name
from normprobe.runs.warnings import warn
from normprobe.schema import IMAGE

#: The table of a run.
MAP = "map"


def norm_maps(
    run: RunStore,
    model: MeasuredModel,
    data: DataSet,
    builder: InputBuilder,
    norm_map: Callable[[MeasuredModel, Picture], NormMap],
    rows: pd.DataFrame,
    pictures: int,
) -> dict[str, pd.DataFrame]:
    """Map the first pictures of the measured samples, each picture once.

    Places are told by some forwards of the vision side for each picture, so the cost does not grow
    with the samples. What has no map is a warning.
    """
    tables: list[pd.DataFrame] = []
    unknown: dict[str, list[str]] = {}
    measured = data.subset(rows["sample_id"].unique(), BadRows(skip=True))
    for sample, place in progress(_first(measured, pictures), total=pictures, what=MAP):
        found = norm_map(model, _picture(builder, sample, place))
        for what, reason in found.unknown.items():
            unknown.setdefault(what, []).append(reason)
        if len(found.rows):
            number = len(tables) + 1
            table = found.rows.copy()
            table.insert(0, "sample_id", sample.id)
            table.insert(1, IMAGE, number)
            run.write_image(image_name(number), sample.images[place])
            tables.append(table)
    for what, reasons in unknown.items():
        warn(run, f"no map of {what.replace('_', ' ')}: {reasons[0]}")
    return {MAP: pd.concat(tables, ignore_index=True)} if tables else {}


def _first(samples: DataSet, pictures: int) -> Iterator[tuple[Sample, int]]:
    """So many different pictures: the sample, and which of its images it is, from 0."""
    seen: set[str] = set()
    for sample in samples:
        for place, known in enumerate(sample.image_hashes):
            if known in seen:
                continue
            seen.add(known)
            yield sample, place
            if len(seen) == pictures:
                return


def _picture(builder: InputBuilder, sample: Sample, place: int) -> Picture:
    """One image of a sample."""

    def build(image: Image.Image) -> dict[str, object]:
        images = [*sample.images[:place], image, *sample.images[place + 1 :]]
        return dict(builder.build([replace(sample, images=tuple(images))]))

    return Picture(sample.images[place], build, alone=len(sample.images) == 1)
