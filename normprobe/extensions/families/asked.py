"""Inputs of a model as its own code makes them to answer: it is asked, and its forward is caught.

Code without a processor has ``chat`` or its like, which writes the turn, makes the pixels and calls
``generate``. What that hands on is what the authors' model sees; nothing is computed for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, wraps
from hashlib import sha1
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from normprobe.data.sample import Sample
from normprobe.inputs.processor import padding_of, tokenizer_of
from normprobe.model.tracing.recording import tensors
from normprobe.tensors import with_tensors

if TYPE_CHECKING:
    from PIL.Image import Image

#: Asks the model about a sample: ``ask(model, processor, sample)``. What it returns counts where
#: nothing is caught: inputs, of code that makes them and leaves the rest to its caller.
Ask = Callable[[Any, Any, Sample], object]

#: What generate adds to the inputs of a forward, for the answer and not for the prompt.
_OF_AN_ANSWER = re.compile(
    "^(cache_position|past_key_values|next_sequence_length|is_first_iteration|labels)$"
    "|^(use|return|output|(num_)?logits)_"
)

_MAKE_LOADER = DataLoader.__init__

#: By their names: [batch, seq], as long as the prompt.
_IDS, _MASK = "input_ids", "attention_mask"


class _Caught(BaseException):  # code that answers may pass over any Exception
    """Ends what a model was asked: here is what its forward would get."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs = dict(inputs)


