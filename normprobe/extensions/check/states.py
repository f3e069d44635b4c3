"""What another engine is asked, so that its states can be held against the model's."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from safetensors.torch import save
from torch import Tensor

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.extensions.check import engine_states
from normprobe.extensions.check.engine_states import PROMPTS, Unexpected, save_states
from normprobe.inputs.prefetch import batches
from normprobe.probe import Probe
from normprobe.runs.files import write_by_rename
from normprobe.runs.model_source import CheckpointSource
from normprobe.tensors import find_named, flattened

#: What is copied into a folder of prompts, for an environment without normprobe.
SCRIPT = "states.py"
_BY_HAND = "save the states by hand: docs/how-to/engines.md"
_PICTURES, _INPUTS = "pictures", "inputs"


def write_prompts(
    probe: Probe, folder: Path, *, export_inputs: bool = False, **sampling: Any
) -> list[str]:
    """Write what an engine has to be asked into a folder, with what runs it; the samples' ids.

    Args:
        probe: of the model.
        folder: a new one, or one of earlier prompts, whose states are then those of others.
        export_inputs: write what the processor makes of each sample, too.
        sampling: as ``Probe.measure`` takes it.

    Raises:
        NormprobeError: the folder holds other files, the model is an adapter or a GGUF file, a
            sample has clips, sounds or earlier turns, or its inputs are made by the model's code.
    """
    if folder.exists() and not (folder / PROMPTS).is_file() and any(folder.iterdir()):
        raise NormprobeError(
            f"{folder} holds files, and no {PROMPTS}: it is no folder of states",
            "choose another --output",
        )
    model, revision = _named(probe)
    builder, samples = probe.source.builder, []
    data = open_data(sampling.pop("data"), **{n: v for n, v in sampling.items() if v is not None})
    for (sample,), inputs in batches(data, builder, 1):
        if sample.videos or sample.audios or sample.earlier:
            raise NormprobeError(
                f"{sample.id} has clips, sounds or earlier turns; states are asked for by one "
                "prompt with pictures",
                f"pass other --data, or {_BY_HAND}",
            )
        text, special = builder.prompt(sample)
        file = f"{file_of(sample.id)}.safetensors"
        if export_inputs:
            write_by_rename(folder / _INPUTS / file, save(_tensors(inputs)))
        samples.append(
            {
                "id": sample.id,
                "file": file,
                "prompt": text,
                "add_special_tokens": special,
                "input_ids": find_named(inputs, "input_ids")[0].tolist(),
                "images": _saved_pictures(sample, folder),
            }
        )
    asked = {"model": model, "revision": revision, "samples": samples}
    write_by_rename(folder / PROMPTS, json.dumps(asked, indent=1).encode())
    write_by_rename(folder / SCRIPT, Path(engine_states.__file__).read_bytes())
    return [str(sample["id"]) for sample in samples]


def run_engine(folder: Path, engine: str, *, dtype: str, workers: int) -> list[Path]:
    """Run an engine that is installed here on the prompts of a folder; the files of states."""
    if find_spec(engine) is None:
        raise NormprobeError(
            f"{engine} is not installed beside normprobe",
            f"run it where it is: python {folder / SCRIPT} {folder} --engine {engine}",
        )
    try:
        return save_states(folder, engine, dtype=dtype, workers=workers)
    except Unexpected as error:
        raise NormprobeError(str(error), _BY_HAND) from error
    except Exception as error:  # an engine may end in any way, and has said why
        raise NormprobeError(
            f"{engine} failed: {type(error).__name__}: {first_line(error)}",
            f"what it printed says more; by hand: python {folder / SCRIPT} {folder}",
        ) from error


def file_of(sample_id: str) -> str:
    """Where states of a sample lie, without the ending: ``pope/24`` in a folder ``pope``.

    What no file may be called is quoted, the slash with it: ``..%2F24``.
    """
    parts = [quote(part, "", errors="surrogatepass") for part in sample_id.split("/")]
    if all(part.strip(".") for part in parts):
        return "/".join(parts)
    return quote(sample_id, "", errors="surrogatepass")


def _tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor of a batch under a dotted name, those of a list by their number."""
    flat = flattened(inputs)
    for name, value in list(flat.items()):
        if isinstance(value, list | tuple):
            flat |= {f"{name}.{number}": each for number, each in enumerate(value)}
    return {n: t.contiguous().clone() for n, t in flat.items() if isinstance(t, Tensor)}


def _named(probe: Probe) -> tuple[str, str | None]:
    """The checkpoint as an engine opens it, and its revision."""
    source = probe.source
    if not isinstance(source, CheckpointSource):
        raise NormprobeError(
            "an engine opens a checkpoint; received a model in memory",
            "save it, and name the folder",
        )
    checkpoint = source.checkpoint
    if checkpoint.adapter is not None or checkpoint.gguf is not None:
        raise NormprobeError(
            f"{probe.source.name} is an adapter or a GGUF file, which engines open in ways of "
            "their own",
            f"merge it into a checkpoint, or {_BY_HAND}",
        )
    path = Path(checkpoint.source)
    return (str(path.resolve()), None) if path.exists() else (str(path), checkpoint.revision)


def _saved_pictures(sample: Sample, folder: Path) -> list[str]:
    names = []
    for number, image in enumerate(sample.images):
        name = f"{_PICTURES}/{file_of(sample.id)}-{number}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / name)  # PNG keeps every pixel
        names.append(name)
    return names
