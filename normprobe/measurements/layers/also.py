"""Numbers that are measured beside those of ``layers`` where they are asked for: ``--also``.

``branches``, ``massive`` and ``headroom`` are normprobe's own. A number of one's own is a decorated
function:

    @per_token(words="share of dimensions near zero", unit="share")
    def sparsity(x, h):
        return (h.abs() < 0.01 * h.abs().amax(-1, keepdim=True)).float().mean(-1)

``normprobe layers MODEL --also my.py:sparsity`` measures it with intervals, table, figure and page.
"""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.errors import NormprobeError, did_you_mean, first_line
from normprobe.measurements.layers.headroom_watcher import HeadroomWatcher
from normprobe.measurements.layers.measure import observe
from normprobe.measurements.layers.watchers import BranchWatcher, MassiveActivations, Watcher
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.sentences import layer_names
from normprobe.schema import OWN, TEXT, VISUAL
from normprobe.statistics.token_metrics import POOLED_GROUPS
from normprobe.tidy import Quantity, declared

Per = Literal["token", "group", "pair"]


@dataclass(frozen=True)
class OwnNumber:
    """A function that measures a number, of ``per_token``, ``per_group`` or ``per_pair``."""

    quantity: Quantity  # what it is
    per: Per  # what it is a number of
    function: Callable[..., Tensor]  # that measures it

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Call the function itself."""
        return self.function(*arguments)

    @property
    def facts(self) -> dict[str, str]:
        """What a run records of it: enough to show it without the function."""
        quantity = self.quantity
        code = inspect.getsource(self.function)
        told = {"words": quantity.words, "equation": quantity.equation, "unit": quantity.unit}
        return {**told, "per": self.per, "code": code}


Decorator = Callable[[Callable[..., Tensor]], OwnNumber]


def per_token(*, words: str, unit: str, equation: str = "", name: str = "") -> Decorator:
    """A number of each token and layer: ``f(x, h)``.

    ``x`` is what enters the layer, ``h`` what leaves it, both ``[batch, seq, hidden]`` float32; at
    layer 0 both are the decoder input. It returns ``[batch, seq]``; a token for which it is NaN has
    no say.

    Args:
        words: what it is, for tables and axes.
        unit: of it; ``1`` where it has none.
        equation: how it is defined; Markdown with LaTeX.
        name: what tables call it; empty: that of the function.
    """
    return _decorator("token", words, unit, equation, name)


def per_group(*, words: str, unit: str, equation: str = "", name: str = "") -> Decorator:
    """A number of each sample, layer and token group: ``f(h, mask)``.

    ``h`` is what leaves the layer, ``[batch, seq, hidden]`` float32, ``mask`` is ``[batch, seq]``,
    true where a token is of the group. It returns ``[batch]``. Arguments are those of
    ``per_token``.
    """
    return _decorator("group", words, unit, equation, name)


def per_pair(*, words: str, unit: str, equation: str = "", name: str = "") -> Decorator:
    """A number of each sample and layer, of visual and text tokens: ``f(h, visual, text)``.

    ``visual`` and ``text`` are masks as that of ``per_group``. It returns ``[batch]``, and stands
    in the rows of visual tokens. Arguments are those of ``per_token``.
    """
    return _decorator("pair", words, unit, equation, name)


def _decorator(per: Per, words: str, unit: str, equation: str, name: str) -> Decorator:
    forms = "mean std samples interval" if per == "token" else "mean std interval"

    def decorate(function: Callable[..., Tensor]) -> OwnNumber:
        return OwnNumber(
            Quantity(name or function.__name__, words, equation, unit, forms), per, function
        )

    return decorate


# --- what ``--also`` names -----------------------------------------------------------------------


def own_number(named: str) -> OwnNumber:
    """The number that ``FILE.py:NAME`` names.

    Raises:
        NormprobeError: there is no such file or function, or it is not decorated.
    """
    file, _, name = named.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise NormprobeError(
            f"--also {named}: expected {', '.join(BUILT_IN)}, or FILE.py:NAME of a file that is "
            "there",
            did_you_mean(named, BUILT_IN, "docs/how-to/own-number.md shows one"),
        )
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise NormprobeError(*_users_fault(path, error)) from error
    found = getattr(module, name, None)
    if not isinstance(found, OwnNumber):
        given = [key for key, value in vars(module).items() if isinstance(value, OwnNumber)]
        raise NormprobeError(
            f"{file} holds no number {name}: expected a function decorated with per_token, "
            "per_group or per_pair",
            did_you_mean(name, given, f"it holds {', '.join(given) or 'none'}"),
        )
    return found


def _users_fault(path: Path, error: Exception) -> tuple[str, str]:
    """What is wrong in a file of the user's, with its line."""
    whole = str(path.absolute())
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == whole]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    where = f"{path}:{line}" if line else str(path)
    return f"{where}: {type(error).__name__}: {first_line(error)}", f"mend {path}"


