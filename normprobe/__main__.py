"""The command ``normprobe``, and ``python -m normprobe``."""

import signal


def main() -> None:
    """Run the command line. Until a command can say what it leaves, Ctrl-C just ends it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from normprobe.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
