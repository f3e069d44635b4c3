"""The panels of the paper's figures, and which run has a place in which."""

import pytest

from normprobe.extensions.paper.artefacts import artefacts
from normprobe.extensions.paper.figures import figure_layouts
from normprobe.paper.tables import layouts

LLAVA, KIMI = "llava-hf/llava-1.5-7b-hf", "moonshotai/Kimi-VL-A3B-Instruct"


def test_every_artefact_is_a_table_or_a_figure() -> None:
    assert [*layouts(), *figure_layouts()] == list(artefacts())


@pytest.mark.parametrize("name", figure_layouts())
def test_a_panel_shows_runs_of_the_commands(name: str) -> None:
    layout, artefact = figure_layouts()[name], artefacts()[name]
    assert set(layout.names) <= set(artefact.models)
    assert not layout.names or layout.without_run(artefact.models) == []
    assert {step["command"].split()[0] for step in artefact.steps} == {layout.command}


def test_the_panels_are_the_papers() -> None:
    titles = {name: [p.title for p in layout.panels] for name, layout in figure_layouts().items()}
    assert titles["figure3"] == ["(a) LLaVA-1.5", "(b) Qwen-2.5-VL", "(c) GLM4.1-V", "(d) Kimi-VL"]
    assert [title[:3] for title in titles["figure4"] + titles["figure5"]] == ["(a)", "(b)"] * 2
    metrics = {name: [p.metric for p in layout.panels] for name, layout in figure_layouts().items()}
    assert metrics == {
        "figure1b": ["norm"],
        "figure2": ["cosine"],
        "figure3": ["cosine"] * 4,
        "figure4": ["norm", "cosine"],
        "figure5": ["cosine"] * 2,
        "appendix-g": [""],
    }


@pytest.mark.parametrize(
    ("figure", "record", "name"),
    [
        ("figure3", {"model": LLAVA}, LLAVA),
        ("figure3", {"model": "/somewhere/Kimi-VL-A3B-Instruct"}, None),
        ("figure3", {"model": "Kimi-VL-A3B-Instruct"}, KIMI),
        ("figure3", {"model": "org/other"}, None),
        ("figure1b", {"model": "org/other"}, ""),
        ("figure4", {"model": "org/other"}, "BASELINE"),
        ("figure4", {"model": "org/other", "alignment": {"after": "p"}}, "ALIGNED"),
        ("figure5", {"model": "org/other"}, "BASELINE-EARLY"),
        ("figure5", {"alignment": {"after": "p"}}, "ALIGNED-EARLY"),
    ],
)
def test_a_run_says_of_what_it_is(figure: str, record: dict[str, object], name: str | None) -> None:
    assert figure_layouts()[figure].name_of(record) == name


def test_what_no_run_is_of_is_named() -> None:
    assert figure_layouts()["figure3"].without_run([KIMI, LLAVA]) == [
        "(b) Qwen-2.5-VL",
        "(c) GLM4.1-V",
    ]
    assert figure_layouts()["figure4"].without_run(["ALIGNED"]) == ["baseline"]
    assert figure_layouts()["figure5"].without_run(["ALIGNED-LATE"]) == [
        "(a) without norm alignment"
    ]
    assert figure_layouts()["figure1b"].without_run([""]) == []
