"""What tower.csv says, in sentences."""

import numpy as np
import pandas as pd

from normprobe.measurements.layers.headroom import headroom_words
from normprobe.report.ratio_words import times
from normprobe.report.readable import significant
from normprobe.report.sentences import broken_findings
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import AUDIO, HIGH_NORM, VISUAL
from normprobe.tidy import along, select

#: By how much a block has to change norms to be named.
_JUMP = 1.5


def verdict(run: RunStore) -> Verdict:
    """How rows grow in the tower, what the projector reads, which rows are loud, float16."""
    table, facts = run.table("tower"), run.record.get("tower") or {}
    modality = str(facts.get("modality") or "vision")
    findings = [
        *broken_findings(table),
        *growth(table, modality),
        Finding("read", reading(facts)),
        Finding("high_norm", loud_rows(table)),
        Finding("headroom", headroom_words(run, "block", f"the {modality} tower")),
        Finding("placement", norms_of_blocks(facts)),
    ]
    return verdict_of("", findings)


def growth(table: pd.DataFrame, modality: str) -> list[Finding]:
    """With which norm rows enter the tower and leave it, and which block changes it most."""
    group = AUDIO if (table["group"] == AUDIO).any() else VISUAL
    of_group = table[table["group"] == group]
    rows = along(select(of_group, "norm"), of_group["layer"])
    norms, numbers = rows["mean"].to_numpy(float), rows["layer"].to_numpy(int)
    if len(norms) < 2 or not np.isfinite(norms).all() or norms.min() <= 0:
        return []
    steps = norms[1:] / norms[:-1]
    most = int(np.abs(np.log(steps)).argmax())
    called = "rows of a sound" if group == AUDIO else "visual patches"
    told = (
        f"In the {modality} tower {called} have a mean norm of {significant(norms[0])} before the "
        f"first block and {significant(norms[-1])} behind the last, block {numbers[-1]}."
    )
    alone = f"Block {numbers[1:][most]} alone makes it {times(steps[most])} as large."
    jumps = not 1 / _JUMP < steps[most] < _JUMP
    return [Finding("norm", told), Finding("norm.block", alone * jumps)]


def reading(facts: dict[str, object]) -> str:
    """Which blocks the projector reads, where that is not the last."""
    read, depth = facts.get("read") or [], facts.get("depth")
    if not isinstance(read, list) or read in ([], [depth]):
        return ""
    if len(read) > 1:
        return f"The projector reads blocks {', '.join(map(str, read))} side by side."
    return f"The projector reads block {read[0]} of {depth}: what follows it is not used."


def loud_rows(table: pd.DataFrame) -> str:
    """In which block most patches of a picture are of high norm."""
    visual = table[(table["group"] == VISUAL) & (table["layer"] > 0)]
    rows = select(visual, "high_norm_a_picture").dropna(subset="mean")
    if rows.empty or not rows["mean"].max() > 0:
        return ""
    most = rows.iloc[int(rows["mean"].to_numpy().argmax())]
    share = select(visual, "high_norm", layer=most["layer"])["mean"].iloc[0]
    return (
        f"Most patches of {HIGH_NORM:g} x the median norm or more are behind block "
        f"{most['layer']}: {significant(most['mean'])} a picture or tile, {share:.1%} of them."
    )


def norms_of_blocks(facts: dict[str, object]) -> str:
    """Where norms stand in the tower, if the paper's theory is not about such blocks."""
    word, _, theory = str(facts.get("norm_placement") or "").partition(": ")
    if not word or theory.endswith("applies"):
        return ""
    return f"Norm placement of its blocks: {word}. The paper's theory is about pre-norm."