class _OnTheCPU(TorchFunctionMode):
    """Leaves tensors on the CPU, and their floating-point numbers as wide as they are.

    Such code often names one GPU and 16 bits. Inputs are made in processes without a GPU, and
    become those of the model's weights later.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        more = dict(kwargs or {})
        named = getattr(func, "__name__", "")
        if named in ("cuda", "half", "bfloat16"):
            return args[0]
        if "device" in more:
            more["device"] = None if named == "to" else "cpu"
        if named == "to":
            like = [each.dtype if isinstance(each, Tensor) else each for each in args[1:]]
            kept = [each for each in like if not _is_left_out(each, args[0])]
            kept = [each for each in kept if not isinstance(each, str | torch.device | int)]
            more = {k: v for k, v in more.items() if v is not None and not _is_left_out(v, args[0])}
            return func(args[0], *kept, **more) if kept or more else args[0]
        return func(*args, **more)


def _is_left_out(dtype: Any, held: Tensor) -> bool:
    return dtype in (torch.float16, torch.bfloat16) and held.is_floating_point()


def inputs_as_asked(
    model: Any, processor: Any, ask: Ask, samples: Sequence[Sample], system: str | None = None
) -> dict[str, Any]:
    """One batch, as the model's own code makes it when it is asked, padded on the right.

    Args:
        model: whose ``generate`` or ``forward`` is caught; neither runs.
        processor: handed to ``ask``.
        ask: calls what answers, such as ``model.chat(tokenizer, sample.image, sample.prompt)``.
        samples: asked one by one.
        system: None: that code writes its own.

    Returns:
        What its forward would get, by its names, on the CPU.

    Raises:
        ValueError: nothing is caught, pixels became rows before, there is a system prompt, or
            several samples do not fit into one batch.
    """
    if system is not None:
        raise ValueError("expected no --system: the code that is asked writes its own")
    rows = [_caught(model, processor, ask, sample) for sample in samples]
    return rows[0] if len(rows) == 1 else _batch(rows, tokenizer_of(processor))


def asked_once(model: Any, processor: Any, ask: Ask) -> None:
    """Ask about a grey picture, for what code sets in its model when it is asked.

    For ``prepare`` of an inputs file: inputs are made in other processes.
    """
    from PIL import Image as Pictures

    grey = Pictures.new("RGB", (64, 48), "grey")
    with suppress(Exception):  # `build` says what fails
        _caught(model, processor, ask, Sample("grey", "What is this?", images=(grey,)))


def picture_file(picture: Image) -> str:
    """The path of a PNG file of a picture, for code that opens files itself."""
    file = Path(_folder().name) / f"{sha1(picture.tobytes()).hexdigest()}.png"
    if not file.exists():
        picture.save(file)
    return str(file)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="normprobe-pictures-")


def _caught(model: Any, processor: Any, ask: Ask, sample: Sample) -> dict[str, Any]:
    sample.require_one_turn()
    try:
        with _watched(model), _OnTheCPU(), torch.no_grad():
            left = ask(model, processor, sample)
    except _Caught as caught:
        given = caught.inputs
    else:
        if not isinstance(left, Mapping) or _IDS not in left:
            raise ValueError(
                f"what ask() calls reaches neither generate nor forward of {type(model).__name__}"
            )
        given = {name: value for name, value in left.items() if isinstance(name, str)}
    made = {
        name: with_tensors(value, lambda tensor: tensor.detach().cpu().clone())
        for name, value in given.items()
        if _is_input(name, value)
    }
    if _IDS not in made and "inputs_embeds" in made:
        raise ValueError(
            f"{type(model).__name__} makes rows of pixels before its forward gets them: "
            "ask() shows no pixels, so write forward()"
        )
    return made


def is_of_an_answer(name: str) -> bool:
    """Whether generate adds an input of that name, for the answer."""
    return _OF_AN_ANSWER.search(name) is not None


def _is_input(name: str, value: Any) -> bool:
    return not is_of_an_answer(name) and not isinstance(value, bool | str | None)


@contextmanager
def _watched(model: Any) -> Iterator[None]:
    """Catch the first call of ``forward``, or of a ``generate`` that gets what forward takes."""
    own = {name: vars(model)[name] for name in ("forward", "generate") if name in vars(model)}
    forward, generate = model.forward, getattr(model, "generate", None)
    takes = signature(forward).parameters

    def at_forward(*args: Any, **kwargs: Any) -> None:
        raise _Caught(_by_name(forward, args, kwargs))

    def at_generate(*args: Any, **kwargs: Any) -> Any:
        given = _by_name(generate, args, kwargs) if generate else dict(kwargs)
        if isinstance(given.get("inputs"), Tensor):
            given[_IDS] = given.pop("inputs")
        held = {name for name, value in given.items() if any(True for _ in tensors(value))}
        if _IDS in held and held <= set(takes):  # else pixels in a list might go unseen
            if generate is not None and _prepares(model):
                with suppress(Exception):  # what forward gets of it, if it gets so far (CXRMate-2)
                    generate(*args, **kwargs)
            raise _Caught({name: value for name, value in given.items() if name in takes})
        return generate(*args, **kwargs) if generate else None

    model.forward, model.generate = at_forward, at_generate
    try:
        with patch.object(DataLoader, "__init__", _without_processes):
            yield
    finally:
        for name in ("forward", "generate"):
            vars(model).pop(name, None)
        vars(model).update(own)


def _prepares(model: Any) -> bool:
    """Whether code of its own makes what its forward gets of what ``generate`` gets."""
    name = "prepare_inputs_for_generation"
    kinds = (kind for kind in type(model).__mro__ if name in vars(kind))
    return not next(kinds, nn.Module).__module__.startswith(("torch.", "transformers."))


@wraps(DataLoader.__init__)
def _without_processes(self: Any, *given: Any, **settings: Any) -> None:
    """Inputs are made in a process that may have none of its own (GME)."""
    settings |= {"num_workers": 0} if "num_workers" in settings else {}
    _MAKE_LOADER(self, *given, **settings)


def _by_name(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call; those of ``**kwargs`` among them."""
    bound = signature(function).bind_partial(*args, **kwargs)
    given = dict[str, Any]()
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        given |= value if kind is kind.VAR_KEYWORD else {name: value}
    return given


def _batch(rows: Sequence[Mapping[str, Any]], tokenizer: Any) -> dict[str, Any]:
    """Several samples: what is as long as ids is padded, the rest stands one behind the other."""
    names = rows[0].keys()
    if any(row.keys() != names or _IDS not in row for row in rows):
        raise ValueError("samples of other inputs do not go into one batch")
    whole = [{_MASK: torch.ones_like(row[_IDS]), **row} for row in rows]
    made = dict[str, Any]()
    for name in whole[0]:
        values = [row[name] for row in whole]
        long = [_is_as_long(row[name], row[_IDS]) for row in whole]
        if all(long):
            fill = padding_of(tokenizer) if name == _IDS else 0
            flat = [value[0] for value in values]
            made[name] = torch.nn.utils.rnn.pad_sequence(flat, True, fill)
        elif all(isinstance(value, Tensor) for value in values) and not any(long):
            made[name] = torch.cat(values)
        elif all(isinstance(value, list) for value in values):
            made[name] = [each for value in values for each in value]
        elif all(value == values[0] for value in values):
            made[name] = values[0]
        else:
            raise ValueError(f"{name} of several samples does not go into one batch")
    return made


def _is_as_long(value: Any, ids: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape[:2] == ids.shape and value.dim() == ids.dim()
