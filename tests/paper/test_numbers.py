"""The paper's numbers as data, against numbers copied by hand from the paper's text."""

from importlib.resources import files

import pandas as pd
import pytest

from normprobe.paper.numbers import (
    is_description,
    names_of,
    needs_remote_code,
    note_on,
    published_numbers,
    ranked_tokens,
    tokens_of_paper,
)
from normprobe.runs.run_folder import RunStore

BY_HAND = [
    ("Table 1", "SigLIP2-SO-400m-patch14-384", "vision encoder output", "mean", 59.37),
    ("Table 1", "SigLIP2-SO-400m-patch14-384", "vision encoder output", "std", 106.08),
    ("Table 1", "MoonViT-SO-400M", "vision encoder output", "hidden size", 1152),
    ("Table 1", "Qwen3-8B-Instruct", "text embedding", "mean", 1.38),
    ("Table 2", "LLaVA-v1.5", "after the projector", "std", 45.58),
    ("Table 2", "Qwen-2.5-VL", "before the projector", "mean", 3484.24),
    ("Table 2", "GLM-4.1V", "text embedding", "mean", 0.80),
    ("Table 3", "Ovis 2.5", "visual embedding", "mean", 64.00),
    ("Table 3", "Ovis 2.5", "text embedding", "std", 0.32),
    ("Table 6", "Qwen2.5-7B vl", "text embedding", "mean", 0.8965),
    ("Table 6", "Qwen2-7B base", "text embedding", "std", 0.1610),
    ("Table 7", "Qwen2-7B vl", "<|vision_start|>", "rank 1", 2.4590),
    ("Table 7", "Qwen2-7B base", ">();\n\n", "rank 3", 0.9258),
    ("Table 8", "Qwen2.5-7B vl", " unb", "rank 4", 1.2158),
    ("Table 8", "Qwen2.5-7B base", "\u00e1veis", "rank 1", 1.1201),
]


@pytest.mark.parametrize("number", BY_HAND, ids=str)
def test_numbers_are_as_printed(number: tuple[object, ...]) -> None:
    assert number in [known[:5] for known in published_numbers()]


def test_none_is_left_out_and_none_is_empty() -> None:
    by_table = [number.source for number in published_numbers()]
    counts = {source: by_table.count(source) for source in by_table}
    # Four encoders with deviation and width, three tables without; four models with five numbers;
    # four numbers; four models with two; two models with ten tokens each, twice.
    assert counts == {
        "Table 1": 4 * 3 + 3 * 2,
        "Table 2": 4 * 5,
        "Table 3": 4,
        "Table 6": 4 * 2,
        "Table 7": 20,
        "Table 8": 20,
    }
    assert all(number.value > 0 for number in published_numbers())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llava-hf/llava-1.5-7b-hf", "LLaVA-v1.5"),
        ("LLAVA-HF/Llava-1.5-7B-HF", "LLaVA-v1.5"),
        ("liuhaotian/llava-v1.5-7b", "LLaVA-v1.5"),
        ("llava-1.5-7b-hf", "LLaVA-v1.5"),  # the folder of a local copy
        ("THUDM/GLM-4.1V-9B-Thinking", "GLM-4.1V"),
        ("Qwen/Qwen3-8B", "Qwen3-8B-Instruct"),
    ],
)
def test_a_model_is_known_by_its_ids(model: str, name: str) -> None:
    assert names_of(model) == {name}


@pytest.mark.parametrize(
    "model", ["specimen", "me/llava-1.5-7b-hf", "llava-hf/llava-1.5-13b-hf", ""]
)
def test_other_models_are_not_the_papers(model: str) -> None:
    assert names_of(model) == set()


def test_every_number_belongs_to_a_model_with_an_id() -> None:
    ids = ["openai/clip-vit-large-patch14", "google/siglip-so400m-patch14-384"]
    ids += ["google/siglip2-so400m-patch14-384", "moonshotai/MoonViT-SO-400M", "Qwen/Qwen3-8B"]
    ids += ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.2-3B-Instruct"]
    ids += ["llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2.5-VL-7B-Instruct", "AIDC-AI/Ovis2.5-9B"]
    ids += ["moonshotai/Kimi-VL-A3B-Instruct", "zai-org/GLM-4.1V-9B-Thinking"]
    ids += ["Qwen/Qwen2-7B-Instruct", "Qwen/Qwen2-VL-7B-Instruct"]
    known = set().union(*map(names_of, ids))
    assert {number.name for number in published_numbers()} == known
    assert [model for model in ids if needs_remote_code(model)] == [
        "moonshotai/MoonViT-SO-400M",
        "AIDC-AI/Ovis2.5-9B",
        "moonshotai/Kimi-VL-A3B-Instruct",
    ]


def test_every_note_is_on_a_number() -> None:
    notes = [note for number in published_numbers() if (note := note_on(number))]
    written = (files("normprobe.paper") / "notes.csv").read_text().splitlines()[1:]
    described = sum(map(is_description, published_numbers()))
    assert described == 3
    assert len(notes) == len(written) + described


def test_the_tokens_that_are_ranked_of_a_model() -> None:
    tokens = tokens_of_paper("Qwen/Qwen2.5-7B-Instruct")
    assert {"áveis", " out", "s"} <= tokens
    assert len(tokens) == 10 - 1  # one is a description
    assert tokens_of_paper("specimen") == tokens_of_paper("llava-hf/llava-1.5-7b-hf") == frozenset()


def test_ranks_from_below_are_no_ranks() -> None:
    store = RunStore({"command": "embeddings"})
    rows = [("text", "top", "a"), ("text", "bottom", "b"), ("text", "named", "c")]
    table = pd.DataFrame([*rows, ("visual", "top", "d")], columns=["table", "end", "token"])
    store.write_table("tokens", table.assign(rank=[1, 1, 9, 1]))
    assert ranked_tokens(store)["token"].tolist() == ["a", "c"]
