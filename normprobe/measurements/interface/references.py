"""What the ratios of interface.csv divide by."""

import pandas as pd

from normprobe.schema import (
    DECODER_INPUT,
    EFFECTIVE_EMBEDDING,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROMPT_ROWS,
    TEXT,
    VISION_ENCODER,
    VISUAL,
)

#: Column -> stage and group whose mean norm it divides by: of these the first that is there.
REFERENCES = {
    "ratio_to_table": ((EFFECTIVE_EMBEDDING, NONZERO_ROWS), (EFFECTIVE_EMBEDDING, PROMPT_ROWS)),
    "ratio_to_prompt": ((DECODER_INPUT, TEXT),),
    "ratio_to_before_projector": ((PROJECTOR_INPUT, VISUAL), (VISION_ENCODER, VISUAL)),
}

#: The same of geometric means, of which no embedding table keeps any: sentences say these.
GEOMETRIC_REFERENCES = {
    "geometric_ratio_to_prompt": "ratio_to_prompt",
    "geometric_ratio_to_before_projector": "ratio_to_before_projector",
}


def place_of_reference(table: pd.DataFrame, column: str) -> int | None:
    """The row number in interface.csv that a ratio divides by; None where it is not there."""
    for stage, group in REFERENCES[column]:
        found = ((table["stage"] == stage) & (table["group"] == group)).to_numpy().nonzero()[0]
        if found.size:
            return int(found[0])
    return None
