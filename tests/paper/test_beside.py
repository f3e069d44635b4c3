"""Measured beside published: the right row of each command's table, and the difference."""

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support import made_tables
from support.flat import tidied
from support.made_runs import run_folder
from support.read_page import page_of_folders

from normprobe.measurements import measurement
from normprobe.paper.numbers import beside_paper, print_published, published_table
from normprobe.run import write_published
from normprobe.runs.run_folder import RunFolder, RunStore, read_table

LLAVA = "llava-hf/llava-1.5-7b-hf"


def beside(
    command: str, model: str, table: pd.DataFrame, tokens: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Of a flat table."""
    return beside_paper(model, tidied(command, table), measurement(command).published, tokens)


def rows(table: pd.DataFrame) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (row["quantity"], row["statistic"]): (row["measured"], row["published"])
        for _, row in table.iterrows()
    }


def test_interface_stages() -> None:
    table = beside("interface", LLAVA, made_tables.interface())
    assert rows(table) == {
        ("before the projector", "mean"): (28.21, 28.71),
        ("before the projector", "std"): (4.1, 16.87),
        ("after the projector", "mean"): (16.53, 39.96),
        ("after the projector", "std"): (2.2, 45.58),
        ("text embedding", "mean"): (0.2203, 1.08),  # the non-zero rows
    }
    assert set(table["source"]) == {"Table 2"}
    assert table["difference"].tolist() == pytest.approx([-0.5, -12.77, -23.43, -43.38, -0.8597])


def test_the_decoder_input_of_layers_is_what_left_the_projector() -> None:
    table = beside("layers", LLAVA, made_tables.layers())
    measured = made_tables.layers().set_index(["layer", "group"]).loc[(0, "visual")]
    assert rows(table) == {
        ("after the projector", "mean"): (measured["norm_mean"], 39.96),
        ("after the projector", "std"): (measured["norm_std"], 45.58),
    }


def test_both_vocabularies_of_ovis() -> None:
    table = made_tables.embeddings("text", "visual")
    found = rows(beside("embeddings", "AIDC-AI/Ovis2.5-9B", table))
    assert {key: published for key, (_, published) in found.items()} == {
        ("visual embedding", "mean"): 64.0,
        ("visual embedding", "std"): 0.71,
        ("text embedding", "mean"): 1.38,
        ("text embedding", "std"): 0.32,
    }
    expected = made_tables.embedding_norms("visual")
    assert found["visual embedding", "mean"][0] == pytest.approx(expected.mean())


def test_tokens_are_found_by_their_text_not_by_their_rank() -> None:
    tokens = made_tables.tokens("text")
    tokens.loc[3, "token"], tokens.loc[5, "token"] = "<|vision_start|>", ">();\n\n"
    embeddings = made_tables.embeddings("text")
    table = beside("embeddings", "Qwen/Qwen2-VL-7B-Instruct", embeddings, tokens)
    found = table[table["source"] == "Table 7"].set_index("quantity")
    assert len(found) == 10
    assert found["measured"].notna().sum() == 2
    assert found.loc['"<|vision_start|>"', "measured_rank"] == tokens.loc[3, "rank"]
    assert found.loc['"<|vision_start|>"', "measured"] == tokens.loc[3, "norm"]
    assert found.loc['"<|vision_start|>"', "statistic"] == "rank 1"
    assert found.loc['">();\\n\\n"', "measured"] == tokens.loc[5, "norm"]


def test_a_base_model_has_its_own_numbers(tmp_path: Path) -> None:
    embeddings = made_tables.embeddings("text")
    base = embeddings.assign(table="base", norm_mean=0.7)
    shift = made_tables.shift()
    shift.loc[30, ["token", "base_norm"]] = ["áveis", 1.03]
    path = run_folder(
        tmp_path / "run",
        "embeddings",
        record={"base": "Qwen/Qwen2-7B-Instruct"},
        embeddings=tidied("embeddings", pd.concat([embeddings, base])),
        tokens=made_tables.tokens("text"),
        shift=shift,
    )
    write_published(RunFolder.open(path), "Qwen/Qwen2-VL-7B-Instruct")
    table = read_table(path, "published")
    means = table[(table["source"] == "Table 6") & (table["statistic"] == "mean")]
    measured = made_tables.embedding_norms("text").mean()
    assert means["model"].tolist() == ["Qwen2-7B vl", "Qwen2-7B base"]
    assert means["published"].tolist() == [0.6820, 0.6908]
    assert means["measured"].tolist() == pytest.approx([measured, 0.7])
    assert table["source"].value_counts()["Table 7"] == 10 + 10
    loudest = table[(table["model"] == "Qwen2-7B base") & (table["statistic"] == "rank 1")]
    assert loudest[["measured", "published"]].to_numpy().tolist() == [[1.03, 1.0273]]
    assert loudest["measured_rank"].tolist() == [shift["base_rank"][30]]
    loudest = table[(table["model"] == "Qwen2-7B vl") & (table["statistic"] == "rank 1")]
    assert loudest["measured"].tolist() == [2.459]  # of the whole vocabulary, not of the top
    assert loudest["measured_rank"].tolist() == [shift["rank"].iloc[-2]]

    write_published(RunFolder.open(path), "org/model", "Qwen/Qwen2.5-7B-Instruct")
    table = read_table(path, "published")
    assert "Qwen2.5-7B base" in set(table["model"])


def test_a_described_character_is_not_looked_up() -> None:
    tokens = made_tables.tokens("text")
    tokens.loc[3, "token"] = "(Chinese Char)"
    table = beside("embeddings", "Qwen/Qwen2.5-VL-7B-Instruct", made_tables.embeddings(), tokens)
    described = table[table["quantity"] == "(Chinese Char)"]
    assert described["statistic"].tolist() == ["rank 9", "rank 10"]
    assert described["measured"].isna().all()
    assert described["measured_rank"].isna().all()
    assert set(described["note"]) == {"A description, not a token: it is not looked up."}


def test_the_papers_two_means_of_one_table_stand_beside_each_other() -> None:
    qwen = "Qwen/Qwen2.5-VL-7B-Instruct"
    for command, table in (
        ("interface", made_tables.interface()),
        ("embeddings", made_tables.embeddings()),
    ):
        found = beside(command, qwen, table).query("quantity == 'text embedding'")
        noted = found[found["note"] != ""]
        assert set(noted["published"]) == {0.86, 0.8965}
        assert all("0.86 in T" in note and "0.8965 in T" in note for note in noted["note"])
        assert set(noted["statistic"]) == {"mean"}


def test_where_patches_may_have_been_merged_both_stand_beside_the_number() -> None:
    kimi = "moonshotai/Kimi-VL-A3B-Instruct"
    table = made_tables.interface()
    apart = beside("interface", kimi, table)
    assert "before it, patches merged" not in set(apart["quantity"])
    merged = table[table["stage"] == "projector_input"].assign(
        stage="projector_input_merged", norm_mean=144.3
    )
    both = beside("interface", kimi, pd.concat([table, merged])).query("statistic == 'mean'")
    before = both[both["published"] == 137.93]
    assert before[["quantity", "measured"]].to_numpy().tolist() == [
        ["before the projector", 28.21],
        ["before it, patches merged", 144.3],
    ]
    assert before["note"].str.contains("near twice the 72.17 of MoonViT").all()


@pytest.mark.parametrize(
    ("model", "place"),
    [
        ("openai/clip-vit-large-patch14", "before post_layernorm"),
        ("google/siglip-so400m-patch14-384", "after post_layernorm"),
        ("google/siglip2-so400m-patch14-384", "after post_layernorm"),
    ],
)
def test_table_1_names_no_layer(model: str, place: str) -> None:
    table = beside("interface", model, made_tables.interface())
    notes = table.loc[table["note"] != "", ["statistic", "note"]].to_numpy().tolist()
    assert notes == [["mean", f"Table 1 names no layer. Here: the last hidden state, {place}."]]


def test_an_aligned_model_is_not_the_papers(tmp_path: Path) -> None:
    path = run_folder(
        tmp_path / "run",
        "interface",
        record={"alignment": {"target": "table"}},
        interface=tidied("interface", made_tables.interface()),
    )
    write_published(RunFolder.open(path), LLAVA)
    assert not (path / "published.csv").exists()


def test_other_models_and_commands_have_nothing_beside_them() -> None:
    table = made_tables.interface()
    assert beside("interface", "org/model", table).empty
    assert beside("attention", LLAVA, table).empty
    for command, model in (("interface", "org/model"), ("attention", LLAVA)):
        run = RunStore({"command": command})
        run.write_table(command, tidied(command, table))
        assert published_table(run, measurement(command).published, model) is None


def test_a_run_without_its_table_has_nothing_beside_it() -> None:
    run = RunStore({"command": "interface"})
    assert published_table(run, measurement("interface").published, LLAVA) is None
    run.write_table("interface", tidied("interface", made_tables.interface()))
    assert len(published_table(run, measurement("interface").published, LLAVA)) == 5
    run.note(alignment={"target": "table"})  # the paper measured it without a norm
    assert published_table(run, measurement("interface").published, LLAVA) is None


def test_the_file_lies_in_the_run_folder_and_on_the_page(tmp_path: Path) -> None:
    table = tidied("interface", made_tables.interface())
    path = run_folder(tmp_path / "run", "interface", interface=table)
    write_published(RunFolder.open(path), "org/model")
    assert not (path / "published.csv").exists()
    write_published(RunFolder.open(path), LLAVA)
    table = read_table(path, "published")
    assert len(table) == 5
    assert "published.csv" in RunFolder.open(path).record["files"]
    text = page_of_folders(path)
    assert "Beside the paper" in text
    assert "45.58" in text


def test_the_terminal_table_fits() -> None:
    embeddings, tokens = made_tables.embeddings("text"), made_tables.tokens("text")
    table = beside("embeddings", "Qwen/Qwen2.5-VL-7B-Instruct", embeddings, tokens)
    printed = io.StringIO()
    print_published(table, Console(file=printed, width=80))
    lines = printed.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("<|vision_start|>" in line and "1.400" in line for line in lines)
    assert any("(Chinese Char) [" in line for line in lines)
    assert any("[1] 0.86 in Table 2, 0.8965 in Table 6" in line for line in lines)
    assert "rank here" not in printed.getvalue()


def test_the_measured_rank_stands_beside_the_published() -> None:
    tokens = made_tables.tokens("text")
    tokens.loc[3, ["token", "rank"]] = [" unb", 12_345]
    table = beside("embeddings", "Qwen/Qwen2.5-VL-7B-Instruct", made_tables.embeddings(), tokens)
    printed = io.StringIO()
    print_published(table, Console(file=printed, width=80))
    lines = printed.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "rank here" in printed.getvalue()
    (line,) = (line for line in lines if "unb" in line)
    assert "12,345" in line
