"""What else gets the numbers of a watched training, and which of them.

watch(model, log=wandb.init())             # alarms are alerts there, too
watch(model, log=mlflow)                   # the module, or a logger of Lightning
watch(model, log=SummaryWriter())          # of TensorBoard
watch(model, log="numbers.jsonl")          # a line of JSON a step
watch(model, log="normprobe.prom")         # the last step, for the textfile collector of Prometheus
watch(model, log=print, keys=["layers/visual/*"])
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError
from normprobe.extensions.training.alarms import Alarm
from normprobe.runs.files import write_by_rename
from normprobe.schema import TEXT, VISUAL

#: Gets the numbers of a step by name, and what was wrong at it.
Logger = Callable[[Mapping[str, float], Sequence[Alarm]], object]

_STEP = "normprobe/step"


def logger_of(log: Any) -> Logger:
    """What a user gave as a logger, as a function of numbers and alarms.

    Args:
        log: a function of a dict, such as ``wandb.log``; a run or the module of W&B; the module of
            MLflow or a logger of Lightning; a ``SummaryWriter``; the name of a ``.jsonl`` or
            ``.prom`` file.

    Raises:
        NormprobeError: it is none of them.
    """
    if hasattr(log, "add_scalar"):
        return lambda values, _: _scalars(log, values)
    if hasattr(log, "log_metrics"):
        return lambda values, _: log.log_metrics(dict(values), step=int(values[_STEP]))
    if hasattr(log, "alert"):
        return lambda values, alarms: _with_alerts(log, values, alarms)
    if isinstance(log, str | Path) and Path(log).suffix in _FILES:
        write = _FILES[Path(log).suffix]
        return lambda values, _: write(Path(log), values)
    if callable(log):
        return lambda values, _: log(dict(values))
    raise NormprobeError(
        f"log={log!r}: expected a function of a dict, a writer or run of TensorBoard, W&B or "
        f"MLflow, or a file named {' or '.join('*' + suffix for suffix in _FILES)}",
        "pass one of them, or leave log out: the run folder has the numbers in any case",
    )


def logged(values: Mapping[str, float], keys: Iterable[str]) -> dict[str, float]:
    """The numbers of a step that are logged; its number and its alarms always are.

    Args:
        values: by names such as ``normprobe/layers/visual/norm/12``.
        keys: patterns of these names behind ``normprobe/``; none: a dozen, the norms and angles of
            visual and text tokens at both ends of the decoder, and the projector's.
    """
    named = {name: name.partition("/")[2] for name in values}
    patterns = [*keys] or _usual(named.values())
    patterns += ["step", "alarm/*"]
    return {
        name: value
        for name, value in values.items()
        if any(fnmatchcase(named[name], pattern) for pattern in patterns)
    }


def _usual(names: Iterable[str]) -> list[str]:
    """Names of what is worth a curve: the first and the last layer of each number."""
    layers: dict[str, list[int]] = {}
    for name in names:
        if name.startswith(tuple(f"layers/{group}/" for group in (VISUAL, TEXT))):
            number, _, layer = name.rpartition("/")
            layers.setdefault(number, []).append(int(layer))
    drawn = [
        number
        for number in layers
        if number.endswith(("/norm", "/angle")) or number == f"layers/{VISUAL}/norm_to_text"
    ]
    ends = [
        f"{number}/{end}" for number in drawn for end in {min(layers[number]), max(layers[number])}
    ]
    return [*ends, "gradient/projector", "update/projector"]


def _scalars(writer: Any, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, int(values[_STEP]))


def _with_alerts(run: Any, values: Mapping[str, float], alarms: Sequence[Alarm]) -> None:
    run.log(dict(values))
    for alarm in alarms:
        run.alert(title=f"normprobe: {alarm.name}", text=f"step {alarm.step}: {alarm.words}")


def _line(file: Path, values: Mapping[str, float]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(values) + "\n")


def _prometheus(file: Path, values: Mapping[str, float]) -> None:
    """Gauges, such as ``normprobe_norm{group="visual",layer="12"}``."""
    lines = []
    for name, value in values.items():
        _, kind, *of = name.split("/")
        labels = dict(zip(("group", "layer"), (of[0], of[2]), strict=True)) if of[2:] else {}
        labels |= {"of": of[0]} if len(of) == 1 else {}
        held = ",".join(f'{label}="{text}"' for label, text in labels.items())
        metric = of[1] if of[2:] else kind
        lines.append(f"normprobe_{metric}{f'{{{held}}}' if held else ''} {value!r}\n")
    write_by_rename(file, "".join(lines).encode())


_FILES: Mapping[str, Callable[[Path, Mapping[str, float]], None]] = {
    ".jsonl": _line,
    ".prom": _prometheus,
}
