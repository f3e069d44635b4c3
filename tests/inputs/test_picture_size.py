from types import SimpleNamespace

import pytest

from normprobe.errors import NormprobeError
from normprobe.inputs.picture_size import refuse_huge_pictures

HUGE = 40_000


@pytest.mark.parametrize(
    "fields",
    [
        {"size": {"height": HUGE, "width": HUGE}},
        {"size": {"shortest_edge": HUGE}},
        {"size": {"shortest_edge": HUGE**2, "longest_edge": HUGE**2}},  # numbers of pixels
        {"size": {"height": 64, "width": 64}, "crop_size": {"height": HUGE, "width": HUGE}},
        {"size": {"height": float("inf"), "width": 1}},
    ],
)
def test_pictures_that_nobody_reads_are_refused(fields) -> None:
    with pytest.raises(NormprobeError, match="the processor of org/a asks for pictures of"):
        refuse_huge_pictures(SimpleNamespace(image_processor=SimpleNamespace(**fields)), "org/a")
    with pytest.raises(NormprobeError, match=r"expected 8\.95e"):
        refuse_huge_pictures(SimpleNamespace(**fields), "org/a")


@pytest.mark.parametrize(
    "size",
    [
        {"shortest_edge": 336},
        {"shortest_edge": 200_704, "longest_edge": 12_845_056},
        {"longest_edge": 1540},
        {"height": 896, "width": 896},
        None,
        {"height": "x", "width": None},
    ],
)
def test_others_are_not(size) -> None:
    refuse_huge_pictures(SimpleNamespace(size=size), "org/a")
