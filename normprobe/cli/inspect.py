"""``normprobe inspect``."""

from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli import options as opt


def inspect(
    model: opt.Model = "specimen",
    revision: opt.Revision = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    vision_encoder: opt.PartName = None,
    projector: opt.PartName = None,
    decoder_layers: opt.PartName = None,
    text_embedding: opt.PartName = None,
    image_token_id: opt.ImageTokenId = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Bytes, types and files of each part, from the files' headers."
        ),
    ] = False,
    json: opt.Json = False,
    verbose: opt.Verbose = False,
) -> None:
    """What normprobe sees: parts, sizes and token ids, from the config alone, no weights.

    With --weights also what the weight files hold of each part, and what each command would read.
    """
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.analyses.inspect import norm_placement_note, parts_table
        from normprobe.analyses.weights import weights_table
        from normprobe.model.alignment_files import saved_settings
        from normprobe.model.checkpoint import open_checkpoint
        from normprobe.model.loading import build_on_meta
        from normprobe.model.parts import family_of, find_parts
        from normprobe.report import tables

        checkpoint = open_checkpoint(model, revision=revision, trust_remote_code=trust_remote_code)
        built = build_on_meta(checkpoint)
        parts = find_parts(built, named=opt.named_parts(chosen))
        table = parts_table(built, parts)
        stored = weights_table(checkpoint, built, parts) if weights else None
        if json:
            console.data(tables.to_json(table if stored is None else stored))
            return
        text_config = checkpoint.config.get_text_config(decoder=True)
        facts = {
            "model": checkpoint.name,
            "type": f"{checkpoint.config.model_type} ({checkpoint.kind})",
            "hidden size": getattr(text_config, "hidden_size", None),
            "family": family_of(parts),
            "norm placement": norm_placement_note(built, parts),
            "image token ids": ", ".join(map(str, parts.image_token_ids)),
        }
        norm = saved_settings(checkpoint)
        if norm is not None:
            facts["alignment norm"] = f"behind {norm['after']}"
        target = console.stdout_console()
        tables.inspect_table(table, facts, target)
        if stored is not None:
            tables.weights_table(stored, target)
