"""What normprobe sees of a model, from its config and the headers of its weight files.

It loads no weights and makes no run, so it is no ``Measurement``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from typing import Any

import pandas as pd
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text
from torch import nn

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.inputs.inputs_file import family_file
from normprobe.measurements import measurements
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.norms import norm_placement_note
from normprobe.model.find.parts import Parts, family_of
from normprobe.model.find.structure import find_parts
from normprobe.model.load.gguf_weights import weight_files_of
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.load.plan import LoadPlan, plan_loading
from normprobe.model.load.required_tensors import outside, unneeded
from normprobe.model.load.weight_files import WeightFiles
from normprobe.report.readable import count, significant
from normprobe.report.terminal import (
    add_column,
    new_table,
    print_facts,
    print_notes,
    print_table,
    words,
)


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint shows."""

    facts: dict[str, object]  # named facts of the model, in the order to print them
    parts: pd.DataFrame  # of ``parts_table``
    weights: pd.DataFrame | None  # of ``weights_table``; None where nobody asked


def inspected(
    checkpoint: Checkpoint, named: Mapping[str, Any], *, weights: bool = False
) -> Inspection:
    """Build a checkpoint's modules without weights and describe them."""
    model = build_on_meta(checkpoint)
    weight_files = weight_files_of(checkpoint)
    compared = _compared(checkpoint, model, weight_files, asked=weights)
    parts = find_parts(model, named=named)
    text_config = checkpoint.config.get_text_config(decoder=True)
    facts = {
        "model": checkpoint.name,
        "type": f"{checkpoint.config.model_type} ({checkpoint.kind})",
        "hidden size": getattr(text_config, "hidden_size", None),
        "family": family_of(parts),
        "inputs file": family_file(checkpoint.config).record.get("family"),
        "norm placement": norm_placement_note(model, parts),
        **_before_layer_one(checkpoint.config.model_type, model),
        "image token ids": ", ".join(map(str, parts.image_token_ids)),
    }
    for name in ("video_token_ids", "audio_token_ids"):
        if ids := getattr(parts, name):
            facts[name.replace("_", " ")] = ", ".join(map(str, ids))
    facts["weight files"] = compared
    if checkpoint.doubt:
        facts["doubt"] = checkpoint.doubt
    if checkpoint.alignment is not None:
        facts["alignment norm"] = f"behind {checkpoint.alignment.after}"
    stored = weights_table(checkpoint, model, parts, weight_files) if weights else None
    return Inspection(facts, parts_table(model, parts), stored)


def supported_models() -> pd.DataFrame:
    """``supported_models.csv``: what tiny models of every type of transformers showed."""
    table_file = files("normprobe.model.find") / "supported_models.csv"
    with table_file.open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)


def _before_layer_one(model_type: str, model: nn.Module) -> dict[str, str]:
    """What stands between projector or text table and layer 1, as the tiny model of a type shows.

    Nothing of a type that was not tried, and of a model that lacks the norm that was seen.
    """
    types = supported_models().set_index("model_type")
    if model_type not in types.index or not is_native(model):
        return {}
    modules = dict(model.named_modules())
    found = {}
    for column in ("visual_rows", "text_rows"):
        told = str(types.at[model_type, column])
        _, _, module = told.partition(": ")
        if told and (not module or module in modules):
            found[f"{column.replace('_', ' ')} before layer 1"] = told
    return found


def _compared(
    checkpoint: Checkpoint, model: nn.Module, weights: WeightFiles, *, asked: bool
) -> str:
    """Compare names and shapes of the model's tensors with the headers of the weight files."""
    if not asked:
        try:
            if not weights.headers_are_here:
                return "not compared, no headers here"
            for name in weights.files:
                weights.headers(name)
        except NormprobeError as error:  # nothing to compare with is no reason to refuse
            return f"not compared, {error.problem}"
    plan = plan_loading(checkpoint, model, weights=weights)
    if plan.keys is None:
        return f"not compared, {plan.because}"
    told = ["names and shapes as the model expects", *plan.notes]
    if plan.unplaced:
        count, first = len(plan.unplaced), plan.unplaced[0]
        told.insert(1, f"more for which it has no place: {count}, such as {first}")
    return "; ".join(told)


def parts_table(model: nn.Module, parts: Parts) -> pd.DataFrame:
    """The parts of a model."""
    rows = [
        {
            "part": role,
            "name": part.name or "(the model itself)",
            "class": _class_of(part.module),
            "size": _size_of(part.module),
            "parameters": sum(p.numel() for p in part.module.parameters()),
        }
        for role, part in parts
    ]
    whole = sum(p.numel() for p in model.parameters())
    rows.append(
        {
            "part": "model",
            "name": "",
            "class": type(model).__name__,
            "size": "",
            "parameters": whole,
        }
    )
    return pd.DataFrame(rows)


def _class_of(module: nn.Module) -> str:
    """The class; of a list of layers, the class of its first."""
    layers = list(module.children()) if isinstance(module, nn.ModuleList) else []
    return type(layers[0] if layers else module).__name__


