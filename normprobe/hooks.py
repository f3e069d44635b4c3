"""Watch modules while a model runs: attach, run as far as needed, always detach.

    with observing(model), attached(on_input(layer, see_input), on_output(layer, see_output)):
        run_until(model, inputs, leaving=last_layer)

Callbacks receive the hidden state alone. They never change what the model computes. They see the
forwards of the thread that attached them: what other threads run on the same model, a server or
another probe, passes untouched.
"""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cache, wraps
from inspect import Parameter, signature
from threading import Event, Lock, RLock, get_ident
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.errors import NormprobeError, first_line
from normprobe.failures import forward_failure
from normprobe.schema import MASKS, VISUAL_MASK
from normprobe.tensors import with_tensors

SeeState = Callable[[Tensor], None]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Reached(BaseException):
    """The module to stop at was reached. A BaseException: no model code may swallow it."""


def on_this_thread(
    function: Callable[..., Any], elsewhere: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """The function where this thread calls it; where another does, ``elsewhere`` or nothing."""
    thread = get_ident()

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if get_ident() == thread:
            return function(*args, **kwargs)
        return None if elsewhere is None else elsewhere(*args, **kwargs)

    return called


def in_full_precision(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function as it is without ``torch.autocast``, which a user's training may be inside of.

    A matrix product of float32 is one of bfloat16 there: no angle is told any more.
    """

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with ExitStack() as off:
            for kind in ("cpu", "cuda", "mps", "xpu"):
                if torch.is_autocast_enabled(kind):
                    off.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return called


def before_call(module: nn.Module, hook: Callable[..., None]) -> RemovableHandle:
    """Call ``hook(module, args, kwargs)`` each time before this thread runs ``module``."""
    here = on_this_thread(in_full_precision(hook))
    return module.register_forward_pre_hook(here, with_kwargs=True)


def after_call(
    module: nn.Module, hook: Callable[..., None], *, first: bool = False
) -> RemovableHandle:
    """Call ``hook(module, args, kwargs, output)`` each time after this thread ran ``module``.

    ``first``: before the hooks that are there.
    """
    here = on_this_thread(in_full_precision(hook))
    return module.register_forward_hook(here, with_kwargs=True, prepend=first)


def on_input(module: nn.Module, see: SeeState) -> RemovableHandle:
    """Call ``see`` with the hidden state that enters ``module``, each time it runs."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(hidden_state_of((kwargs.get("hidden_states"), args, kwargs)))

    return before_call(module, hook)


def on_output(module: nn.Module, see: SeeState) -> RemovableHandle:
    """Call ``see`` with the hidden state that leaves ``module``, each time it has run."""

    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        see(hidden_state_of(output))

    return after_call(module, hook)


#: What a model output calls the hidden state, and what it calls the features that transformers
#: hands to the language model.
HIDDEN_STATE = "last_hidden_state"
_ALL_STATES, _MAPS = "hidden_states", "feature_maps"
PROJECTED_STATE = "pooler_output"


def on_call(
    module: nn.Module,
    see: Callable[[Any, Any, Any], None],
    left: Callable[[Any], Any] | None = None,
    *,
    codes: bool = False,
) -> RemovableHandle:
    """Call ``see`` with the state that entered, the state that left, and all arguments by name.

    ``left`` finds the latter in what the module returns, by default as ``hidden_state_of``. Calls
    without a floating-point input are passed over: Ovis looks indicator ids up in the table that
    also mixes its visual rows. With ``codes`` they count, too: what entered is None.
    """
    names = _names_of_arguments(module)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        entered = _first_state((kwargs.get("hidden_states"), args, kwargs))
        if entered is not None or codes:
            given = {**kwargs, **dict(zip((*names, *range(len(args))), args, strict=False))}
            see(entered, (left or hidden_state_of)(output), given)

    return after_call(module, hook)


def on_call_as_given(
    module: nn.Module,
    see: Callable[[Any, Any, Any], None],
    left: Callable[[Any], Any] | None = None,
) -> list[RemovableHandle]:
    """As ``on_call``, of what may write into what it takes (360VL): ``see`` gets a copy."""
    copies: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = _first_state((kwargs.get("hidden_states"), args, kwargs))
        copies[:] = [] if state is None else [state.clone()]

    def see_copy(_: Any, returned: Any, given: Any) -> None:
        see(copies.pop(), returned, given)

    return [before_call(module, keep), on_call(module, see_copy, left)]


def _names_of_arguments(module: nn.Module) -> tuple[str, ...]:
    """By which a module's forward takes its arguments, in their order."""
    method = getattr(module.forward, "__func__", None)
    if method is None:  # replaced, as accelerate does
        return tuple(signature(module.forward).parameters)
    return _parameters_of(method)[1:]


@cache
def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Once a function: each layer of each forward asks again."""
    return tuple(signature(function).parameters)


def hidden_state_of(value: Any, field: str = HIDDEN_STATE) -> Tensor:
    """The hidden state in what a module takes or returns.

    Layers hand over a tensor, a tuple that starts with it, or a model output whose ``field`` it
    is. Else the first floating-point tensor of at least two axes is taken.

    Raises:
        NormprobeError: when there is none.
    """
    found = _first_state(value, field)
    if found is None:
        raise NormprobeError(
            f"a watched module passes no hidden state: expected a floating-point tensor, "
            f"received {type(value).__name__}",
            "report the model type, or name another module for this part",
        )
    return found


def path_to_state(value: Any, field: str = HIDDEN_STATE) -> tuple[Any, ...] | None:
    """Where the hidden state is in what a module takes or returns; in a model output, ``field``.

    Returns:
        Keys and indices, from the outside in; None where there is no hidden state. The empty path
        means ``value`` itself: a tensor, or a list of tensors, one an image.
    """
    if isinstance(value, Tensor):
        return () if value.is_floating_point() and value.dim() >= 2 else None
    if isinstance(value, list) and value and all(isinstance(item, Tensor) for item in value):
        return ()  # MoonViT, MiniCPM-V
    if isinstance(value, Mapping):
        items = [(key, value.get(key)) for key in (field, *value)]
        for several in (_MAPS, _ALL_STATES) if value.get(field) is None else ():
            # A backbone's maps, behind its norm (MAIRA-2); before a pooled one (PPLLaVA's tower).
            states = value.get(several)
            if isinstance(states, tuple | list) and states:
                found = path_to_state(states[-1])
                return None if found is None else (several, len(states) - 1, *found)
    elif isinstance(value, tuple | list):
        items = list(enumerate(value))
    else:
        return None
    paths = ((key, path_to_state(item, field)) for key, item in items)
    return next(((key, *path) for key, path in paths if path is not None), None)


def with_state(output: Any, path: Sequence[Any], change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of the structure whose hidden state, at ``path``, is changed."""
    if not path:
        return list(map(change, output)) if isinstance(output, list) else change(output)
    key, *rest = path
    changed = with_state(output[key], rest, change)
    if isinstance(output, Mapping):
        return type(output)(**{**output, key: changed})
    items = list(output)
    items[key] = changed
    # Named tuples take their items one by one.
    return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)


def changing_input(layer: nn.Module, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Change the hidden state that enters ``layer``, each time this thread runs it."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return with_changed_input(change, args, kwargs)

    return layer.register_forward_pre_hook(on_this_thread(hook), with_kwargs=True)


def with_changed_input(
    change: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a layer with another hidden state."""
    if isinstance(kwargs.get("hidden_states"), Tensor):
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}
    path = path_to_state((args, kwargs))
    assert path is not None  # else reading it has failed before
    changed: tuple[tuple[Any, ...], dict[str, Any]] = with_state((args, kwargs), path, change)
    return changed


def _first_state(value: Any, field: str = HIDDEN_STATE) -> Tensor | None:
    path = path_to_state(value, field)
    if path is None:
        return None
    for key in path:
        value = value[key]
    if not isinstance(value, list):
        return cast(Tensor, value)
    if len({item.shape[-1] for item in value}) > 1:  # pictures, which are no rows (LLaVA-UHD)
        return cast(Tensor, value[0])
    return torch.cat([item.reshape(-1, item.shape[-1]) for item in value])  # of any lengths


@contextmanager
def attached(*handles: RemovableHandle) -> Iterator[None]:
    """Remove the hooks when the block ends, however it ends."""
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield


#: Modes, replaced forwards and a norm that is there for a while are seen by every thread.
_LOCKS: "WeakKeyDictionary[nn.Module, RLock]" = WeakKeyDictionary()
_MAKING_A_LOCK = Lock()


def lock_of(model: nn.Module) -> RLock:
    """What a thread holds while it measures a model; it may hold it several times."""
    model = getattr(type(model), "run_by_function", model)  # of ``model.own_forward``
    with _MAKING_A_LOCK:
        return _LOCKS.setdefault(model, RLock())


@contextmanager
def observing(model: nn.Module) -> Iterator[None]:
    """No gradients, no dropout and nothing compiled inside the block; all is restored after it.

    One thread at a time observes a model. A forward of a model in training that another thread
    begins meanwhile waits until the modes are back.

    Raises:
        NormprobeError: another thread switched modules to training inside the block.
    """
    # Inside torch.inference_mode no tensor would tell whether a layer overwrote it.
    with (
        lock_of(model),
        _evaluating(model, modules := _every_module(model)),
        _uncompiled(modules),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Whatever the block draws, what follows draws what it would have drawn without it."""
    python, numpy = random.getstate(), np.random.get_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = range(torch.cuda.device_count()) if in_use else ()
    try:
        with torch.random.fork_rng(cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _pass(*_: Any) -> None:
    """What is done here where something is done elsewhere alone."""


def _every_module(model: nn.Module) -> list[nn.Module]:
    """As ``model.modules()``, which takes a tenth of a forward on a GPU: it spells all names."""
    found, pending = {model: None}, [model]
    while pending:
        inside = [module for module in pending.pop().children() if module not in found]
        found |= dict.fromkeys(inside)
        pending += inside
    return list(found)


@contextmanager
def _evaluating(model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Every module in evaluation mode inside the block."""
    training = [module for module in modules if module.training]
    restored = Event()
    handles = []

    def wait(*_: Any) -> None:
        restored.wait()

    if training:
        handles.append(model.register_forward_pre_hook(on_this_thread(_pass, elsewhere=wait)))
        model.eval()
    for module in training:
        module.training = False  # a part may take no part in eval(): TokenFlow's tower
    try:
        with attached(*handles):
            yield
            if any(module.training for module in modules):
                raise NormprobeError(
                    f"{type(model).__name__} was switched to training while it was measured",
                    "measure from the thread that trains, between two steps",
                )
    finally:
        for module in training:
            module.training = True
        restored.set()


@contextmanager
def _uncompiled(modules: Sequence[nn.Module]) -> Iterator[None]:
    """What ``torch.compile`` has made of modules and their forwards is not run inside the block.

    A graph that was compiled without a hook runs without it, and does not ask whether there is one.
    """
    held: list[tuple[dict[str, Any], str, Any]] = []
    for module in modules:
        own = vars(module)
        for name in ("_compiled_call_impl", "forward"):
            if name in own and (name != "forward" or hasattr(own[name], _ORIGINAL)):
                held.append((own, name, own[name]))
                own[name] = getattr(own[name], _ORIGINAL) if name == "forward" else None
    try:
        yield
    finally:
        for own, name, compiled in held:
            own[name] = compiled


#: Where a compiled function keeps what it was made of.
_ORIGINAL = "_torchdynamo_orig_callable"


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 (``fully_shard``) shards the model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # whoever shards has imported it
    return fsdp is not None and isinstance(model, getattr(fsdp, "FSDPModule", ()))


def is_partitioned(model: nn.Module) -> bool:
    """Whether DeepSpeed's ZeRO, stage 1 or 2, keeps gradients in pieces, one a process."""
    return any(hasattr(weight, "_hp_mapping") for weight in model.parameters())


def refuse_hidden_weights(model: nn.Module) -> None:
    """Refuse a model whose layers hold no weights between two forwards."""
    if any(type(each).__name__ == "FullyShardedDataParallel" for each in model.modules()):
        holder, remedy = "FSDP1", "shard it with fully_shard (FSDP2; accelerate: fsdp_version 2)"
    elif any(hasattr(weight, "ds_id") for weight in model.parameters()):
        holder, remedy = "ZeRO stage 3", "train with stage 2, or with FSDP2"
    else:
        return
    told = f"{holder} keeps the weights of {type(model).__name__} out of its layers"
    raise NormprobeError(told, remedy)


def run_until(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    entering: nn.Module | None = None,
    leaving: nn.Module | None = None,
) -> None:
    """Run the model and stop it where nothing that follows is needed.

    Stopping at the last decoder layer also spares the language modelling head. A sharded model runs
    to its end: FSDP2 closes there what a forward opened. The model gets copies of its inputs: some
    write into them, and a cache of keys and values grows.

    Args:
        model: called as ``model(**inputs)``.
        inputs: what a processor returned; the masks of an inputs file are kept from the model, but
            a ``visual_mask`` that its forward takes.
        entering: stop before this module runs, after the hooks attached to its input.
        leaving: stop after this module ran, after the hooks attached to its output.

    Raises:
        NormprobeError: when the model refuses the inputs, or ends without a call of the module.
    """

    def stop(*_: Any) -> None:
        raise _Reached

    handles, runs_through = [], is_sharded(model)
    if entering is not None and not runs_through:
        handles.append(before_call(entering, stop))
    if leaving is not None and not runs_through:
        handles.append(after_call(leaving, stop))
    with attached(*handles):
        try:
            taken = accepted_inputs(model, inputs)
            model(**copied(taken), **_without_cache(model, inputs))
        except _Reached:
            return
        except (NormprobeError, MemoryError):
            raise
        except Exception as error:
            if (failure := forward_failure(model, error)) is not None:
                raise failure from error
            raise
    if handles:
        awaited = entering or leaving
        names = (name for name, module in model.named_modules() if module is awaited)
        name = next(names, type(awaited).__name__)
        problem = f"the forward of {type(model).__name__} ends without a call of {name}"
        if inside := computed_inside(model, inputs).get(name):
            raise NormprobeError(
                f"{problem}: it calls what is inside ({', '.join(inside)}) and adds that up by "
                "itself, so no module takes or returns the hidden state",
                _CALLS_LAYERS,
            )
        raise NormprobeError(
            problem,
            f"name the layers that it calls: --part decoder_layers=NAME; or {_CALLS_LAYERS}",
        )


#: Where a forward does not call the layers.
_CALLS_LAYERS = (
    "pass a forward that calls the layers, such as that of the language model inside: "
    "Probe(model, forward=...), or forward(model, **inputs) in --inputs FILE.py"
)


def computed_inside(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, list[str]]:
    """The layers that a forward does not call, while it calls what is inside, and that, by name.

    So do loops over two decoders at once, whose tokens attend to each other (SmolVLA, openpi).
    """
    called: set[str] = set()
    names = {name: module for name, module in model.named_modules() if name}
    handles = [
        before_call(module, lambda *_, name=name: called.add(name))
        for name, module in names.items()
    ]
    with attached(*handles), torch.no_grad():
        run_until(model, inputs)
    lists = [name for name, module in names.items() if isinstance(module, nn.ModuleList)]
    layers = [name for name in names if name.rpartition(".")[0] in lists and name not in called]
    inside = {
        layer: [name.removeprefix(f"{layer}.") for name in called if name.startswith(f"{layer}.")]
        for layer in layers
    }
    return {
        layer: sorted({name.partition(".")[0] for name in found})
        for layer, found in inside.items()
        if found
    }


def copied(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs whose tensors, arrays and caches are copies.

    Raises:
        NormprobeError: one of them cannot be copied.
    """
    copies = {}
    for name, value in inputs.items():
        try:
            copies[name] = with_tensors(value, Tensor.clone, deepcopy)
        except (TypeError, RuntimeError) as error:
            raise NormprobeError(
                f"the input {name} ({type(value).__name__}) cannot be copied, and a forward may "
                f"write into it: {first_line(error)}",
                "leave it out of the inputs",
            ) from error
    return copies


def accepted_inputs(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that a model's forward takes.

    What it has no name for is left out, such as what a newer processor adds. Pixels, positions and
    a mask that hides something are not: without them the numbers would be others.

    Raises:
        NormprobeError: one of these has no name there, or an input that it needs is missing.
    """
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):
        raise NormprobeError(
            f"{type(model).__name__} has no forward",
            "write forward(model, **inputs) in an --inputs file, which makes its layers run; in "
            "Python: Probe(model, forward=...)",
        )
    parameters = signature(model.forward).parameters
    own = {VISUAL_MASK} & parameters.keys()
    named = {name: inputs[name] for name in inputs if name not in MASKS or name in own}
    kinds = {parameter.kind for parameter in parameters.values()}
    what = f"{type(model).__name__}.forward"
    if missing := [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in named
    ]:
        raise NormprobeError(
            f"{what} needs {', '.join(missing)}; the inputs hold {', '.join(named) or 'nothing'}",
            "pass it by that name; `normprobe inputs MODEL --write inputs.py` begins a file that "
            "does so",
        )
    if Parameter.VAR_KEYWORD in kinds:
        theirs = "decoder_input_ids"
        if "input_ids" in named.keys() - parameters.keys() and theirs in parameters.keys() - named:
            raise NormprobeError(  # words would not be read (Nemotron-Parse)
                f"{what} reads words as {theirs}, and input_ids would go nowhere",
                f'pass them by that name, behind the token that begins an answer: "{theirs}": '
                '"input_ids" in TAKES of an --inputs file',
            )
        return named
    for name, value in named.items():
        if name not in parameters and _matters(name, value):
            raise NormprobeError(
                f"{what} takes no {name}, and the numbers would be others without it: it takes "
                f"{', '.join(parameters)}",
                "pass it under the name that the model has for it, or leave it out of the inputs; "
                "a mask of padding is not needed with --batch-size 1",
            )
    return {name: value for name, value in named.items() if name in parameters}


def unused_inputs(model: nn.Module, inputs: Mapping[str, Any]) -> list[str]:
    """The names of inputs that a model's forward does not take."""
    return sorted(inputs.keys() - accepted_inputs(model, inputs).keys() - set(MASKS))


def _matters(name: str, value: Any) -> bool:
    """Whether an input changes what a model computes, whatever its name is there."""
    found: list[Tensor] = []
    with_tensors(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    if "mask" in name:
        return not all(bool(tensor.all()) for tensor in found)
    return "position" in name or any(tensor.is_floating_point() for tensor in found)


def by_name(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model's forward by their names."""
    parameters = signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        raise NormprobeError(
            f"{len(args)} inputs in a row; {type(model).__name__}.forward takes "
            f"{', '.join(names) or 'none'} by their order",
            "pass a dict by the names of its arguments",
        )
    return {**dict(zip(names, args, strict=False)), **kwargs}


def arguments_of(model: nn.Module, call: Callable[[nn.Module], object]) -> dict[str, Any]:
    """What a function passes to the model that it is called with; the model does not run."""
    given: list[dict[str, Any]] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append(by_name(model, args, kwargs))
        raise _Reached

    with attached(before_call(model, stop)):
        try:
            call(model)
        except _Reached:
            return given[0]
    raise NormprobeError(
        f"the function that was passed as inputs does not call {type(model).__name__}",
        "pass one that calls the model it is given, such as lambda m: m(ids, image=pixels); where "
        "parts of it are called: Probe(model, forward=lambda m, ids, image: ...), and the inputs "
        "by these names",
    )


def _without_cache(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, bool]:
    """``use_cache=False`` where the model takes it: a key-value cache grows with every layer."""
    parameters = signature(model.forward).parameters
    takes_it = "use_cache" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    return {"use_cache": False} if takes_it and "use_cache" not in inputs else {}
