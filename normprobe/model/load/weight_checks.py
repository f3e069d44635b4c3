"""Checks that loaded weights are those that were saved: none made up, NaN or without its scale.

transformers' loader fills weights that a checkpoint lacks at random and only warns. It loads NaN in
silence, and casts an 8-bit table without its scales.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from normprobe.errors import NormprobeError
from normprobe.failures import is_native, other_version
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.parts import Parts
from normprobe.model.load.repository import Repository
from normprobe.model.load.weight_files import WeightFiles
from normprobe.versions import is_line_5

#: Numbers of a weight that are looked at, at most, and too few to judge by.
_LOOKED_AT, _FEW = 2**16, 100
#: The mean size of numbers by their root mean square, from which on they are all of one size.
_ONE_SIZE = 0.95

#: Weights that are compared with a file, about, and how far a cast to 16 bit may move one.
_COMPARED, _CAST = 8, 1e-2

#: Stored types, as safetensors names them, whose values need no scale.
_WHOLE = {"I64", "I32", "BOOL"}
_PLAIN = {"F64", "F32", "F16", "BF16", *_WHOLE}


def refuse_missing(checkpoint: Checkpoint, report: Mapping[str, Any]) -> None:
    """Refuse weights that the loader would fill at random."""
    mismatched = {name: (saved, expected) for name, saved, expected in report["mismatched_keys"]}
    missing = set(report["missing_keys"]) - mismatched.keys()
    refuse_lacking(
        checkpoint,
        [
            *sorted(missing and missing - _in_adapter(checkpoint)),
            *(
                f"{name} (saved {list(saved)}, expected {list(expected)})"
                for name, (saved, expected) in sorted(mismatched.items())
            ),
        ],
    )


def without_read(
    report: Mapping[str, Any], weights: WeightFiles, model: nn.Module
) -> dict[str, Any]:
    """The report without what a class has read by itself since: its values are those of the file.

    Phi-4-reasoning-vision makes its tower behind the load of the rest.
    """
    missing = set(report["missing_keys"])
    return {**report, "missing_keys": missing - _as_stored(missing, weights, model)}


def _as_stored(names: Collection[str], weights: WeightFiles, model: nn.Module) -> set[str]:
    """Of these names those whose values are the file's."""
    if not names:
        return set()
    here = {name: tensor for name, tensor in model.state_dict().items() if name in names}
    stored = weights.tensors([name for name in here if name in weights.file_of])
    pairs = ((name, here[name], tensor[...]) for name, tensor in stored.items())
    return {n for n, a, b in pairs if a.shape == b.shape and torch.equal(a, b.to(a))}


@contextmanager
def loading_beside(model: nn.Module) -> Iterator[list[str]]:
    """Of what code loads by itself inside the block, such as a tower: what its files lack.

    And what changes behind the load: ``post_init`` of what is around a part may make its weights
    anew (VLM-3R). Where the code says no dtype, it is that of ``model``: transformers 5 takes the
    files'.
    """
    dtypes = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    dtype = next(dtypes, None)
    load, found = vars(PreTrainedModel)["from_pretrained"].__func__, list[str]()

    def load_and_see(cls: Any, *arguments: Any, **options: Any) -> Any:
        told = options.pop("output_loading_info", False)
        if dtype is not None and not {"dtype", "torch_dtype"} & options.keys():
            options["dtype"] = dtype
        model, report = load(cls, *arguments, output_loading_info=True, **options)
        if lacking := sorted(report["missing_keys"]):
            where = arguments[0] if arguments else "what is loaded"
            found.append(
                f"{where} lacks {len(lacking)} of the weights of {cls.__name__}, such as "
                f"{lacking[0]}: they are random"
            )
        return (model, report) if told else model

    read, fill = dict[int, tuple[str, Tensor, int]](), nn.Module.load_state_dict

    def fill_and_see(module: nn.Module, state_dict: Any, *more: Any, **options: Any) -> Any:
        filled = fill(module, state_dict, *more, **options)
        for name, weight in module.named_parameters():
            if name in state_dict:
                read[id(weight)] = f"{type(module).__name__}.{name}", weight, weight._version
        return filled

    with (
        patch.object(PreTrainedModel, "from_pretrained", classmethod(load_and_see)),
        patch.object(nn.Module, "load_state_dict", fill_and_see),
    ):
        yield found
    changed = [name for name, weight, version in read.values() if weight._version != version]
    if changed:
        found.append(
            f"weights changed behind the load_state_dict() that read them ({len(changed)}, such as "
            f"{changed[0]}): code around them may have made them anew"
        )


