"""Plans a load: which tensors of a checkpoint it will read."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from normprobe.errors import NormprobeError, first_line
from normprobe.failures import is_native
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.parts import Parts
from normprobe.model.find.structure import find_parts
from normprobe.model.load.gguf_weights import weight_files_of
from normprobe.model.load.partial_load import build_on_meta, partial_class
from normprobe.model.load.required_tensors import Needs, tensor_names, unneeded
from normprobe.model.load.weight_checks import (
    refuse_missing,
    refuse_scaled,
    refuse_whole_numbers,
    unread_layers,
)
from normprobe.model.load.weight_files import TensorHeader, WeightFiles, torch_dtypes
from normprobe.remote_code_bridges import foreign_code
from normprobe.versions import is_line_5, load_and_report

_LOAD: Any = vars(PreTrainedModel)["from_pretrained"].__func__


def dry_run(
    model_class: Any, checkpoint: Checkpoint, weights: WeightFiles, dtype: Any
) -> tuple[frozenset[str], Mapping[str, Any]]:
    """Run the loader without values.

    Returns:
        The keys of the tensors that the loader reads, and its report.
    """
    stand_ins = {key: _StandIn(weights, key) for key in weights.file_of}
    try:
        with _silent():
            _, report = load_and_report(
                model_class,
                None,
                config=checkpoint.config,
                state_dict=stand_ins,
                device_map="meta",
                dtype=dtype,
                **checkpoint.keywords,
            )
    finally:
        _raise_known(stand_ins.values())
    return frozenset(key for key, stand_in in stand_ins.items() if stand_in.was_read), report


class _StandIn:
    """Stands for one checkpoint tensor, as a slice of safetensors; it notes when it is read."""

    def __init__(self, weights: WeightFiles, key: str) -> None:
        self.weights, self.key = weights, key
        self.was_read = False
        self.failure: NormprobeError | None = None

    def __getitem__(self, _: Any) -> torch.Tensor:
        self.was_read = True
        header = self._header()
        dtype = torch_dtypes().get(header.dtype, torch.uint8)
        return torch.empty(header.shape, dtype=dtype, device="meta")

    def get_shape(self) -> list[int]:
        return list(self._header().shape)

    def get_dtype(self) -> str:
        return self._header().dtype

    def _header(self) -> TensorHeader:
        try:
            return self.weights.header(self.key)
        except NormprobeError as failure:  # the loader may swallow it
            self.failure = failure
            raise


@contextmanager
def _silent() -> Iterator[None]:
    """No progress bar and no report on missing tensors for a load that loads nothing."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _raise_known(stand_ins: Iterable[_StandIn]) -> None:
    """Raise what went wrong in a stand-in, which says more than what the loader makes of it."""
    for stand_in in stand_ins:
        if stand_in.failure is not None:
            raise stand_in.failure


#: Float types whose values need no scale, as safetensors names them.
_FLOATS = ("F64", "F32", "F16", "BF16")

#: Why everything is read of a model whose parts are not found by structure.
NO_PARTS = "its structure does not tell its parts, and to find them the whole model has to run"


@dataclass(frozen=True)
class LoadPlan:
    """What a load will read."""

    checkpoint: Checkpoint  # of ``open_checkpoint``
    model_class: Any  # builds the model without the tensors that are not needed
    weights: WeightFiles  # the checkpoint's files
    # the tensors to read; None: all of them, as ``from_pretrained`` reads them
    keys: frozenset[str] | None
    # the float type that ``auto`` stands for, the one of most bytes in the files that are read;
    # None: the config's (of a quantised checkpoint)
    dtype: Any = None
    # why everything is read; empty where only some of the tensors are, or where everything was
    # asked for
    because: str = ""
    notes: tuple[str, ...] = ()  # where config and files differ, in words
    # keys in the files for which a model of code of its own has no place as it is built
    unplaced: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """The files that hold the tensors to read."""
        if self.keys is None:
            return self.weights.files
        return sorted({self.weights.file_of[key] for key in self.keys})

    def nbytes_in(self, files: Collection[str]) -> int:
        """Bytes of the tensors to read that these files hold."""
        keys = self.weights.file_of if self.keys is None else self.keys
        held = [key for key in keys if self.weights.file_of[key] in files]
        return sum(self.weights.header(key).nbytes for key in held)