def resolved(named: Sequence[str]) -> dict[str, "OwnNumber | None"]:
    """What is asked for, by name; None: one of normprobe's own.

    Raises:
        NormprobeError: there is no such number, or two of a name, or one of ``layers.csv``.
    """
    found: dict[str, OwnNumber | None] = {}
    taken = declared(__package__)["layers"].numbers.keys()
    for name in named:
        own = None if name in BUILT_IN else own_number(name)
        key = own.quantity.name if own else name
        if key in found:
            raise NormprobeError(f"--also names {key} twice", "name it once")
        if own and key in taken:
            raise NormprobeError(
                f"--also {name}: layers.csv has a quantity {key} already",
                'call it something else: name="..." in its decorator',
            )
        found[key] = own
    return found


def facts(named: Sequence[str]) -> dict[str, dict[str, str]]:
    """What a run records of the user's own numbers, by name."""
    return {name: own.facts for name, own in resolved(named).items() if own is not None}


def watchers(named: Sequence[str], model: MeasuredModel) -> list[Watcher]:
    """What looks at one forward."""
    found = resolved(named).items()
    built_in = [BUILT_IN[name](model) for name, own in found if own is None]
    own_numbers = [own for _, own in found if own is not None]
    return [*built_in, *([OwnNumbers(own_numbers)] if own_numbers else [])]


def remarks(named: Sequence[str], model: MeasuredModel, inputs: Mapping[str, Any]) -> list[str]:
    """Before a run: what will be missing, by one batch.

    Raises:
        NormprobeError: one of them would see nothing.
    """
    seen = watchers(named, model)
    observe(model, inputs, seen)
    found = [_unsplit(each, model) for each in seen if isinstance(each, BranchWatcher)]
    return [remark for remark in found if remark]


def _unsplit(seen: BranchWatcher, model: MeasuredModel) -> str:
    """Which layers have no branches, and why; empty: all have."""
    reasons = sorted(seen.without_branches.items(), key=lambda item: (item[1], item[0]))
    told = "; ".join(
        f"{layer_names([number for number, _ in items])}: {reason}"
        for reason, items in groupby(reasons, key=lambda item: item[1])
    )
    if any(bool(fits) for fits in seen.fits.values()):
        return f"no branches of {told}" if told else ""
    raise NormprobeError(
        f"attention and MLP of {model} cannot be told apart: {told}", "leave branches out of --also"
    )


BUILT_IN: dict[str, Callable[[MeasuredModel], Watcher]] = {
    "branches": lambda model: BranchWatcher(model.norm_placement.partition(":")[0]),
    "massive": lambda model: MassiveActivations(),
    "headroom": lambda model: HeadroomWatcher(),
}


# --- the user's own numbers ----------------------------------------------------------------------


class OwnNumbers:
    """Measures the user's numbers of each layer; a ``GroupWatcher``."""

    def __init__(self, numbers: Sequence[OwnNumber]) -> None:
        self._of_tokens = [number for number in numbers if number.per == "token"]
        self._of_groups = [number for number in numbers if number.per != "token"]
        self.metrics = tuple(OWN + number.quantity.name for number in self._of_tokens)

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """It needs no hooks of its own."""
        return nullcontext()

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """Those of tokens, ``[numbers, batch, seq]``."""
        measured = [_measured(own, h.shape[:2], x, h) for own in self._of_tokens]
        return torch.stack(measured) if measured else h.new_empty((0, *h.shape[:2]))

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """Those of groups and pairs, ``[batch, groups, numbers]``; NaN where there is none."""
        found = h.new_full((len(h), len(POOLED_GROUPS), len(self._of_groups)), torch.nan)
        visual, text = (masks[:, POOLED_GROUPS.index(group)] for group in (VISUAL, TEXT))
        for place, own in enumerate(self._of_groups):
            if own.per == "pair":
                both = visual.any(-1) & text.any(-1)
                value = _measured(own, h.shape[:1], h, visual, text)
                found[:, POOLED_GROUPS.index(VISUAL), place] = value.where(both, torch.nan)
                continue
            for group in range(len(POOLED_GROUPS)):
                mask = masks[:, group]
                value = _measured(own, h.shape[:1], h, mask)
                found[:, group, place] = value.where(mask.any(-1), torch.nan)
        return found

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """Those of groups and pairs, one entry a layer."""
        names = [OWN + own.quantity.name for own in self._of_groups]
        return dict(zip(names, group.T.tolist(), strict=True))


def _measured(own: OwnNumber, shape: torch.Size, *arguments: Tensor) -> Tensor:
    """What a function returns, checked.

    Raises:
        NormprobeError: it fails, or returns something else; naming its file and line.
    """
    path = Path(inspect.getfile(own.function))
    try:
        value = own.function(*arguments)
    except Exception as error:
        raise NormprobeError(*_users_fault(path, error)) from error
    if not isinstance(value, Tensor) or value.shape != shape:
        received = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        line = inspect.getsourcelines(own.function)[1]
        raise NormprobeError(
            f"{path}:{line}: {own.quantity.name} returns {received}: expected a tensor of shape "
            f"{tuple(shape)}",
            f"a number per {own.per} is described in docs/how-to/own-number.md",
        )
    return value.to(arguments[0].dtype)
