"""Checkpoints of strangers, damaged anywhere: an answer or two lines, in 2 GB and 30 s, offline.

Each case goes the whole way: config, modules, weight headers, processor, tokenizer, template, and
inputs of a sample. The cases of a test run in one process with hard limits of its own, beside the
bounds that the product sets.
"""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file
from support.damage import Canary, mutated, mutated_json, outcomes

from normprobe import sandbox
from normprobe.data.sample import Sample
from normprobe.measurements.inspect import inspected
from normprobe.model.checkpoint import open_checkpoint
from normprobe.runs.model_source import CheckpointSource
from normprobe.specimen import SPECIMEN_DIR

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are not bounded")

SAMPLE = Sample("made/1", "What is it?", (Image.new("RGB", (40, 30)),))
MOST = 2 * 2**30  # bytes of memory
LAST = "wrote it"  # how a worker says that all is well


def config(folder: Path) -> Path:
    return folder / "config.json"


def index(folder: Path) -> Path:
    """Of weights in two files."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    keys = sorted(weights)
    files = {"a.safetensors": keys[::2], "b.safetensors": keys[1::2]}
    for name, inside in files.items():
        save_file({key: weights[key] for key in inside}, folder / name, metadata={"format": "pt"})
    weight_map = {key: name for name, inside in files.items() for key in inside}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def header(folder: Path) -> Path:
    return folder / "model.safetensors"


def adapter(folder: Path) -> Path:
    """Of a PEFT adapter, whose base is a folder."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({"base_model_name_or_path": str(SPECIMEN_DIR), "peft_type": "LORA"}))
    (folder / "config.json").unlink()
    return path


def tokenizer(folder: Path) -> Path:
    return folder / "tokenizer.json"


def tokenizer_config(folder: Path) -> Path:
    return folder / "tokenizer_config.json"


def processor(folder: Path) -> Path:
    return folder / "processor_config.json"


def template(folder: Path) -> Path:
    return folder / "chat_template.jinja"


Make = Callable[[Path], Path]
WEIGHTS: list[Make] = [config, index, header, adapter]
INPUTS: list[Make] = [tokenizer, tokenizer_config, processor, template]


def check(make: Make, root: Path, cases: int) -> Counter[str]:
    canary = Canary(root)
    folder = Path(shutil.copytree(SPECIMEN_DIR, root / "model"))
    file = make(folder)
    size = int.from_bytes(file.read_bytes()[:8], "little") + 8  # of the header of safetensors

    def read() -> None:
        source = CheckpointSource(open_checkpoint(str(folder)))
        if make in WEIGHTS:
            inspected(source.checkpoint, {}, weights=True)
            return
        builder = source.builder
        builder.build([SAMPLE])
        for ids in (builder.special_token_ids, builder.vocabulary_ids):
            assert ids == sorted({number for number in ids if type(number) is int})

    def damage(data: bytes, chance) -> bytes:  # type: ignore[no-untyped-def]
        if make is header:
            return mutated(data[:size], chance) + data[size:]
        return (mutated if make is template else mutated_json)(data, chance)

    read()
    found = outcomes(file, read, cases, damage)
    canary.assert_untouched()
    return found


def checked_apart(make: Make, root: Path, cases: int) -> None:
    """``check`` in a process that gets no connection, and is looked at when it has ended."""
    said, held = root / "said", psutil.Process().memory_info().rss  # which the child begins with
    child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(_no_network)
            said.write_text(repr(check(make, root, cases)) + LAST)
        except BaseException as error:
            import traceback

            said.write_text("".join(traceback.format_exception(error)))
        finally:
            os._exit(0)
    _, status, usage = os.wait4(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert said.read_text().endswith(LAST), said.read_text()
    assert (
        usage.ru_maxrss * 1024 - held < MOST
    )  # of it, or of the largest process that it waited for


def _no_network(event: str, _: object) -> None:
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise AssertionError(f"{event} while a damaged checkpoint was read")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint without an end is given up soon."""
    monkeypatch.setattr(sandbox, "PATIENCE", 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [config, tokenizer])
def test_damaged_checkpoints(make: Make, tmp_path: Path) -> None:
    assert check(make, tmp_path, 8)["refused"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [*WEIGHTS, *INPUTS])
def test_many_damaged_checkpoints(make: Make, tmp_path: Path) -> None:
    checked_apart(make, tmp_path, 20)