def unplaced_doubt(weights: WeightFiles, unplaced: Collection[str], model: nn.Module) -> str:
    """A doubt where files hold tensors for which a model had no place when it was loaded.

    It may still have none (Wings). Or ``prepare`` made weights of these names, of which some are
    compared: towers of LLaVA's kin load their own, and a trained one lies in the files (ALLaVA).
    """
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    there, doubts = _by_key(unplaced, held), list[str]()
    left, made = [k for k in unplaced if k not in there], [k for k in unplaced if k in there]
    way = "where its code makes their modules later, do so in prepare(model, processor)"
    if is_native(model):
        way = f"a package may have a {type(model).__name__} of its own: register it in setup()"
    if left:
        doubts.append(
            f"the model has no place for {len(left)} of the tensors in its files, such as "
            f"{left[0]}: what these do is not measured; {way} of --inputs FILE.py"
        )
    if told := _other_values(weights, {key: there[key] for key in made}):
        doubts.append(f"the files hold {told}: what is measured is not what they hold")
    return "; ".join(doubts)


def replaced_doubt(weights: WeightFiles, read: Mapping[str, Tensor], model: nn.Module) -> str:
    """A doubt where ``prepare`` put other weights in place of some that were read from files.

    A tower that its own loader loads twice (LLaVA's) loses what was trained of it.
    """
    now = _by_key(weights.file_of, dict(model.named_parameters(remove_duplicate=False)))
    before = _by_key(weights.file_of, read)
    others = {key: now[key] for key in sorted(before.keys() & now) if now[key] is not before[key]}
    if told := _other_values(weights, others):
        return f"the files hold {told}: is what prepare() loads what was trained?"
    return ""


_INSIDE = re.compile(r"\.(vision|text)_model\.")


