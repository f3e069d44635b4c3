"""The command ``normprobe``, and ``python -m normprobe``."""

import os
import sys


def main() -> None:
    """Run the command line. Until a command can say what it leaves, Ctrl-C just ends it."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from normprobe.cli.app import main as command_line

    command_line()


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
