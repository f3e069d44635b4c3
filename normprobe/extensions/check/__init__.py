"""A fingerprint of every state on the way through a model: are two models still the same?"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.measurements.measurement import Measurement, SampleMeasurement
from normprobe.model.load.required_tensors import Needs, everything
from normprobe.registry import COMPARE, Extension

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.runs.run_folder import RunStore


class Check(SampleMeasurement):
    """A fingerprint of every state on the way through a model: are two models still the same?"""

    name = "check"
    summary = "A fingerprint of every state, by stage and token group."
    text_alone = True
    tables_can_wait = True
    intervals = False

    @property
    def needs(self) -> Needs:
        return everything

    def show(self, run: "RunStore", console: Any) -> None:
        """Print the stages and their norms: fingerprints are to be compared, not read."""
        from normprobe.report.readable import readable_table
        from normprobe.report.terminal import print_readable

        print_readable(readable_table(run.table("check").drop(columns="fingerprint")), console)

    def observe(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        from normprobe.extensions.check.measure import observe

        return observe(model, inputs)

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        from normprobe.extensions.check.measure import rows

        return rows(seen, sample_ids)

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        from normprobe.extensions.check.measure import tables

        return tables(rows)


class _CheckExtension(Extension):
    panel = COMPARE

    def measurements(self) -> Sequence[Measurement]:
        return (Check(),)

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.check.command import check, states, verify

        return {"check": check, "states": states, "verify": verify}


EXTENSION = _CheckExtension()
