"""What differs between the two lines of transformers that are supported, 4.57 and 5.

Each function says what differs. All of it is here: the rest of the package knows one transformers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from importlib import import_module
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
import transformers
from accelerate import init_empty_weights
from torch import Size, Tensor, nn

from normprobe.errors import NormprobeError

#: It is replaced for the whole process: one thread at a time.
_REPLACING_AUTOCAST = RLock()

#: Attributes of the types of transformers that hold the vision encoder, and the language model.
_ENCODERS = {
    "image": ("vision_tower", "visual", "vision_model", "vision_encoder", "image_tower"),
    "audio": ("audio_tower", "audio_encoder", "sound_encoder"),
}
_DECODERS = ("language_model", "text_model", "decoder", "text_decoder")


def is_line_5() -> bool:
    """Whether transformers 5 is installed: it builds on the meta device, and loads otherwise."""
    return int(transformers.__version__.partition(".")[0]) >= 5


def made_on_meta(make: Callable[[], nn.Module], *, keeps_buffers: bool = False) -> nn.Module:
    """A model on the meta device, built as ``from_pretrained`` builds it.

    transformers 5 builds it there, but code that reads a value meanwhile gets one. 4.57 puts
    parameters alone there, without their initialisation, and ties them afterwards.
    """
    if is_line_5() and keeps_buffers:
        with init_empty_weights(include_buffers=False):
            return make()
    if is_line_5():
        home = import_module("transformers.initialization")
        with torch.device("meta"), home.meta_device_safe_creation_ops():
            return make()
    loader = import_module("transformers.modeling_utils")
    with loader.no_init_weights(), init_empty_weights(include_buffers=False):
        model: Any = make()
    model.tie_weights()
    on_meta: nn.Module = model.to("meta")
    return on_meta


def tied_weights(model: nn.Module) -> dict[str, str]:
    """The name of each tied weight and of the one that it is tied to.

    transformers 5 lists them; in 4.57 they are one object as soon as the model is built.
    """
    if is_line_5():
        return dict(getattr(model, "all_tied_weights_keys", {}))
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        source = first.setdefault(id(weight), name)
        if source != name:
            tied[name] = source
    return tied


def encoder_of(model: Any, modality: str) -> Any:
    """What ``get_encoder`` gives of a modality: the encoder, or the model itself.

    The accessors of 4.57 know no modalities, and its bare encoders are one module in another.
    """
    if is_line_5():
        return model.get_encoder(modality=modality)
    found = _attribute(model, _ENCODERS[modality])
    return model if found is None or [found] == list(model.children()) else found


def reader_of_encoder(encoder: nn.Module, projector: nn.Module | None) -> nn.Module | None:
    """The module inside a vision encoder that reads its hidden states; None: they are its output.

    In 5 an encoder of transformers returns its hidden states beside what its merger makes of them;
    in 4.57, and in code of a repository written for it, the latter alone. Ovis2's returns
    probabilities there.
    """
    if is_line_5() and type(encoder).__module__.startswith("transformers."):
        return None
    if projector is not None and projector in encoder.modules():
        return projector
    return None if is_line_5() else getattr(encoder, "head_linear", None)


def decoder(model: Any) -> Any:
    """What ``get_decoder`` gives: the language model, or the model itself.

    That of 4.57 passes over the language model of some types.
    """
    found = None if is_line_5() else _attribute(model, _DECODERS)
    return model.get_decoder() if found is None else found


def _attribute(model: Any, names: Sequence[str]) -> nn.Module | None:
    """The first module of these names in a model, or in the base model inside it."""
    holders = [model]
    while (base := holders[-1].base_model) is not holders[-1]:
        holders.append(base)
    found = (getattr(holder, name, None) for holder in holders for name in names)
    return next((module for module in found if isinstance(module, nn.Module)), None)


def tensor_parallel() -> dict[str, Any]:
    """The argument of ``from_pretrained`` that lets processes share each layer, by its own plan.

    Raises:
        NormprobeError: on 4.57, which asks tensors for more than what is read on demand gives.
    """
    if not is_line_5():
        raise NormprobeError(
            f"--device tp needs transformers 5; {transformers.__version__} is installed",
            "pass --device balanced, in one process",
        )
    configuration = import_module("transformers.distributed").DistributedConfig
    return {"distributed_config": configuration(tp_plan="auto")}


def load_and_report(
    model_class: Any, source: str | None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """``from_pretrained`` with a full report, and a mark on each weight that was read.

    transformers 5 reports the shapes of weights that do not fit, sets ``_is_hf_initialized`` on
    what it has read, and reads a state dict tensor by tensor, by indexing. 4.57 reports names
    alone, marks nothing, and asks each tensor for its shape, its dtype and ``to``.

    Returns:
        The model, and the loading info.
    """
    options |= {"ignore_mismatched_sizes": True}
    if is_line_5():
        return _loaded(model_class, source, **options)
    shapes: dict[str, tuple[Size, Size]] = {}
    if "state_dict" in options:
        tensors = options["state_dict"].items()
        options["state_dict"] = {key: _OnDemand(tensor) for key, tensor in tensors}
    with _loader_that_tells(model_class, shapes):
        model, report = _loaded(model_class, source, **options)
    report["mismatched_keys"] = [(name, *both) for name, both in shapes.items()]
    return model, report


def _loaded(model_class: Any, source: str | None, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model and the report, also of a class whose loader is its own.

    Which asks a model of what it gets (VLM-3R), or returns the model alone (Video-XL): none is
    told of the report, which is kept beside.
    """
    loader, asked = transformers.PreTrainedModel, {"output_loading_info": True}
    load, reports = vars(loader)["from_pretrained"].__func__, list[dict[str, Any]]()

    def load_and_keep(cls: Any, *arguments: Any, **named: Any) -> Any:
        model, report = load(cls, *arguments, **{**named, **asked})
        if cls is model_class:
            reports.append(report)
        return (model, report) if named.get("output_loading_info") else model

    with patch.object(loader, "from_pretrained", classmethod(load_and_keep)):
        found = model_class.from_pretrained(source, **options)
    return (found, reports[-1]) if reports else load(model_class, source, **asked, **options)