def _size_of(module: nn.Module) -> str:
    if isinstance(module, nn.ModuleList):
        return f"{len(module)} layers"
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Embedding) and weight is not None:
        return f"{weight.shape[0]} x {weight.shape[1]}"
    return ""


def weights_table(
    checkpoint: Checkpoint, model: nn.Module, parts: Parts, weights: WeightFiles
) -> pd.DataFrame:
    """Parts and commands by the tensors they need, from the headers of the weight files alone."""

    def plan(without: frozenset[str]) -> LoadPlan:
        return plan_loading(checkpoint, model, without, weights=weights)

    rows = [_row(role, "part", plan(outside(part.name, model))) for role, part in parts]
    rows += [
        _row(name, "command", plan(unneeded(offered.needs, model, parts)))
        for name, offered in measurements().items()
        if offered.needs is not None
        and all(getattr(parts, role) is not None for role in offered.measures)
    ]
    whole = LoadPlan(checkpoint, type(model), weights, frozenset(weights.file_of))
    return pd.DataFrame([*rows, _row("checkpoint", "checkpoint", whole)])


def _row(what: str, kind: str, plan: LoadPlan) -> dict[str, Any]:
    row: dict[str, Any] = {"what": what, "kind": kind, "files": " ".join(plan.files)}
    if plan.keys is None:
        return row
    headers = [plan.weights.header(key) for key in plan.keys]
    return row | {
        "parameters": sum(prod(header.shape) for header in headers),
        "bytes": sum(header.nbytes for header in headers),
        "dtype": " ".join(
            sorted({header.blocks[0] if header.blocks else header.dtype for header in headers})
        ),
    }


def print_parts(parts: pd.DataFrame, facts: Mapping[str, object], console: Console) -> None:
    """Print what ``inspect`` sees in a model."""
    print_facts(facts, console)
    table = new_table("Parts")
    for header in ("part", "name in the model", "size", "parameters"):
        add_column(table, header, left=header in ("part", "name in the model"))
    for _, row in parts.iterrows():
        table.add_row(
            Text(words(str(row["part"]))),
            Text(str(row["name"])),
            Text(str(row["size"])),
            Text(f"{row['parameters']:,}"),
        )
    print_table(table, console)


def print_weights(weights: pd.DataFrame, console: Console) -> None:
    """Print what the weight files hold of each part, and what each command reads."""
    whole = len(str(weights["files"].iloc[-1]).split())
    table = new_table("Weights")
    for header in ("", "tensors of", "parameters", "bytes", "stored as", "files"):
        add_column(table, header, left=header in ("", "tensors of", "stored as"))
    previous = None
    for _, row in weights.iterrows():
        kind = "needed by" if row["kind"] == "command" else row["kind"]
        known = pd.notna(row.get("bytes"))
        table.add_row(
            Text(kind if kind != previous and row["what"] != kind else ""),
            Text(words(str(row["what"]))),
            Text(f"{row['parameters']:,.0f}" if known else "all"),
            Text(decimal(int(row["bytes"])) if known else "all"),
            Text(str(row["dtype"]) if known else ""),
            Text(f"{len(str(row['files']).split())} of {whole}"),
        )
        previous = kind
    print_table(table, console, keys=2)


def print_norm_statistics(statistics: pd.DataFrame, console: Console) -> None:
    """Print the size of gain and bias (Table 5)."""
    table = new_table("Alignment norm: gain and bias")
    for header in ("parameter", "d", "L2 norm", "mean |w|", "std |w|", "std / sqrt(d)"):
        add_column(table, header, left=header == "parameter")
    for _, row in statistics.iterrows():
        numbers = (row["l2_norm"], row["mean_abs"], row["std_abs"], row["sem_abs"])
        cells = [significant(float(number)) for number in numbers]
        table.add_row(str(row["parameter"]), count(float(row["hidden_size"])), *cells)
    print_table(table, console)


def print_models(models: pd.DataFrame, families: Mapping[str, str], console: Console) -> None:
    """Print ``supported_models.csv``."""
    table = new_table(f"{len(models)} model types")
    for header in ("type", "takes", "family", "norms", "found by"):
        add_column(table, header, left=True)
    table.add_column("before layer 1", overflow="fold")
    table.add_column("notes", overflow="fold")
    for _, row in models.iterrows():
        columns = ("model_type", "takes", "family", "norm_placement", "found_by")
        cells = [*(str(row[column]) for column in columns), _passed(row), str(row["notes"])]
        table.add_row(*map(Text, cells))
    print_table(table, console)
    passed = "before layer 1: what rows pass behind the projector, or the text table; else nothing."
    print_notes(console, passed, *(f"{name}: {meaning}." for name, meaning in families.items()))


def _passed(row: "pd.Series[Any]") -> str:
    """The norms and factors before decoder layer 1 that a type has."""
    told = {kind: str(row[f"{kind}_rows"]).partition(": ")[0] for kind in ("visual", "text")}
    return "; ".join(
        f"{kind}: {words.removeprefix('none, ')}"
        for kind, words in told.items()
        if words not in ("", "none")
    )