def plan_for(
    needs: Needs,
    checkpoint: Checkpoint,
    *,
    named: Mapping[str, Any] | None = None,
    find: Callable[..., Parts] = find_parts,
    range_reads: bool = False,
) -> LoadPlan:
    """Plan the load of the tensors that a measurement reads. Reads headers, no weights."""
    model = build_on_meta(checkpoint)
    weights = weight_files_of(checkpoint, range_reads=range_reads)
    try:
        parts = find(model, named=named)
    except NormprobeError:
        return replace(plan_loading(checkpoint, model, weights=weights), because=NO_PARTS)
    return plan_loading(checkpoint, model, unneeded(needs, model, parts), weights=weights)


def plan_loading(
    checkpoint: Checkpoint,
    model: nn.Module,
    without: Collection[str] = (),
    *,
    weights: WeightFiles | None = None,
) -> LoadPlan:
    """Plan the load of a model without some of its tensors. Reads headers, no weights."""
    weights = weights or weight_files_of(checkpoint)
    if is_quantised(checkpoint):
        refuse_scaled(checkpoint, weights, _tables(weights, model))
        return LoadPlan(
            checkpoint, type(model), weights, None, because="the checkpoint is quantised"
        )
    model_class = partial_class(type(model), without, checkpoint.config.name_or_path)
    named = checkpoint.config.dtype
    try:
        with foreign_code(checkpoint.trust_remote_code, checkpoint.bridges):
            keys, report = dry_run(model_class, checkpoint, weights, named or torch.float32)
            if report["missing_keys"] and (
                renamed := _renamed(checkpoint, model, weights, report["missing_keys"])
            ):
                checkpoint = renamed
                keys, report = dry_run(model_class, checkpoint, weights, named or torch.float32)
    except NormprobeError:
        raise
    except Exception as error:  # a model class may do anything with tensors without values
        refuse_scaled(checkpoint, weights, weights.file_of)
        because = f"a dry run of the loader failed: {first_line(error)}"
        if (
            getattr(cast(Any, type(model)).from_pretrained, "__func__", None) is not _LOAD
        ):  # it may want a path (Phi-4-reasoning-vision)
            because = "its class reads its files by itself"
        dtype = _stored_dtype(weights, weights.files)
        notes = _dtype_notes(named, dtype)
        renames = getattr(model, "_checkpoint_conversion_mapping", None)
        renames = renames or checkpoint.keywords.get("key_mapping")
        unknown = renames or is_native(model)  # which transformers renames as it loads
        unplaced = () if unknown else tuple(_unplaced(model, weights, weights.file_of))
        return LoadPlan(checkpoint, type(model), weights, None, dtype, because, notes, unplaced)
    refuse_missing(checkpoint, report)
    refuse_scaled(checkpoint, weights, keys)
    refuse_whole_numbers(checkpoint, weights, keys, model)
    dtype = _stored_dtype(weights, {weights.file_of[key] for key in keys}) or named
    layers = tuple(
        f"{text}: the layers above are not read" for text in unread_layers(model, report)
    )
    notes = (*layers, *_dtype_notes(named, dtype), *_stored_notes(weights))
    unplaced = tuple(_unplaced(model, weights, report["unexpected_keys"]))
    return LoadPlan(checkpoint, model_class, weights, keys, dtype, notes=notes, unplaced=unplaced)


#: A module of CLIP and SigLIP that transformers 5 no longer has.
_INNER = ".vision_model."