def _by_key(keys: Iterable[str], there: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model by those keys of files that stand for one of them."""
    # A tower was the ``vision_model`` of the model around it, which became the tower; so of texts.
    names = {key: key if key in there else _INSIDE.sub(".", key, count=1) for key in keys}
    return {key: there[name] for key, name in names.items() if name in there}


def _other_values(weights: WeightFiles, made: Mapping[str, Tensor]) -> str:
    """Of weights that ``prepare`` made those that are others in the files; some are compared."""
    here = weights.repository.path_here  # nothing is fetched for a look
    names = [key for key in made if here(weights.file_of[key]) and not made[key].is_meta]
    # Matrices first, which most of what is trained lies in; of these any, by their names' hashes.
    names.sort(key=lambda key: (made[key].dim() < 2, sha256(key.encode()).digest()))
    some, differ = names[:_COMPARED], list[str]()
    for name, saved in weights.tensors(some).items():
        ours, theirs = made[name].detach().cpu().double(), saved[...].double()
        same = ours.shape == theirs.shape and (ours - theirs).norm() <= _CAST * theirs.norm()
        differ += [] if same else [name]
    if not differ:
        return ""
    return (
        f"{len(names)} of the weights that prepare() made, and {len(differ)} of {len(some)} that "
        f"were compared have other values there, such as {differ[0]}"
    )


def refuse_unread(checkpoint: Checkpoint, model: nn.Module, files: WeightFiles) -> None:
    """Refuse weights that the loader did not mark as read.

    Its report does not list weights that a model class declares as unneeded. Tensors on meta were
    not needed or are offloaded; quantised ones carry no mark.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        return
    weights = model.named_parameters()
    unread = [
        n for n, w in weights if not w.is_meta and not getattr(w, "_is_hf_initialized", False)
    ]
    lacking = {*unread} - _as_stored(unread, files, model)
    refuse_lacking(checkpoint, sorted(lacking and lacking - _in_adapter(checkpoint)))


def _in_adapter(checkpoint: Checkpoint) -> set[str]:
    """The weights that a PEFT adapter holds whole, such as a projector that its base lacks."""
    if checkpoint.adapter is None:
        return set()
    where = Repository(checkpoint.adapter, checkpoint.adapter, checkpoint.adapter_revision)
    with suppress(NormprobeError):  # in another format; merging it says what is wrong
        keys = WeightFiles(where, explicit="adapter_model.safetensors").file_of
        return {key.removeprefix("base_model.model.") for key in keys}
    return set()


def refuse_non_finite(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Refuse weights that hold NaN or infinity: all states computed from them do too."""
    floats = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    weights = [
        (name, weight.to_local() if hasattr(weight, "to_local") else weight)
        for name, weight in model.named_parameters()
        if weight.dtype in floats and not weight.is_meta and weight.numel()
    ]
    if not weights:
        return
    device = weights[0][1].device
    with torch.no_grad():  # extremes need no copy of a weight; the answers come over together
        finite = torch.stack(
            [torch.stack(w.aminmax()).isfinite().all().to(device) for _, w in weights]
        ).tolist()
    named = [name for (name, _), fine in zip(weights, finite, strict=True) if not fine]
    if named:
        raise NormprobeError(
            f"{checkpoint.name} holds NaN or infinity in {_some(named)}",
            "fetch the checkpoint again, or go back to a step before the training diverged",
        )


def refuse_scaled(checkpoint: Checkpoint, weights: WeightFiles, keys: Iterable[str]) -> None:
    """Refuse tensors of a stored type that means nothing without a scale, such as float8."""
    headers = {key: weights.header(key) for key in keys}
    scaled = [
        f"{key} ({header.dtype})"
        for key, header in sorted(headers.items())
        if len(header.shape) > 1 and header.dtype not in _PLAIN
    ]
    if scaled:
        raise NormprobeError(
            f"{checkpoint.name} stores {_some(scaled)}, which means nothing without its scales; "
            "expected F64, F32, F16 or BF16",
            "use the checkpoint that this one was quantised from",
        )


def refuse_whole_numbers(
    checkpoint: Checkpoint, weights: WeightFiles, keys: Iterable[str], model: nn.Module
) -> None:
    """Refuse whole numbers where the model has floats: the loader would cast them in silence."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    whole = {name.rpartition(".")[2] for name, t in tensors if not t.is_floating_point()}
    read = ((key, weights.header(key).dtype) for key in sorted(keys))
    found = [
        f"{key} ({dtype})"
        for key, dtype in read
        if dtype in _WHOLE and key.rpartition(".")[2] not in whole
    ]
    if found:
        raise NormprobeError(
            f"{checkpoint.name} stores whole numbers where weights are floats: {_some(found)}",
            "fetch the checkpoint again, or use the one that this one was made from",
        )


def unread_layers(model: nn.Module, report: Mapping[str, Any]) -> list[str]:
    """Layers in the files for which the model has no place, in words."""
    lists = {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    saved: dict[str, int] = {}
    for key in report["unexpected_keys"]:
        for place in re.finditer(r"\.(\d+)\.", key):
            name, index = key[: place.start()], int(place[1])
            if index >= lists.get(name, index + 1):
                saved[name] = max(saved.get(name, 0), index + 1)
    return [
        f"{name}: {lists[name]} by the config, {number} in the weight files"
        for name, number in sorted(saved.items())
    ]


def quantised_parts(parts: Parts) -> list[str]:
    """The roles of parts that hold weights of another type than float, such as packed 4 bit."""
    return [
        role
        for role, part in parts
        if any(weight.dtype.itemsize == 1 for weight in part.module.parameters())
    ]


def is_relabelled(weight: Any) -> bool:
    """Whether the numbers of a weight are those of bfloat16 that were taken for float16.

    The bits that bfloat16 holds its exponent in are mantissa there: numbers of all sizes become
    about 1. The mean of their absolute values is then nearly their root mean square; of a bell
    curve it is 0.80, of a flat one 0.87.
    """
    if weight.is_meta or type(weight.data) is not torch.Tensor or not weight.is_floating_point():
        return False
    with torch.no_grad():
        some = weight.flatten()[:: weight.numel() // _LOOKED_AT + 1].float().abs()
        some = some[some > 0]
        rms = some.square().mean().sqrt()
        return bool(len(some) > _FEW and some.mean() > _ONE_SIZE * rms and some.std() > 0)


def refuse_lacking(checkpoint: Checkpoint, lacking: Sequence[str]) -> None:
    """Refuse a checkpoint that lacks weights, if any are named."""
    if is_line_5() and any(".experts." in name for name in lacking):
        version = other_version(getattr(checkpoint.config, "transformers_version", None))
        raise NormprobeError(
            f"{checkpoint.name} lacks weights under the names that transformers 5 has for them: "
            f"{_some(lacking)}: it joins experts, and knows types of its own alone",
            f"where the files hold an expert each: {version}",
        )
    if lacking:
        folder = Path(checkpoint.source)
        files = (*folder.glob("*/*.safetensors"), *folder.glob("*/pytorch_model*.bin"))
        parts = ", ".join(dict.fromkeys(sorted(file.parent.name for file in files)))
        told = (
            f"its folders {parts} hold weights that the code of its package loads: save the model "
            "that it makes by save_pretrained, and measure that"
        )  # VisualCLA
        raise NormprobeError(
            f"{checkpoint.name} lacks weights that the model needs: {_some(lacking)}",
            told
            if parts
            else "check that config.json and weights belong together, or fetch them again; norms "
            "of randomly initialised weights mean nothing",
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
