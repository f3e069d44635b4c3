"""What a run has to say beside its numbers: to its record, and to whoever watches it."""

import logging

from normprobe.runs.run_store import RunStore

log = logging.getLogger(__name__)


def warn(run: RunStore, text: str) -> None:
    """Record a warning, and say it."""
    run.add_warning(text)
    log.warning("warning: %s", text)


def doubt(run: RunStore, text: str) -> None:
    """Warn that the run's own numbers are in doubt; ``doubts`` of its record lists such warnings.

    ``--strict`` turns them into exit code 1.
    """
    warn(run, text)
    run.note(doubts=list(dict.fromkeys([*run.record.get("doubts", []), text])))
