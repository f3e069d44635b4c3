"""``normprobe inputs MODEL --write FILE``: begin an inputs file, and try it on one sample."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.inputs.chat import image_token
from normprobe.inputs.on_device import pixel_inputs
from normprobe.inputs.standard import REFUSALS, build_documented
from normprobe.model.config import vision_modules
from normprobe.model.find.parts import candidates, largest, size_of
from normprobe.model.find.structure import find_parts
from normprobe.model.load.partial_load import build_on_meta
from normprobe.options import MODULE_ROLES, Loading
from normprobe.probe import Probe
from normprobe.runs.model_source import CheckpointSource
from normprobe.schema import NON_VISUAL, VISUAL

#: Modules that are listed, the largest first.
_LISTED = 16

_PIXELS = re.compile(r"pixel|image|picture|patch")

_FILE = '''r"""How {name} takes its inputs: for `normprobe layers {name} --inputs {file}`.

forward of {model_class} takes
    {takes}
the processor, {processor}, made of one sample
    {offers}
modules with their parameters, candidates for `parts`
    {modules}
lists of layers: {lists}
"""

IMAGE = {image!r}  # {where}


def build(model, processor, samples, system):
    """One batch. A sample has `prompt`, `images`, and `pieces`: its texts and images in order."""
    {made}
    return {{
        {returned}
        # "visual_mask": bool [batch, seq], True at the rows of an image, where no pixels tell it
    }}


parts = {{  # what is not found: remove the mark before a line, and name the module
    {parts}
}}
'''


def begin_inputs_file(model: str, path: Path, loading: Loading) -> str:
    """Write an inputs file and measure one sample with it.

    Returns:
        What came of the sample, in words: it is measured, or why not.

    Raises:
        NormprobeError: the file exists or cannot be written, or the model cannot be opened.
    """
    if path.exists():
        raise NormprobeError(f"{path} exists", "write to another file, or remove it")
    source = Probe(model, **vars(loading))._source
    assert isinstance(source, CheckpointSource)
    built = build_on_meta(source.checkpoint)
    (sample,) = open_data("sample", limit=1)
    try:
        path.write_text(_text(model, path.name, source, built, sample), encoding="utf-8")
    except OSError as error:
        raise NormprobeError(
            f"{path} cannot be written: {first_line(error)}", "choose another file"
        ) from error
    try:
        probe = Probe(model, **{**vars(loading), "inputs": path})
        table = probe.layers("sample", limit=1, intervals=False, workers=0).table
    except NormprobeError as failure:
        return f"not measured with it yet: {failure.problem}\n{failure.remedy}"
    held = table[(table["layer"] == 0) & (table["group"] != NON_VISUAL)]
    told = ", ".join(f"{n} {group}" for group, n in zip(held["group"], held["tokens"], strict=True))
    if VISUAL not in set(held["group"]):
        return f"one sample is measured with it, and has no visual tokens ({told}): add its pixels"
    return f"one sample is measured with it: {told} tokens"


def _text(name: str, file: str, source: CheckpointSource, model: nn.Module, sample: Sample) -> str:
    try:
        processor, refused = source.builder.processor, ""
    except NormprobeError as failure:
        processor, refused = None, failure.problem
    made: Mapping[str, Any] = {}
    try:
        made = build_documented(processor, [sample], None) if processor is not None else {}
    except (*REFUSALS, ImportError) as error:
        refused = first_line(error)
    parameters = list(signature(model.forward).parameters.values())
    token = image_token(processor) if processor is not None else None
    names = {id(module): each for each, module in model.named_modules()}
    return _FILE.format(
        name=name,
        file=file,
        model_class=type(model).__name__,
        takes=_lines(map(str, parameters)),
        processor=type(processor).__name__ if processor is not None else "none that loads",
        offers=_lines([f"{key}: {_shape(value)}" for key, value in made.items()] or [refused]),
        modules=_lines(_modules(model)),
        lists=candidates(model, names),
        image=token or "<image>",
        where="the processor's own" if token else "a guess: what its README writes for a picture",
        made=_AS_EVER if made else _BY_HAND,
        returned="\n        ".join(_returned([p.name for p in parameters], made)),
        parts="\n    ".join(_parts(model, names)),
    )


def _lines(items: Any) -> str:
    return "\n    ".join(items) or "nothing"


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _modules(model: nn.Module) -> list[str]:
    """The outer modules, the largest first."""
    found = [(n, m) for n, m in model.named_modules() if n and n.count(".") < 3 and size_of(m)]
    found = [(name, module) for name, module in found if not re.search(r"\.\d+(\.|$)", name)]
    found.sort(key=lambda pair: -size_of(pair[1]))
    return [f"{name}  {type(m).__name__}  {size_of(m):,}" for name, m in found[:_LISTED]]


#: How inputs are made without a file; and where that fails, to begin with.
_AS_EVER = """from normprobe.inputs.standard import build_documented

    made = build_documented(processor, samples, system)  # as without this file"""
_BY_HAND = """texts = [sample.text_with(lambda number: IMAGE) for sample in samples]
    images = [image.convert("RGB") for sample in samples for image in sample.images]
    made = dict(processor(text=texts, images=images or None, return_tensors="pt"))"""


def _returned(takes: Sequence[str], made: Mapping[str, Any]) -> Iterator[str]:
    """What forward takes of what was made; pixels under the name that forward has for them."""
    pixels = [name for name in pixel_inputs(made) if name not in takes]
    waiting = [name for name in takes if _PIXELS.search(name) and name not in made]
    renamed = dict(zip(waiting, pixels, strict=False))
    for name in takes:
        if name in made or name in renamed:
            yield f'"{name}": made["{renamed.get(name, name)}"],'
    if not made:
        yield '"input_ids": made["input_ids"],  # by the names that forward takes'


def _parts(model: nn.Module, names: dict[int, str]) -> Iterator[str]:
    """What structure tells, and a guess where it does not."""
    seen = vision_modules(model)
    guesses = {
        "vision_encoder": seen[0] if seen else "NAME",
        "projector": next((name for name in seen if "proj" in name), "NAME"),
        "decoder_layers": largest(model, nn.ModuleList, names),
        "text_embedding": largest(model, nn.Embedding, names),
    }
    with suppress(NormprobeError):
        guesses |= {role: part.name for role, part in find_parts(model) if role in MODULE_ROLES}
    for role in MODULE_ROLES:
        yield f'# "{role}": "{guesses[role]}",'
    yield '# "image_token_ids": (ID,),  # none: the rows that other pixels change are visual'
