"""Which cells of the paper's tables a run fills: the numbers of its own tables, and no others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support import made_tables
from support.flat import tidied
from support.made_runs import run_folder

from normprobe.paper.tables import (
    Cells,
    cells_of_norm,
    cells_of_run,
    layouts,
    merged_notes,
    names_on,
    notes_on,
)
from normprobe.run import Run, load_run
from normprobe.statistics.weights import norm_statistics


def filled(name: str, run: Run, model: str, base: str | None = None) -> Cells:
    published = run.published(model, base)
    return {} if published is None else cells_of_run(layouts()[name], run.store, published)


@pytest.fixture
def interface(tmp_path: Path) -> Run:
    record = {"model": "./copy", "data": "paper", "sample_ids": ["a", "b"]}
    tables = {"interface": tidied("interface", made_tables.interface())}
    return load_run(run_folder(tmp_path / "run", "interface", record=record, **tables))


@pytest.fixture
def embeddings(tmp_path: Path) -> Run:
    """Of a model beside its base, whose loudest token is áveis."""
    own = made_tables.embeddings("text")
    shift = made_tables.shift()
    shift.loc[30, ["token", "base_norm"]] = ["áveis", 1.9]
    shift["base_rank"] = shift["base_norm"].rank(ascending=False)
    path = run_folder(
        tmp_path / "embeddings",
        "embeddings",
        record={"model": "./copy", "base": "./other"},
        embeddings=tidied(
            "embeddings", pd.concat([own, own.assign(table="base", norm_mean=0.7, norm_std=0.2)])
        ),
        tokens=made_tables.tokens("text"),
        shift=shift,
    )
    return load_run(path)


@pytest.mark.parametrize(
    ("model", "row"), [("openai/clip-vit-large-patch14", 0), ("moonshotai/MoonViT-SO-400M", 3)]
)
def test_table_1_takes_the_vision_encoder(model: str, row: int, interface: Run) -> None:
    expected = {(row, "mean"): 28.21, (row, "std"): 4.1, (row, "hidden_size"): 192.0}
    assert filled("table1", interface, model) == expected


def test_table_1_takes_the_text_embedding(embeddings: Run) -> None:
    mean = made_tables.embedding_norms("text").mean()
    cells = filled("table1", embeddings, "Qwen/Qwen3-8B", "none")
    assert cells == {(5, "mean"): pytest.approx(mean), (5, "hidden_size"): 3584.0}


@pytest.mark.parametrize(
    ("model", "row"), [("llava-hf/llava-1.5-7b-hf", 0), ("zai-org/GLM-4.1V-9B-Thinking", 3)]
)
def test_table_2_takes_both_ends_of_the_projector(model: str, row: int, interface: Run) -> None:
    assert filled("table2", interface, model) == {
        (row, "before_projector_mean"): 28.21,
        (row, "before_projector_std"): 4.1,
        (row, "after_projector_mean"): 16.53,
        (row, "after_projector_std"): 2.2,
        (row, "text_embedding_mean"): 0.2203,
    }


def test_where_patches_were_merged_a_note_says_so(tmp_path: Path) -> None:
    table = made_tables.interface()
    merged = table[table["stage"] == "projector_input"].assign(
        stage="projector_input_merged", norm_mean=144.3, norm_std=31.0
    )
    kimi = "moonshotai/Kimi-VL-A3B-Instruct"
    path = run_folder(
        tmp_path / "run",
        "interface",
        record={"model": kimi, "data": "mmbench", "sample_ids": ["a", "b"]},
        interface=tidied("interface", pd.concat([table, merged])),
    )
    run = load_run(path)
    published = run.published(kimi)
    assert published is not None
    notes = notes_on(layouts()["table2"], run.store, published)
    assert notes[0] == ("KimiVL", f"{kimi}, 2 samples of mmbench.")
    assert ("KimiVL, before it, patches merged", "144.3 \u00b1 31.00.") in notes
    assert cells_of_run(layouts()["table2"], run.store, published)[
        2, "before_projector_mean"
    ] == pytest.approx(28.21)


@pytest.mark.parametrize(
    ("hub_id", "name", "note"),
    [
        ("zai-org/GLM-4.1V-9B-Thinking", "GLM-4.1V", ""),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen-2.5-VL", "two means of one table"),
    ],
)
def test_a_stand_in_is_named_and_a_local_copy_is_none(
    hub_id: str, name: str, note: str, tmp_path: Path
) -> None:
    interface = tidied("interface", made_tables.interface())
    for model, stand_in in (
        (hub_id, ""),
        (f"copies/{hub_id.split('/')[1]}", ""),
        ("./other", "other"),
    ):
        record = {"model": model, "data": "mmbench", "sample_ids": ["a"]}
        folder = tmp_path / stand_in / model.replace("/", "-")
        run_folder(folder, "interface", record=record, interface=interface)
        run = load_run(folder)
        published = run.published(hub_id)
        assert published is not None
        told = names_on(layouts()["table2"], run.store, published)
        assert list(told) == [name]
        assert told[name].stand_in == stand_in
        assert told[name].note.endswith(f"{note}." if note else "")
        ((whom, text),) = notes_on(layouts()["table2"], run.store, published)
        assert (whom, text) == (name, f"{model}, 1 sample of mmbench.")


def test_what_notes_say_alike_is_said_once() -> None:
    notes = [("A", "x, 1 sample."), ("B", "y."), ("C", "x, 1 sample."), ("A", "x, 1 sample.")]
    assert merged_notes(notes) == ["A, C: x, 1 sample.", "B: y."]


def test_table_3_takes_both_vocabularies(tmp_path: Path) -> None:
    table = tidied("embeddings", made_tables.embeddings("text", "visual"))
    run = load_run(run_folder(tmp_path / "run", "embeddings", embeddings=table))
    cells = filled("table3", run, "AIDC-AI/Ovis2.5-9B")
    assert cells == {
        (row, statistic): pytest.approx(float(getattr(np, statistic)(norms)))
        for row, norms in enumerate(map(made_tables.embedding_norms, ("visual", "text")))
        for statistic in ("mean", "std")
    }


def test_table_5_takes_gain_and_bias() -> None:
    random = np.random.default_rng(0)
    gain, bias = random.normal(0.04, 0.01, 3072), random.normal(0, 0.02, 3072)
    statistics = norm_statistics(torch.tensor(gain), torch.tensor(bias))
    cells = cells_of_norm(layouts()["table5"], "aligned_init", statistics)
    assert cells == {
        (0, "aligned_init"): pytest.approx(np.sqrt((gain**2).sum())),
        (1, "aligned_init"): pytest.approx(np.abs(gain).mean()),
        (2, "aligned_init"): pytest.approx(np.abs(gain).std() / np.sqrt(3072)),
        (3, "aligned_init"): pytest.approx(np.abs(bias).mean()),
        (4, "aligned_init"): pytest.approx(np.abs(bias).std() / np.sqrt(3072)),
    }


def test_table_6_takes_both_tables(embeddings: Run) -> None:
    cells = filled("table6", embeddings, "Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2-7B-Instruct")
    norms = made_tables.embedding_norms("text")
    assert cells == {
        (0, "mean"): 0.7,
        (0, "std"): 0.2,
        (1, "mean"): pytest.approx(norms.mean()),
        (1, "std"): pytest.approx(norms.std()),
    }


def test_table_7_takes_the_loudest_tokens_of_both_tables(embeddings: Run) -> None:
    models = ("Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2-7B-Instruct")
    cells = filled("table7", embeddings, *models)
    shift = embeddings.tables["shift"]
    for side, variant in (("base_", "base"), ("", "vl")):
        loudest = shift[f"{side}norm"].nlargest(10)
        measured = [cells[row, f"{variant}_l2_norm"] for row in range(10)]
        assert measured == loudest.tolist()
        tokens = [cells[row, f"{variant}_token"] for row in range(10)]
        assert tokens == shift.loc[loudest.index, "token"].tolist()
    assert cells[0, "base_token"] == "áveis"
    assert cells[0, "base_token_published_rank"] == 1
    assert cells[1, "vl_token_published_rank"] == 2  # <|vision_end|>
    assert not filled("table8", embeddings, *models)


def test_a_base_model_alone_fills_its_side(tmp_path: Path) -> None:
    tokens = made_tables.tokens("text", "visual")
    embeddings = tidied("embeddings", made_tables.embeddings("text"))
    tables = {"embeddings": embeddings, "tokens": tokens}
    run = load_run(run_folder(tmp_path / "run", "embeddings", **tables))
    cells = filled("table8", run, "Qwen/Qwen2.5-7B-Instruct")
    assert {column for _, column in cells} == {"base_token", "base_l2_norm"}
    top = np.sort(made_tables.embedding_norms("text"))[::-1][:10]
    assert [cells[row, "base_l2_norm"] for row in range(10)] == pytest.approx(top.tolist())


@pytest.mark.parametrize("name", ["table1", "table3", "table6", "table7", "table8"])
def test_a_run_fills_no_cell_of_another_table(name: str, interface: Run) -> None:
    assert not filled(name, interface, "llava-hf/llava-1.5-7b-hf")
