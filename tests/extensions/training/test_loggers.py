"""What loggers get of a watched training: which numbers, in which form, and what of alarms."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normprobe import NormprobeError
from normprobe.extensions.training.alarms import Alarm
from normprobe.extensions.training.loggers import logged, logger_of

VALUES = {
    "normprobe/step": 4.0,
    **{
        f"normprobe/layers/{group}/{number}/{layer}": layer + 0.5
        for group in ("visual", "text", "non_visual")
        for number in ("norm", "angle", "relative_update", "norm_to_text")
        for layer in range(0 if number.startswith("norm") else 1, 9)
    },
    **{
        f"normprobe/{what}/{part}": 0.25
        for what in ("gradient", "update")
        for part in ("vision_encoder", "projector", "decoder_layers")
    },
    "normprobe/alarm/growth": 1.0,
}
ALARM = Alarm(4, "growth", "visual", "the norm of visual tokens grew by 12")


def test_a_dozen_numbers_are_logged_unless_others_are_named() -> None:
    usual = logged(VALUES, ())
    layers = [name.removeprefix("normprobe/layers/") for name in usual if "/layers/" in name]
    assert sorted(layers) == [
        *("text/angle/1", "text/angle/8", "text/norm/0", "text/norm/8"),
        *("visual/angle/1", "visual/angle/8", "visual/norm/0", "visual/norm/8"),
        *("visual/norm_to_text/0", "visual/norm_to_text/8"),
    ]
    assert {name for name in usual if "/layers/" not in name} == {
        *("normprobe/step", "normprobe/alarm/growth"),
        *("normprobe/gradient/projector", "normprobe/update/projector"),
    }
    assert logged(VALUES, ["*"]) == VALUES
    named = logged(VALUES, ["layers/visual/norm/*", "gradient/*"])
    assert len(named) == 9 + 3 + 2
    assert named.items() <= VALUES.items()


def test_a_function_gets_a_dict_of_its_own() -> None:
    seen: list[dict[str, float]] = []
    logger_of(seen.append)(VALUES, [])
    assert seen == [VALUES] and seen[0] is not VALUES


def test_a_run_of_wandb_gets_alarms_as_alerts() -> None:
    told: list[Any] = []
    run = SimpleNamespace(log=told.append, alert=lambda title, text: told.append((title, text)))
    logger_of(run)(VALUES, [ALARM])
    assert told == [
        VALUES,
        ("normprobe: growth", "step 4: the norm of visual tokens grew by 12"),
    ]


def test_mlflow_and_tensorboard_get_the_step() -> None:
    told: list[Any] = []
    flow = SimpleNamespace(log_metrics=lambda values, step: told.append((values, step)))
    logger_of(flow)(VALUES, [])
    assert told.pop() == (VALUES, 4)
    writer = SimpleNamespace(add_scalar=lambda *scalar: told.append(scalar))
    logger_of(writer)(VALUES, [])
    assert told == [(name, value, 4) for name, value in VALUES.items()]


def test_a_line_of_json_a_step(tmp_path: Path) -> None:
    log = logger_of(tmp_path / "numbers.jsonl")
    log(VALUES, [])
    log({**VALUES, "normprobe/step": 8.0}, [])
    lines = (tmp_path / "numbers.jsonl").read_text().splitlines()
    assert [json.loads(line)["normprobe/step"] for line in lines] == [4.0, 8.0]
    assert json.loads(lines[0]) == VALUES


def test_the_last_step_as_gauges_of_prometheus(tmp_path: Path) -> None:
    log = logger_of(str(tmp_path / "normprobe.prom"))
    log({**VALUES, "normprobe/step": 2.0}, [])
    log(VALUES, [])
    lines = (tmp_path / "normprobe.prom").read_text().splitlines()
    assert len(lines) == len(VALUES)
    gauge = re.compile(r'[a-z_]+(\{[a-z]+="\w+"(,[a-z]+="\w+")?\})? [\d.]+')
    assert all(gauge.fullmatch(line) for line in lines)
    assert "normprobe_step 4.0" in lines
    assert 'normprobe_norm{group="visual",layer="8"} 8.5' in lines
    assert 'normprobe_gradient{of="projector"} 0.25' in lines
    assert 'normprobe_alarm{of="growth"} 1.0' in lines


@pytest.mark.parametrize("log", ["numbers.csv", 3, object()])
def test_what_is_no_logger_is_refused(log: Any) -> None:
    with pytest.raises(NormprobeError, match="expected a function of a dict"):
        logger_of(log)
