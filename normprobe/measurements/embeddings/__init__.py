"""The embedding tables: norms of their rows, and how far they moved (Tables 3, 6-8)."""

from normprobe.measurements import Measurement
from normprobe.model.load.required_tensors import embedding_tables
from normprobe.paper import TEXT_TABLE, VISUAL_TABLE
from normprobe.schema import NONZERO_ROWS, TEXT, VISUAL

MEASUREMENT = Measurement(
    name="embeddings",
    needs=embedding_tables,
    runs_model=False,
    measures=("text_embedding",),
    shown=("embeddings", "tokens", "histogram"),  # the histogram is a figure
    repeated=("embeddings", "shift"),
    published={
        TEXT_TABLE: {"table": TEXT, "rows": NONZERO_ROWS},
        VISUAL_TABLE: {"table": VISUAL, "rows": NONZERO_ROWS},
    },
)
