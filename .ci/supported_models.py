"""Write the table of supported model types, from tiny models of every type.

Run by `make models`; tests/model/test_every_type.py holds the table to it.
"""

import csv
import io
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "normprobe/model/find/supported_models.csv"
COLUMNS = ("model_type", "takes", "family", "norm_placement", "visual_rows", "text_rows")
COLUMNS += ("found_by", "notes")


def row(name: str, model: Any, parts: Any, traced: Any) -> dict[str, str]:
    """The row of a type, from the code; ``traced``: what a trace finds, of a type with images."""
    from support.tiny.media import EARS, media_of
    from support.tiny_models import NEEDS, WITHOUT_IMAGES

    from normprobe.model.find.norms import find_norm_placement
    from normprobe.model.find.overrides import OVERRIDES
    from normprobe.model.find.parts import STREAMS, family_of

    notes = []
    if name in WITHOUT_IMAGES:
        notes.append(f"no images: {WITHOUT_IMAGES[name]}")
    if OVERRIDES.get(name, {}).get("videos_only"):
        notes.append("videos only")
    if traced and traced.injected_layers:
        notes.append("DeepStack")
    if parts.stream is not STREAMS["single"]:
        notes.append(f"measured: {parts.stream.meaning}")
    if OVERRIDES.get(name, {}).get("positions"):
        notes.append("visual rows by perturbation")
    if name in NEEDS:
        notes.append(f"needs {NEEDS[name]}")
    media = media_of(model) | ({"audio"} if name in EARS else set())
    if OVERRIDES.get(name, {}).get("videos_only"):
        media |= {"video"}
    elif name not in WITHOUT_IMAGES:
        media |= {"image"}
    takes = [kind for kind in ("image", "video", "audio") if kind in media]
    return {
        "model_type": name,
        "takes": ", ".join(takes),
        "family": family_of(parts),
        "norm_placement": find_norm_placement(model, parts),
        **_entries(name, model, parts),
        "found_by": "override" if name in OVERRIDES else "structure",
        "notes": "; ".join(notes),
    }


def _entries(name: str, model: Any, parts: Any) -> dict[str, str]:
    """What stands between the projector or the text table and decoder layer 1."""
    from support.tiny_inputs import tiny_inputs
    from support.tiny_models import WITHOUT_IMAGES

    from normprobe.model.entry_norms import entries_of
    from normprobe.model.measured_model import MeasuredModel

    if name in WITHOUT_IMAGES:
        return {"visual_rows": "", "text_rows": ""}
    found = entries_of(MeasuredModel(model, parts), tiny_inputs(model, 2))
    told = {
        group: f"{entry}: {entry.module}" if entry.module else str(entry)
        for group, entry in found.items()
    }
    return {f"{group}_rows": told.get(group, "") for group in ("visual", "text")}


def rows() -> list[dict[str, str]]:
    """One row a type; types whose extra package is absent are left out."""
    from support.tiny_inputs import tiny_inputs
    from support.tiny_models import ALL_TYPES, NEEDS, WITHOUT_IMAGES, tiny_model

    from normprobe.model.find.structure import find_parts
    from normprobe.model.tracing.trace import trace_parts

    made = []
    for name in ALL_TYPES:
        if name in NEEDS and find_spec(NEEDS[name]) is None:
            continue
        model = tiny_model(name)
        traced = None if name in WITHOUT_IMAGES else trace_parts(model, tiny_inputs(model))
        made.append(row(name, model, find_parts(model), traced))
    return made


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest  # noqa: F401  settings that must hold before transformers is imported

    known = {}
    if TABLE.exists():
        known = {row["model_type"]: row for row in csv.DictReader(TABLE.open(encoding="utf-8"))}
    known |= {row["model_type"]: row for row in rows()}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(known[name] for name in sorted(known))
    TABLE.write_text(text.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    main()
