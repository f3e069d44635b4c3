"""What takes the place of the names in the paper's commands."""

from pathlib import Path

import pytest

from normprobe import NormprobeError
from normprobe.extensions.paper.artefacts import Changes, artefacts, substitutes

LLAVA, QWEN, KIMI, GLM = artefacts()["table2"].models


def test_a_star_is_every_hub_id_that_nothing_else_takes_the_place_of() -> None:
    wanted = list(artefacts().values())
    taken = substitutes(["*=specimen", f"{KIMI}=./kimi", "ALIGNED=./norm"], wanted, "all")
    assert (taken[KIMI], taken["ALIGNED"], taken[LLAVA]) == ("./kimi", "./norm", "specimen")
    assert taken["Qwen/Qwen2-7B-Instruct"] == "specimen"  # a base alone
    assert "BASELINE" not in taken
    assert set(substitutes(["*=x"], [artefacts()["table2"]], "table2")) == {LLAVA, QWEN, KIMI, GLM}


def test_of_several_artefacts_any_name_may_be_given_and_none_must() -> None:
    both = [artefacts()["table2"], artefacts()["figure4"]]
    assert substitutes([f"{LLAVA}=x", "BASELINE=y"], both, "all") == {LLAVA: "x", "BASELINE": "y"}
    with pytest.raises(NormprobeError, match="expected NAME=VALUE with a NAME of all"):
        substitutes(["EARLY=x"], both, "all")
    with pytest.raises(NormprobeError, match="needs what the paper did not publish: ALIGNED"):
        substitutes(["BASELINE=y"], both[1:], "figure4")


def test_a_limit_goes_with_the_data_that_is_listed_and_with_no_command_that_takes_none() -> None:
    changes = Changes({}, None, 5, trust_remote_code=True)
    for name, added in (("table2", ["--limit", "5"]), ("table3", [])):
        words = next(artefacts()[name].commands(Path("out"))).words
        assert changes.apply(words) == [*words, *added]


def test_commands_of_all_artefacts_write_into_one_folder() -> None:
    folders = [c.folder for a in artefacts().values() for c in a.commands(Path("out"))]
    assert all(folder.parts[0] == "out" and len(folder.parts) == 3 for folder in folders)
