"""The norm that gives visual tokens the norm of text, to train with (Section 5)."""

from typing import TYPE_CHECKING, Any

from normprobe.measurements.measurement import Measurement
from normprobe.model.load.required_tensors import Needs, before_the_decoder
from normprobe.schema import VISION_LANGUAGE

if TYPE_CHECKING:
    from normprobe.runs.run_folder import RunStore


class Align(Measurement):
    """The norm that gives visual tokens the norm of text, to train with (Section 5)."""

    name = "align"
    kinds = (VISION_LANGUAGE,)

    @property
    def needs(self) -> Needs:
        return before_the_decoder

    def show(self, run: "RunStore", console: Any) -> None:
        """Print where the norm stands and how it was chosen."""
        from normprobe.report.readable import count, significant
        from normprobe.report.terminal import print_facts

        row = run.table("align").iloc[0]
        norm, gain = (significant(float(row[name])) for name in ("target_norm", "gain"))
        scale = float(row["scale"])
        own = "none: it changes the rows otherwise" if scale != scale else significant(scale)
        facts = {
            "norm behind": row["after"],
            "target": f"{row['target']}, L2 norm {norm}",
            "gain": f"{gain} in each of {count(float(row['hidden_size']))} dimensions; bias 0",
            "model's own scale": own,
        }
        print_facts(facts, console)