def _renamed(
    checkpoint: Checkpoint, model: nn.Module, weights: WeightFiles, missing: Iterable[str]
) -> Checkpoint | None:
    """With the renames that its own class states, and transformers 5 passes over, if there are.

    Or with those of a tower of CLIP or SigLIP inside, of which 5 has a module less (LLaVA-UHD v2).
    With none where the file names all that is missing: the class that it is derived from has since
    been laid out otherwise (MAIRA-2).
    """
    given, missing = "key_mapping" in checkpoint.keywords, tuple(missing)
    if given or type(model).__module__.startswith("transformers."):
        return None
    renames: dict[str, str] = {}
    bridge = "names of weights as they are"
    if not any(key in weights.file_of for key in missing):
        if is_native(model) or not is_line_5():
            return None
        bridge = "_checkpoint_conversion_mapping"
        renames = dict(getattr(model, bridge, None) or {})
        if not renames:
            bridge = f"names of weights behind {_INNER}"
            renames = {
                rf"^{re.escape(holder + _INNER)}": f"{holder}."
                for holder in {key.partition(_INNER)[0] for key in weights.file_of if _INNER in key}
                if any(key.startswith(f"{holder}.") for key in missing)
            }
        if not renames:
            return None
    if bridge not in checkpoint.bridges:
        checkpoint.bridges.append(bridge)
    return replace(checkpoint, keywords={**checkpoint.keywords, "key_mapping": renames})


#: Ends of the names of buffers that older code saved, and newer code makes.
_MADE = ("inv_freq", "position_ids", "masked_bias", "num_batches_tracked")


def _unplaced(model: nn.Module, weights: WeightFiles, unexpected: Iterable[str]) -> Iterator[str]:
    """Of the keys that the loader has no place for those that the whole model has none for.

    Types of transformers leave some out on purpose: of these it is told what their layers lack, as
    of a package's class of the same name (Vamba).
    """
    within = _modules_of_layers(model) if is_native(model) else None
    names, prefix = tensor_names(model), f"{getattr(model, 'base_model_prefix', '')}."
    for key in sorted(unexpected):
        bias = key.endswith(".bias") and key in weights.file_of  # else it was renamed
        causal_mask = bias and len(weights.header(key).shape) == 4  # as GPT-2's
        made = causal_mask or key.endswith(_MADE)
        if within is not None:
            inside = _IN_LAYER.search(key)
            made = made or inside is None or inside[2] in within.get(inside[1], {inside[2]})
        if not made and not {key, key.removeprefix(prefix), prefix + key} & names:
            yield key


#: A layer in the name of a tensor, and what is inside of it.
_IN_LAYER = re.compile(r"(\w+\.\d+)\.(\w+)\.")


def _modules_of_layers(model: nn.Module) -> dict[str, set[str]]:
    """By the end of the name of each layer, such as ``layers.0``, what is inside of all of them."""
    found = defaultdict[str, set[str]](set)
    for name, module in model.named_modules():
        if end := re.search(r"\w+\.\d+$", name):
            found[end[0]] |= {inner for inner, _ in module.named_children()}
    return found


def is_quantised(checkpoint: Checkpoint) -> bool:
    """Whether the config says that weights are quantised, as by bitsandbytes."""
    return getattr(checkpoint.config, "quantization_config", None) is not None


def _tables(weights: WeightFiles, model: nn.Module) -> list[str]:
    """The keys of the tensors that have the shape of the embedding table."""
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    shape = tuple(getattr(getattr(embedding, "weight", None), "shape", ()))
    return [key for key in weights.file_of if weights.header(key).shape == shape]


def _stored_dtype(weights: WeightFiles, files: Iterable[str]) -> Any:
    """The float type that most bytes of some files are saved in; None: they hold no floats."""
    nbytes: Counter[str] = Counter()
    for header in chain.from_iterable(weights.headers(file).values() for file in files):
        if header.dtype in _FLOATS:
            nbytes[header.dtype] += header.nbytes
    return torch_dtypes()[max(nbytes, key=lambda name: nbytes[name])] if nbytes else None


def _stored_notes(weights: WeightFiles) -> tuple[str, ...]:
    """A note where the weights are rounded to few bits."""
    if not weights.stored_as:
        return ()
    told = ", ".join(f"{how} ({number})" for how, number in weights.stored_as.items())
    return (f"tensors are stored as {told}: what is measured are their values in float32",)


def _dtype_notes(named: Any, stored: Any) -> tuple[str, ...]:
    """A note where the config names another float type than the files hold."""
    if named is None or stored is None:
        return ()
    named, stored = (str(dtype).removeprefix("torch.") for dtype in (named, stored))
    if named == stored:  # a config may hold the name of a dtype (GR00T)
        return ()
    return (f"config.json says {named}, and the weights are saved in {stored}",)
