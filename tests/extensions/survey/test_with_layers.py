"""A survey with ``--layers`` holds what the measurements themselves find."""

from pathlib import Path

import pandas as pd
import pytest
from support.commands import invoke
from support.flat import flat

from normprobe import load_run


def test_the_row_of_a_model_is_what_its_runs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    how = ["-n", "1", "-b", "2", "--workers", "0", "--skip-bad", "--system", "none"]
    how += ["--dtype", "float32", "--device", "balanced", "--attn-implementation", "eager"]
    done = invoke("survey", "specimen", "./nothing", "--measure", "layers", "-o", "out", *how)
    assert done.exit_code == 0, done.output
    models = pd.read_csv(tmp_path / "out/models.csv").set_index("model")
    assert models["status"].to_dict() == {"specimen": "complete", "./nothing": "failed"}
    survey = pd.read_csv(tmp_path / "out/survey.csv")
    assert set(survey["model"]) == {"specimen"}
    layers = load_run(tmp_path / "out/models/specimen/layers")
    asked = {"batch_size": 2, "skip_bad": True, "system": "none", "dtype": "float32"}
    asked |= {"device": "balanced", "attn_implementation": "eager", "limit": 1}
    assert asked.items() <= layers.record["options"].items()
    assert set(layers.record["attn_implementation"].values()) == {"eager"}
    visual = flat(layers.table).query("group == 'visual'").set_index("layer")
    row = survey.set_index("quantity")["mean"]
    assert row["disparity_last"] == pytest.approx(visual["norm_geometric_ratio_to_text"].iloc[-1])
    accounted = flat(layers.tables["accounted"]).set_index("scope")
    assert row["norms_share"] == pytest.approx(accounted.loc["slower", "norm_share"])
    run = load_run(tmp_path / "out/models/specimen/interface")
    assert (asked | {"batch_size": 1}).items() <= run.record["options"].items()
    interface = flat(run.table)
    entering = interface[interface["stage"] == "decoder_input"].set_index("group")
    printed = pd.read_csv(tmp_path / "out/table2.csv").set_index("model")
    projected = interface[interface["stage"] == "projector_output"].set_index("group")
    expected = projected.loc["visual", "norm_mean"]
    assert printed["after_projector_mean"].to_dict() == {"specimen": pytest.approx(expected)}
    assert "table1.csv, table2.csv, table6.csv" in " ".join(done.stdout.split())
    expected = entering.loc["visual", "geometric_ratio_to_prompt"]
    assert row["disparity_input"] == pytest.approx(expected)
