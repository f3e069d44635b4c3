"""Checkpoints with code of their own, as a user measures them; and none of it runs unasked.

The repositories are miniatures with the names and inputs that each family publishes.
"""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cli.conftest import assert_two_lines
from safetensors.torch import load_file
from support.agreement import assert_agrees
from support.commands import spawned
from support.flat import flat
from support.reference import layers_table, members, norm, observe_layers
from support.remote_code import FAMILIES, plain_model
from support.remote_code.expected import PARTS, STRUCTURAL_ROWS
from support.remote_code.observed import Observed, observe
from support.remote_code.opened import opened
from typer.testing import Result

from normprobe import probe_interface, schema
from normprobe.data.data_set import open_data

Run = Callable[..., Result]
Repository = Callable[[str], Path]
TRUST = "--trust-remote-code"

#: Families whose projector receives patches in groups, and how many it merges into one token.
MERGED = {"kimi_vl": 4}
#: Stages whose rows are those of the projector.
OF_PROJECTOR = (schema.PROJECTOR_INPUT, schema.PROJECTOR_OUTPUT)

every_family = pytest.mark.parametrize("family", PARTS)


@cache
def observed(family: str, folder: Path, one_by_one: bool) -> list[Observed]:
    """The first two samples, each alone or both in one batch."""
    builder = opened(folder, model=plain_model(family, folder))
    samples = list(open_data("sample", limit=2, seed=42))
    groups = [[sample] for sample in samples] if one_by_one else [samples]
    return [observe(family, builder, group) for group in groups]


@every_family
def test_inspect_names_the_parts(family: str, repository: Repository, run: Run) -> None:
    result = run("inspect", repository(family), TRUST, "--format", "json")
    assert result.exit_code == 0, result.output
    names = {row["part"]: row["name"] for row in json.loads(result.stdout)["parts"]}
    parts = PARTS[family]
    assert names["vision_encoder"] == parts.vision_encoder
    assert names["projector"] == parts.projector
    assert names["text_embedding"] == parts.text_embedding
    assert names["decoder_layers"] == parts.decoder_layers


@every_family
def test_layers(family: str, repository: Repository, run: Run, tmp_path: Path) -> None:
    folder = repository(family)
    result = run("layers", folder, TRUST, "-n", "2", "-b", "2", "-o", "out")
    assert result.exit_code == 0, result.output
    (seen,) = observed(family, folder, one_by_one=False)
    structural = (seen.groups == schema.STRUCTURAL).sum(axis=-1)
    assert structural.tolist() == [STRUCTURAL_ROWS.get(family, 0)] * 2
    assert (seen.groups == schema.VISUAL).any(axis=-1).all()
    expected = layers_table(observe_layers(seen.states, seen.groups))
    table = flat(pd.read_csv(tmp_path / "out/layers.csv")).set_index(["layer", "group"])
    assert set(table.index) == set(expected)
    for key, row in expected.items():
        assert_agrees(table.loc[key], row, where=(family, key))


@every_family
def test_interface(family: str, repository: Repository, run: Run, tmp_path: Path) -> None:
    folder = repository(family)
    result = run("interface", folder, TRUST, "-n", "2", "-o", "out")
    assert result.exit_code == 0, result.output
    table = flat(pd.read_csv(tmp_path / "out/interface.csv")).set_index(["stage", "group"])
    expected = interface_rows(family, observed(family, folder, one_by_one=True))
    stages = (
        schema.VISUAL_EMBEDDING_TABLE,
        schema.TEXT_EMBEDDING_TABLE,
        schema.EFFECTIVE_EMBEDDING,
    )
    assert {key for key in table.index if key[0] not in stages} == set(expected)
    for key, norms in expected.items():
        row = {"tokens": len(norms), "norm_mean": norms.mean(), "norm_std": norms.std()}
        assert_agrees(table.loc[key], row, where=(family, key))


