"""Compares the parts found by structure with those of a trace."""

import pandas as pd

from normprobe.model.find.parts import Parts
from normprobe.model.tracing.stacks import holds
from normprobe.model.tracing.trace import TracedParts

ROLES = ("vision_encoder", "projector", "text_embedding", "decoder_layers")


def verify(parts: Parts, traced: TracedParts) -> pd.DataFrame:
    """Compare what ``find_parts`` says with what a trace shows."""
    rows = []
    for role in ROLES:
        part = getattr(parts, role)
        static, found = part.name if part else None, getattr(traced, role)
        agree = static == found or static in _alike(role, traced)
        rows.append({"part": role, "static": static, "traced": found, "agree": agree})
    return pd.DataFrame(rows, columns=["part", "static", "traced", "agree"])


def _alike(role: str, traced: TracedParts) -> list[str]:
    """Other names that agree with the traced one."""
    if role == "text_embedding":
        return list(traced.text_table)
    if role == "projector" and traced.projector is not None:
        projector = traced.projector
        return [n for n in traced.emitters if holds(n, projector) or holds(projector, n)]
    return []