@contextmanager
def _loader_that_tells(model_class: Any, shapes: dict[str, tuple[Size, Size]]) -> Iterator[None]:
    """The loader of 4.57 marks the weights that it reads, and tells shapes that do not fit.

    Not those of a tower that a model loads while it is made, and is told to pass over (SALOVA). It
    marks them when all are read: a tower that is loaded while the model is made would not be
    made on without memory (Florence-VL).
    """
    done_with: list[tuple[Any, set[str]]] = []
    loader: Any = import_module("transformers.modeling_utils")
    find, load = loader._find_mismatched_keys, loader._load_state_dict_into_meta_model

    @wraps(find)
    def find_and_tell(model: Any, *arguments: Any, **named: Any) -> Any:
        names, both = find(model, *arguments, **named)
        if isinstance(model, model_class):
            shapes.update(zip(names, both, strict=True))
        return names, both

    @wraps(load)
    def load_and_note(model: Any, tensors: Any, *arguments: Any, **named: Any) -> Any:
        read, tied = set(tensors), tied_weights(model)
        done = load(model, tensors, *arguments, **named)
        done_with.append((model, read))
        for name, source in tied.items():
            if name in read and source not in read:  # else it is tied to an empty one
                holder, _, own = source.rpartition(".")
                setattr(model.get_submodule(holder), own, model.get_parameter(name))
        return done

    with (
        patch.object(loader, "_find_mismatched_keys", find_and_tell),
        patch.object(loader, "_load_state_dict_into_meta_model", load_and_note),
    ):
        yield
    for model, read in done_with:
        for name in read:
            with suppress(AttributeError):  # it was put elsewhere
                model.get_parameter_or_buffer(name)._is_hf_initialized = True


class _OnDemand:
    """What the loader of 4.57 asks of a tensor of a state dict, without reading it before."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def shape(self) -> Size:
        found = self._tensor
        return found.shape if isinstance(found, Tensor) else Size(found.get_shape())

    @property
    def dtype(self) -> Any:
        found = self._tensor
        if isinstance(found, Tensor):
            return found.dtype
        return import_module("transformers.modeling_utils").str_to_torch_dtype[found.get_dtype()]

    def to(self, device: Any) -> Tensor:
        read: Tensor = self._tensor[...]
        return read.to(device) if device is not None else read


@contextmanager
def autocast_on_meta() -> Iterator[None]:
    """``torch.autocast`` on the meta device does nothing inside the block; torch refuses it.

    The rotary tables of 4.57 ask for it wherever they run.
    """
    if is_line_5():
        yield
        return
    with _REPLACING_AUTOCAST:
        autocast = torch.autocast

        def unless_on_meta(device_type: str, *arguments: Any, **options: Any) -> Any:
            if device_type == "meta":
                return nullcontext()
            return autocast(device_type, *arguments, **options)

        with patch.object(torch, "autocast", unless_on_meta):
            yield
