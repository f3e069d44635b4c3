"""What interface.csv says, in sentences."""

import math

import pandas as pd

from normprobe.report.ratio_words import (
    LOUD,
    OPEN,
    Ratio,
    Words,
    brackets,
    hold_inverses,
    ratio_in_words,
    usable,
)
from normprobe.report.readable import significant
from normprobe.report.sentences import (
    broken_states_sentence,
    carried_sentences,
    other_media,
    out_of,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT,
    VIDEO,
    VISION_ENCODER,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)

_PROMPTS = "the text tokens of the prompts"
_TABLE = "the effective text embedding table"


def verdict(run: RunStore) -> str:
    """What the norms at the interface say, and which states are no vectors to measure."""
    interface = run.table("interface")
    sentences = [broken_states_sentence(interface), interface_verdict(interface)]
    if _has(interface, DECODER_INPUT, VIDEO) and not _has(interface, PROJECTOR_OUTPUT, VIDEO):
        together = _has(interface, PROJECTOR_OUTPUT, VISUAL)
        sentences.append(
            "Before the decoder images and videos cannot be told apart."
            if together
            else "What videos are before the decoder is left out: it cannot be told."
        )
    return " ".join(filter(None, sentences))


def interface_verdict(interface: pd.DataFrame) -> str:
    """How loud visual tokens are against the prompts' text, and what the projector changes."""
    stage = visual_stage(interface)
    held = _out_of(interface, stage, VISUAL)
    subject = f"At the decoder input visual tokens{held} are"
    if stage != DECODER_INPUT:
        subject = f"The visual states{held} that text attends to are"
    prompts = f"{_PROMPTS}{_out_of(interface, DECODER_INPUT, TEXT)}"
    geometric = _ratio(interface, stage, "geometric_ratio_to_prompt")
    to_prompt = _ratio(interface, stage, "ratio_to_prompt")
    to_table = _ratio(interface, stage, "ratio_to_table")
    others = {
        group: _ratio(interface, DECODER_INPUT, "geometric_ratio_to_prompt", group)
        for group in other_media(interface)
    }
    told = {group: ratio for group, ratio in others.items() if ratio.usable}
    if not (geometric.usable or told):
        return ""
    sentences = []
    if geometric.usable:
        beside = hold_inverses([geometric, to_prompt, to_table])
        louder, mean, to_rows = (
            ratio_in_words([ratio], LOUD, than, beside_inverses=beside)
            for ratio, than in ((geometric, prompts), (to_prompt, ""), (to_table, _TABLE))
        )
        sentence = f"{subject} {louder} by geometric means, {mean} by arithmetic ones"
        if to_table.usable:
            sentence += f", and {to_rows} (Eq. 11)"
        sentences = [sentence, *_projector(interface), *_mixtures(interface)]
    for group, ratio in told.items():
        subject = f"{group.capitalize()} tokens{_out_of(interface, DECODER_INPUT, group)}"
        sentences.append(f"{subject} enter {ratio_in_words([ratio], LOUD, prompts)}")
    ratios = [geometric, to_prompt, to_table, *told.values()]
    closing = brackets(ratios, int(interface["samples"].max()))
    at_input = interface[interface["stage"] == DECODER_INPUT]
    return " ".join([f"{'. '.join(sentences)}.", closing, *carried_sentences(at_input)])


def _projector(interface: pd.DataFrame) -> list[str]:
    """What the projector does to the mean norm."""
    mean = "norm_geometric_mean"
    before = _value(interface, PROJECTOR_INPUT, VISUAL, mean)
    if not usable(before):
        before = _value(interface, VISION_ENCODER, VISUAL, mean)
    after = _value(interface, PROJECTOR_OUTPUT, VISUAL, mean)
    change = _ratio(interface, PROJECTOR_OUTPUT, "geometric_ratio_to_before_projector")
    # A visual table is fed probabilities, whose norm is at most 1: nothing to compare.
    if not (change.usable and usable(before) and before > 1.0):
        return []
    words = Words("larger", "smaller", "about the same", f"{OPEN} from that before")
    return [
        f"Behind the projector their geometric mean norm is {ratio_in_words([change], words)}: "
        f"{significant(before)} before, {significant(after)} after"
    ]


def _mixtures(interface: pd.DataFrame) -> list[str]:
    """Rows of a visual table, and the tokens that are mixed from them."""
    rows = _value(interface, VISUAL_EMBEDDING_TABLE, NONZERO_ROWS, "norm_mean")
    tokens = _value(interface, PROJECTOR_OUTPUT, VISUAL, "norm_mean")
    if not (usable(rows) and usable(tokens)):
        return []
    sentence = (
        f"Rows of the visual table have a mean L2 norm of {significant(rows)}, the tokens mixed "
        f"from them {significant(tokens)}"
    )
    weight = _value(interface, PROJECTOR_INPUT, VISUAL, "norm_q50")
    if usable(weight):
        sentence += f"; a median token mixes {significant(weight**-2, 2)} rows (1 / ||p||^2)"
    return [sentence]


def visual_stage(interface: pd.DataFrame) -> str:
    """Where visual tokens are compared with text: the decoder input.

    Where text enters the decoder without them, they stand beside the sequence, and it is the last
    stage that they reach.
    """
    here = [_has(interface, DECODER_INPUT, group) for group in (VISUAL, TEXT)]
    if here != [False, True]:
        return DECODER_INPUT
    return PROJECTOR_OUTPUT if _has(interface, PROJECTOR_OUTPUT, VISUAL) else VISION_ENCODER


def _has(interface: pd.DataFrame, stage: str, group: str) -> bool:
    return bool(((interface["stage"] == stage) & (interface["group"] == group)).any())


def _out_of(interface: pd.DataFrame, stage: str, group: str) -> str:
    """How many samples hold such tokens, where others do not."""
    return out_of(_value(interface, stage, group, "samples"), float(interface["samples"].max()))


def _ratio(interface: pd.DataFrame, stage: str, column: str, group: str = VISUAL) -> Ratio:
    """Of the visual tokens of a stage, or of others."""
    ends = (column, f"{column}_ci_low", f"{column}_ci_high")
    return Ratio(*(_value(interface, stage, group, name) for name in ends))


def _value(interface: pd.DataFrame, stage: str, group: str, column: str) -> float:
    rows = interface[(interface["stage"] == stage) & (interface["group"] == group)]
    return float(rows[column].iloc[0]) if len(rows) and column in rows else math.nan
