"""The rows of every interface stage in float64, and what the table must say about them."""

from collections.abc import Iterable

import numpy as np
import scipy.stats
import torch

from normprobe import schema
from support.capture import Array, capture
from support.cases import Case
from support.reference import Row, members, norm

#: Rows of one stage and group, ``[rows, width]``.
StageRows = dict[tuple[str, str], Array]


def stage_rows(case: Case) -> StageRows:
    """Every row that counts. Padding, padded patches and empty tiles do not."""
    rows: StageRows = {}
    if case.parts.vision_encoder is not None:
        rows |= vision_encoder_rows(case)
    if case.parts.projector is not None:
        rows[schema.PROJECTOR_INPUT, schema.VISUAL] = flat(case.states.projector_input)
        rows[schema.PROJECTOR_OUTPUT, schema.VISUAL] = flat(case.states.projector_output)
    if case.parts.decoder_layers is not None:
        decoder_input = case.states.layers[0].entered
        for group, chosen in members(case.groups).items():
            rows[schema.DECODER_INPUT, group] = decoder_input[chosen]
        rows |= table_rows(case)
    return rows


def vision_encoder_rows(case: Case) -> StageRows:
    """Class rows come first in each image, and are no patches."""
    (states,) = case.states.vision_encoder
    count = case.parts.class_rows
    if count:
        return {
            (schema.VISION_ENCODER, schema.SPECIAL): flat([states[:, :count]]),
            (schema.VISION_ENCODER, schema.VISUAL): flat([states[:, count:]]),
        }
    patches = flat([states])
    if "spatial_shapes" in case.inputs:  # SigLIP2 pads the patches of small images
        patches = patches[case.inputs["pixel_attention_mask"].flatten().bool().numpy()]
    return {(schema.VISION_ENCODER, schema.VISUAL): patches}


def table_rows(case: Case) -> StageRows:
    """The embedding table, and its rows as they enter layer 1 when the whole vocabulary is read."""
    weight = case.model.get_submodule(case.parts.text_embedding).weight
    table = weight.detach().double().numpy()
    ids = torch.arange(len(weight)).unsqueeze(0)
    entered = capture(case.model, {"input_ids": ids}, case.parts).layers[0].entered[0]
    filled = norm(table) > 0
    visual: StageRows = {}
    projector = case.model.get_submodule(case.parts.projector or "")
    if isinstance(projector, torch.nn.Embedding):  # Ovis
        visual_table = projector.weight.detach().double().numpy()
        visual = {
            (schema.VISUAL_EMBEDDING_TABLE, schema.ALL_ROWS): visual_table,
            (schema.VISUAL_EMBEDDING_TABLE, schema.NONZERO_ROWS): visual_table[
                norm(visual_table) > 0
            ],
        }
    return {
        **visual,
        (schema.TEXT_EMBEDDING_TABLE, schema.ALL_ROWS): table,
        (schema.TEXT_EMBEDDING_TABLE, schema.NONZERO_ROWS): table[filled],
        (schema.EFFECTIVE_EMBEDDING, schema.ALL_ROWS): entered,
        (schema.EFFECTIVE_EMBEDDING, schema.NONZERO_ROWS): entered[filled],
    }


def flat(arrays: Iterable[Array]) -> Array:
    return np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])


def interface_table(rows: StageRows) -> dict[tuple[str, str], Row]:
    """By stage and group; ratios where there is something to divide by."""
    table = {key: summary(states) for key, states in rows.items()}
    for column, base in (
        ("ratio_to_table", (schema.EFFECTIVE_EMBEDDING, schema.NONZERO_ROWS)),
        ("ratio_to_prompt", (schema.DECODER_INPUT, schema.TEXT)),
    ):
        if base in table:
            for row in table.values():
                row[column] = row["norm_mean"] / table[base]["norm_mean"]
    prompt = table.get((schema.DECODER_INPUT, schema.TEXT))
    for (stage, _), row in table.items():
        if stage.endswith(("table", "embedding")):
            del row["norm_geometric_mean"]  # of a table there is none
        elif prompt is not None:
            row["geometric_ratio_to_prompt"] = (
                row["norm_geometric_mean"] / prompt["norm_geometric_mean"]
            )
    return table


def summary(states: Array) -> Row:
    norms, width = norm(states), states.shape[-1]
    return {
        "hidden_size": width,
        "tokens": len(norms),
        "nonfinite": 0,
        "norm_mean": norms.mean(),
        "norm_std": norms.std(),
        "norm_geometric_mean": scipy.stats.gmean(norms[norms > 0]),
        "rms_mean": norms.mean() / np.sqrt(width),
    }
