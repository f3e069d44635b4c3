"""Extensions: what other packages add to normprobe, and most of what this one has.

A package names an instance of its ``Extension`` as an entry point:

    [project.entry-points."normprobe.extensions"]
    lengths = "normprobe_lengths:EXTENSION"

Loading one imports neither torch nor pandas, so that ``--help`` stays quick: what needs them is
imported inside the methods. docs/how-to/extension.md builds one.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from normprobe.errors import first_line

if TYPE_CHECKING:
    from normprobe.inputs.inputs_file import InputsFile
    from normprobe.measurements.measurement import Measurement
    from normprobe.runs.model_source import ModelSource

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

GROUP = "normprobe.extensions"
#: The panels of ``normprobe --help``; an extension may have one of its own.
MEASURE, COMPARE, SHARE, MAKE = "Measure a model", "Read and compare", "Share", "Make and set up"


class Extension:
    """What a package adds: a subclass says what, an instance is the entry point.

    Attributes:
        panel: of its commands in ``normprobe --help``.
    """

    panel = "Extensions"

    def measurements(self) -> "Sequence[Measurement]":
        """What it measures; one over samples has its command and its ``probe.measure(name)``."""
        return ()

    def commands(self) -> Mapping[str, Callable[..., None]]:
        """Other commands by name, functions as typer takes them."""
        return {}

    def methods(self) -> Mapping[str, Callable[..., Any]]:
        """Methods of ``Probe`` by name: functions whose first argument is the probe."""
        return {}

    def opens(self, model: str) -> "Callable[..., ModelSource] | None":
        """What opens a MODEL that is no checkpoint, called as ``ScriptSource``; None: it is one."""
        return None

    def inputs_file(self, config: Any) -> "InputsFile | None":
        """How a model of some config takes its inputs; None: it knows nothing of it."""
        return None


@cache
def extensions() -> Sequence[Extension]:
    """All that are installed, by name, those of this package first.

    One that cannot be loaded costs a warning, and what it would have added.
    """
    found, points = [], sorted(entry_points(group=GROUP), key=_place)
    if not any(_is_ours(point) for point in points):
        log.warning(
            "warning: the extensions of normprobe itself are not registered, so cause, check and "
            "others are missing: install it anew (pip install -e .)"
        )
    for point in points:
        try:
            extension = point.load()
            if not isinstance(extension, Extension):
                raise TypeError(f"{point.value} is no normprobe.registry.Extension")
            if not isinstance(extension.panel, str):
                raise TypeError(f"its panel is {extension.panel!r}: expected a name")
            for offered in extension.measurements():
                offered.require_whole()
        except (Exception, SystemExit) as error:  # a stranger's module may raise anything
            package = getattr(point.dist, "name", "an unknown package")
            leave_out(f"the extension {point.name} of {package}", error)
        else:
            found.append(extension)
    return found


def answers(ask: Callable[[Extension], Answer]) -> Iterator[tuple[Extension, Answer]]:
    """What each extension answers; one that fails costs a warning, and its answer."""
    for extension in extensions():
        try:
            answer = ask(extension)
        except (Exception, SystemExit) as error:
            leave_out(f"the extension {type(extension).__module__}", error)
        else:
            yield extension, answer


def opener(model: str) -> "Callable[..., ModelSource] | None":
    """What opens a MODEL that is no checkpoint, by any extension."""
    return next((found for _, found in answers(lambda each: each.opens(model)) if found), None)


def leave_out(what: str, error: BaseException) -> None:
    """Warn of what an extension would have added."""
    log.warning("warning: %s is left out: %s: %s", what, type(error).__name__, first_line(error))


def _place(point: EntryPoint) -> tuple[bool, str]:
    return not _is_ours(point), point.name


def _is_ours(point: EntryPoint) -> bool:
    return point.value.startswith("normprobe.")