def interface_rows(family: str, samples: list[Observed]) -> dict[tuple[str, str], Any]:
    """Norms of the rows of each stage and group, of all samples together."""
    rows: dict[tuple[str, str], list[Any]] = {}
    for seen in samples:
        entered = seen.states.layers[0].entered
        learned = entered[seen.groups == schema.STRUCTURAL]
        handed = seen.vision.get((schema.PROJECTOR_OUTPUT, schema.VISUAL), [])
        added = [
            (np.abs(call.reshape(-1, 1, call.shape[-1]) - learned).max(-1) < 1e-5).any(-1)
            for call in handed
        ]
        for key, calls in seen.vision.items():
            told = added if key[0] in OF_PROJECTOR and key[1] == schema.VISUAL else []
            for place, call in enumerate(calls):
                norms = norm(call).ravel()
                here = told[place] if told and len(told[place]) == len(norms) else norms < 0
                rows.setdefault(key, []).append(norms[~here])
                if here.any():
                    rows.setdefault((key[0], schema.STRUCTURAL), []).append(norms[here])
            if key == (schema.PROJECTOR_INPUT, schema.VISUAL) and family in MERGED:
                merged = [call.reshape(-1, MERGED[family] * call.shape[-1]) for call in calls]
                rows.setdefault((schema.MERGED_INPUT, schema.VISUAL), []).extend(map(norm, merged))
        for group, chosen in members(seen.groups).items():
            rows.setdefault((schema.DECODER_INPUT, group), []).append(norm(entered[chosen]))
    return {key: np.concatenate(norms) for key, norms in rows.items() if norms}


@every_family
def test_embeddings(family: str, repository: Repository, run: Run, tmp_path: Path) -> None:
    folder = repository(family)
    result = run("embeddings", folder, TRUST, "-o", "out")
    assert result.exit_code == 0, result.output
    table = flat(pd.read_csv(tmp_path / "out/embeddings.csv")).set_index(["table", "rows"])
    weights = load_file(folder / "model.safetensors")
    of_table = {"text": f"{PARTS[family].text_embedding}."}
    if family == "ovis2_5":  # a table for the visual vocabulary beside that of the text
        of_table["visual"] = "vte."
    assert set(table.index.get_level_values("table")) == set(of_table)
    for name, prefix in of_table.items():
        pieces = [weights[key] for key in sorted(weights) if key.startswith(prefix)]
        norms = norm(torch.cat(pieces).double().numpy())
        row = {"norm_mean": norms.mean(), "norm_std": norms.std(), "tokens": len(norms)}
        assert_agrees(table.loc[(name, "all_rows")], row, where=(family, name))


def test_bare_moonvit(repository: Repository, run: Run, tmp_path: Path) -> None:
    folder = repository("moonvit")
    result = run("interface", folder, TRUST, "-n", "2", "-o", "out")
    assert result.exit_code == 0, result.output
    (row,) = flat(pd.read_csv(tmp_path / "out/interface.csv")).to_dict("records")
    assert (row["stage"], row["group"]) == (schema.VISION_ENCODER, schema.VISUAL)
    assert row["tokens"] == 2 * 4 * 6  # every patch, in the groups of four that are merged later
    assert row["hidden_size"] == 24
    assert run("inspect", folder, TRUST).exit_code == 0
    assert_two_lines(run("layers", folder, TRUST), "vision encoder", "normprobe interface")


def test_moonvit_gives_a_list_with_a_tensor_for_each_image(repository: Repository) -> None:
    builder = opened(repository("moonvit"))
    inputs = builder.build(list(open_data("sample", limit=2)))
    table = flat(probe_interface(builder.model, inputs))
    assert table["tokens"].tolist() == [2 * 4 * 6]


