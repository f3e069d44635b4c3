"""What `normprobe align` prints of the norm that it saves."""

from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from normprobe.measurements.align import Align
from normprobe.runs.run_folder import RunStore


@pytest.mark.parametrize(
    ("scale", "said"), [(float("nan"), "none: it changes the rows otherwise"), (8.0, "8.000")]
)
def test_the_scale_of_the_model_or_that_it_has_none(scale: float, said: str) -> None:
    run = RunStore({"command": "align"})
    row = {"after": "model.projector", "target": "table", "target_norm": 2.0, "gain": 0.25}
    run.write_table("align", pd.DataFrame([row | {"hidden_size": 64, "scale": scale}]))
    console = Console(file=StringIO(), width=100)
    Align().show(run, console)
    told = " ".join(console.file.getvalue().split())
    assert told == (
        "norm behind: model.projector target: table, L2 norm 2.000 gain: 0.2500 in each of 64 "
        f"dimensions; bias 0 model's own scale: {said}"
    )
