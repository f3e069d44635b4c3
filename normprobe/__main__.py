"""The command ``normprobe``, and ``python -m normprobe``."""

import os
import sys


def main() -> None:
    """Run the command line. Until a command can say what it leaves, Ctrl-C just ends it."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    try:
        from normprobe.cli.app import main as command_line

        command_line()
    except ImportError:
        if said := _other_transformers():
            sys.exit(said)
        raise


def _other_transformers() -> str:
    """What to say where a transformers is installed that this package does not run with; or ""."""
    from importlib import import_module
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        found = import_module("transformers").__version__  # a fork may have no metadata (Orthus)
        wanted = next(
            each
            for each in map(Requirement, requires("normprobe") or ())
            if each.name == "transformers"
        )
    except (ImportError, PackageNotFoundError, StopIteration):
        return ""
    if wanted.specifier.contains(found, prereleases=True):
        return ""
    return (
        f"error: transformers {found} is installed; expected 4.57, or 5.16 and newer\n"
        "       pip install transformers==4.57.6, or take that one off the path"
    )


def _forget_working_folder() -> None:
    """Import nothing from there, as the command does not: data may lie beside an ``av.py``.

    ``python -m`` and torchrun put the folder first. A checkout of normprobe is one, too.
    """
    try:
        here = os.getcwd()  # noqa: PTH109
    except OSError:  # it was deleted
        return
    if sys.path[:1] == [here] != [os.path.dirname(os.path.dirname(__file__))]:  # noqa: PTH120
        del sys.path[0]


if __name__ == "__main__":
    _forget_working_folder()
    main()