def test_the_native_phi_4_is_a_vision_language_model(run: Run, tmp_path: Path) -> None:
    """transformers lists it with the language models."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = {
        **sizes,
        "model_type": "phi4_multimodal",
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "vision_config": {**sizes, "num_hidden_layers": 2},
        "audio_config": {**sizes, "num_blocks": 1, "ext_pw_out_channel": 32},
    }
    (tmp_path / "phi").mkdir()
    (tmp_path / "phi/config.json").write_text(json.dumps(config))
    result = run("inspect", "./phi", "--format", "json")
    assert result.exit_code == 0, result.output
    names = {row["part"]: row["name"] for row in json.loads(result.stdout)["parts"]}
    assert names["projector"].endswith("img_projection_down")
    assert names["decoder_layers"] == "model.layers"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("command", ["inspect", "interface", "layers", "embeddings"])
def test_code_that_is_not_trusted_does_not_run(
    family: str, command: str, repository: Repository, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in repository(family).iterdir():
        text = file.read_text() if file.suffix in (".py", ".json") else ""
        if file.suffix == ".py":
            text += f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n"
        (folder / file.name).write_text(text)
    assert_two_lines(run(command, folder), "code of its own", TRUST)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "runs").exists()


def look_alike(
    repository: Repository, family: str, folder: Path, model_type: str = "", **words: str
) -> Path:
    """A copy of a repository whose config says another type, or whose code has other names."""
    shutil.copytree(repository(family), folder)
    config = folder / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"model_type": model_type or family}))
    for file in folder.glob("modeling_*.py"):
        code = file.read_text()
        for old, new in words.items():
            code = code.replace(old, new)
        file.write_text(code)
    return folder


def test_another_model_of_a_known_type_goes_the_general_way(
    repository: Repository, tmp_path: Path
) -> None:
    """DeepSeek-OCR says that it is a DeepSeek-VL2: it is not asked for the package of that.

    In processes of their own: here, another test may have imported that package.
    """
    folder = look_alike(repository, "inplace", tmp_path / "ocr", model_type="deepseek_vl_v2")
    for command, few in (("embeddings", []), ("layers", ["-n", "1"])):
        words = [command, str(folder), TRUST, "-o", command, *few]
        ended = spawned(tmp_path, words, {}, unrendered=True)
        assert ended.returncode == 0, ended.stderr
    record = json.loads((tmp_path / "layers/run.json").read_text())
    assert record["inputs_file"] == {}
    assert (record["model_type"], record["parts_found_by"]) == ("deepseek_vl_v2", "trace")


def test_a_tower_like_moonvit_is_left_as_it_is(
    repository: Repository, run: Run, tmp_path: Path
) -> None:
    """Its blocks choose their attention elsewhere, under another name."""
    folder = look_alike(
        repository, "kimi_vl", tmp_path / "tower", **{"self.attn_implementation": "self.kernel"}
    )
    result = run("layers", folder, TRUST, "-n", "1", "-o", "out")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["inputs_file"] == {"family": "kimi_vl"}
    assert record["prepared"] == []


def test_code_that_a_family_file_does_not_know_is_refused_in_two_lines(
    repository: Repository, run: Run, tmp_path: Path
) -> None:
    folder = look_alike(
        repository, "internvl_chat", tmp_path / "chat", **{"num_image_token": "tokens_a_square"}
    )
    assert_two_lines(run("layers", folder, TRUST, "-n", "1"), "num_image_token", "--inputs")


def test_the_record_names_the_attention_that_ran(
    repository: Repository, run: Run, tmp_path: Path
) -> None:
    """Kimi-VL is built eagerly; its images are kept apart by sdpa, and the decoder stays eager."""
    folder = tmp_path / "kimi"
    shutil.copytree(repository("kimi_vl"), folder)
    result = run("layers", folder, TRUST, "-n", "1", "-o", "out")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["attn_implementation"]["vision_encoder"] == "sdpa"
    eager = run("layers", folder, TRUST, "-n", "1", "--attn-implementation", "eager")
    assert_two_lines(eager, "--attn-implementation eager", "leave --attn-implementation out")
    assert (
        json.loads(run("inspect", folder, TRUST, "--format", "json").stdout)["inputs_file"]
        == "kimi_vl"
    )
