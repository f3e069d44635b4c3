"""``normprobe check``: what a release gate prints, writes and ends with."""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
import yaml
from cli.conftest import assert_two_lines
from safetensors.torch import load_file, save_file
from support.commands import invoke
from support.documents import ROOT
from support.kept_folder import keep, restore
from typer.testing import Result

from normprobe import Probe
from normprobe.data.data_set import open_data
from normprobe.hooks import attached, on_output
from normprobe.inputs.on_device import inputs_for
from normprobe.model.load.required_tensors import everything
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a port of it without a scale, and a baseline."""
    folder = tmp_path_factory.mktemp("once") / "here"
    folder.mkdir()
    for name in ("model", "port"):
        shutil.copytree(SPECIMEN_DIR, folder / name)
    (weights,) = (folder / "port").glob("*.safetensors")
    tensors = load_file(weights)
    for name in ("weight", "bias"):
        (last,) = (key for key in tensors if key.endswith(f"projector.linear_2.{name}"))
        tensors[last] = tensors[last] / 128**0.5
    save_file(tensors, weights, {"format": "pt"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = invoke("check", "./model", "-n", "3", "--dtype", "float32", "--write", "b.json")
        assert made.exit_code == 0, made.output
        assert made.stdout == "b.json\n"
    return keep(folder)


@pytest.fixture
def here(once: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(restore(once))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return once


def check(*words: object) -> Result:
    return invoke("check", *words)


def test_the_same_model_is_the_same(here: Path) -> None:
    """In the dtype of the baseline, not in that of the checkpoint, which sees less."""
    done = check("./model", "--against", "b.json", "--junit", "out/c.xml")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "All 20 states of 3 samples are the same within 0.0001" in told
    assert "of their length (float32);" in told
    coarse = check("./model", "--against", "b.json", "--dtype", "bfloat16")
    assert coarse.exit_code == 0, coarse.output
    assert "within 0.1 of their length (bfloat16 against float32)" in " ".join(
        coarse.stdout.split()
    )
    assert xml.parse(here / "out/c.xml").getroot().get("failures") == "0"


def test_a_port_is_told_where_it_differs_and_why(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    (here / "summary.md").write_text("Of a step before.\n\n")
    done = check("./port", "--dtype", "float32", "--against", "b.json", "--format", "json")
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert told["verdict"] == "not the same"
    assert "costs" not in told
    assert "from projector output on" in told["sentence"]
    assert "1 / the square root of a hidden size, 128" in told["sentence"]
    first = next(row for row in told["table"] if row["differs"])
    assert (first["stage"], first["group"]) == ("projector_output", "visual")
    assert first["norm_ratio"] == pytest.approx(128**-0.5, rel=1e-3)
    summary = (here / "summary.md").read_text()
    before, found = summary.split("\n\n", 1)
    assert before == "Of a step before."
    assert found.startswith("**normprobe check: not the same.** Not the same from projector")
    assert "| projector output | visual |" in summary


def test_a_tolerance_that_is_asked_for_holds_beside_a_baseline(here: Path) -> None:
    loose = check("./port", "--dtype", "float32", "--against", "b.json", "--tolerance", "100")
    assert loose.exit_code == 0, loose.output
    assert "within 100" in " ".join(loose.stdout.split())


def test_other_pictures_are_no_evidence(here: Path) -> None:
    told = json.loads((here / "b.json").read_text())
    first = next(iter(told["samples"].values()))
    first["picture"] = "0" * 64
    (here / "b.json").write_text(json.dumps(told))
    done = check("./model", "--against", "b.json")
    assert done.exit_code == 3, done.output
    assert "Not enough evidence: the picture of" in done.stdout


def test_against_another_model_it_names_the_first_module(here: Path) -> None:
    done = check("./port", "--against", "./model", "-n", "2", "--dtype", "float32")
    assert done.exit_code == 1, done.output
    told = " ".join(done.stdout.split())
    assert "multi_modal_projector.linear_2 (Linear) is the first that returns" in told
    assert "of its length: its weight differs." in told


def test_another_model_is_the_baseline_in_its_own_dtype(here: Path) -> None:
    """A checkpoint of bfloat16 against one of float32: in float32, which sees more."""
    config = json.loads((here / "model/config.json").read_text())
    assert check("./model", "--against", "./model", "-n", "1").stdout.count("bfloat16") == 1
    wide = json.dumps(config | {"dtype": "float32", "torch_dtype": "float32"})
    (here / "port/config.json").write_text(wide)
    (weights,) = (here / "port").glob("*.safetensors")
    ours = load_file(next((here / "model").glob("*.safetensors")))
    save_file({name: each.float() for name, each in ours.items()}, weights, {"format": "pt"})
    done = check("./model", "--against", "./port", "-n", "1")
    assert done.exit_code == 0, done.output
    assert "within 0.0001 of their length (float32)" in " ".join(done.stdout.split())


def test_a_baseline_is_measured_as_it_was_or_is_no_evidence(here: Path) -> None:
    """Its attention and its system prompt; others are asked for by option."""
    words = ("-n", "1", "--dtype", "float32")
    asked = ("--attn-implementation", "eager", "--system", "You are nice.")
    assert check("./model", *words, *asked, "--write", "e.json").exit_code == 0
    told = json.loads((here / "e.json").read_text())
    assert (told["attention"], told["system"]) == ("eager", "You are nice.")
    done = check("./model", "--against", "e.json", "--tolerance", "1e-7")
    assert done.exit_code == 0, done.output
    (here / "f.json").write_text(json.dumps(told | {"attention": "flash_attention_2"}))
    done = check("./model", "--against", "f.json")
    assert done.exit_code == 3, done.output
    reason = "the baseline was measured with the attention flash_attention_2, and here there is"
    assert reason in " ".join(done.stdout.split())
    done = check("./model", "--against", "f.json", "--attn-implementation", "sdpa")
    assert done.exit_code == 0, done.output
    earlier = {name: told[name] for name in told if name not in ("attention", "template")}
    (here / "g.json").write_text(json.dumps(earlier))
    assert check("./model", "--against", "g.json").exit_code == 0


def test_another_chat_template_is_named(here: Path) -> None:
    shutil.copytree(here / "model", here / "other")
    file = here / "other/chat_template.jinja"
    file.write_text(file.read_text() + "x")
    done = check("./other", "--against", "b.json")
    assert done.exit_code == 1, done.output
    assert "The chat template is another one." in " ".join(done.stdout.split())


def test_files_that_cannot_be_written_are_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (here / "b.json").read_bytes()
    done = check("./model", "--against", "b.json", "--junit", "./b.json")
    assert done.exit_code == 2
    assert (here / "b.json").read_bytes() == before
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "model")
    done = check("./model", "--dtype", "float32", "--against", "b.json")
    assert_two_lines(done, "cannot write in", "")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    done = check("./model", "-n", "1", "--write", "a\udcff.json")
    assert (done.exit_code, done.stdout) == (0, "a\\udcff.json\n")


def test_both_models_are_asked_alike(here: Path) -> None:
    words = ("--against", "./model", "-n", "1", "--dtype", "float32")
    done = check("./model", *words, "--system", "You are nice.")
    assert done.exit_code == 0, done.output


def test_a_model_beside_another_is_loaded_and_asked_like_it() -> None:
    asked: dict[str, Any] = {
        **{"system": "none", "attn_implementation": "eager", "named": {"kind": "vision-language"}},
        **{"dtype": "float32", "device": "cpu", "allow_long_prompts": True, "inputs": None},
    }
    probe = Probe("specimen", **asked)
    told = vars(probe.beside("specimen").source.loading)
    assert told == told | asked


def test_against_itself_in_another_type_it_says_what_that_costs(here: Path) -> None:
    done = check("./model", "--dtype", "float16", "--against-dtype", "float32", "-n", "2")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "the same within 0.02 of their length (float16 against float32)" in told
    assert "nats of KL in the next token" in told
    assert "a token of right answers" in told


def test_rounded_inputs_are_measured_and_with_a_tolerance_checked(here: Path) -> None:
    words = ("./model", "--dtype", "float32", "--fake-quant", "int8-token", "-n", "2")
    done = check(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["verdict"] == "measured"
    assert {row["rounded"] for row in told["costs"]} == {"all", "visual", "other"}
    assert next(row["stage"] for row in told["table"] if row["input_sqnr"]) == "layer 1"
    assert "42 linear layers of the decoder (100% of its weights)" in told["sentence"]
    done = check(*words, "--tolerance", "0.0001", "--junit", "c.xml")
    assert done.exit_code == 1, done.output
    assert "input_sqnr" in done.stdout
    assert int(xml.parse(here / "c.xml").getroot().get("failures", "0")) > 0


def test_an_error_is_no_failure_of_the_test_report(here: Path) -> None:
    done = check("./model", "--against", "none.json", "--junit", "c.xml")
    assert_two_lines(done, "none.json cannot be read")
    report = xml.parse(here / "c.xml").getroot()
    assert (report.get("errors"), report.get("failures")) == ("1", "0")
    (error,) = report.iter("error")
    assert "none.json cannot be read" in error.get("message", "")


def saved(folder: Path, layout: str, damage: Callable[[dict[str, Any]], Any] = dict) -> Path:
    """The states of the specimen as another engine saves them."""
    folder.mkdir()
    probe = Probe("./model", dtype="float32")
    model = probe.source.measured([everything]).model
    for sample in open_data("sample", limit=2):
        inputs = inputs_for(model, probe.source.builder.build([sample]))
        with torch.no_grad():
            told = model(**inputs, output_hidden_states=True).hidden_states
        last: list[Any] = []  # transformers returns the last one behind the final norm
        layer = model.model.language_model.layers[-1]
        with attached(on_output(layer, last.append)), torch.no_grad():
            model(**inputs)
        states = torch.cat([*told[:-1], last[0]]).float()  # [layers, tokens, hidden]
        ids = inputs["input_ids"][0]
        held: dict[str, Any] = {"input_ids": ids, "hidden_states": states}
        if layout == "vllm":
            held = {"token_ids": ids, "hidden_states": states.transpose(0, 1).contiguous()}
        elif layout == "modules":
            named = {f"model.layers.{n}.output": state for n, state in enumerate(states[1:])}
            held = {"input_ids": ids, **named}
        held = {name: each.clone() for name, each in damage(held).items()}
        name = folder / quote(sample.id, "")
        if layout == "npz":
            np.savez(name.with_name(f"{name.name}.npz"), **{n: e.numpy() for n, e in held.items()})
        else:
            save_file(held, f"{name}.safetensors")
    return folder


def without_input(held: dict[str, Any]) -> dict[str, Any]:
    return held | {"hidden_states": held["hidden_states"][1:]}


def in_any_order(held: dict[str, Any]) -> dict[str, Any]:
    order = torch.tensor([4, 0, 6, 2, 1, 5, 3])
    return held | {"hidden_states": held["hidden_states"][order], "layer_ids": order}


@pytest.mark.parametrize(
    ("layout", "change", "count"),
    [
        ("layers", without_input, 12),
        ("vllm", dict, 14),
        ("modules", dict, 12),
        ("npz", in_any_order, 14),
    ],
    ids=["layers", "vllm", "modules", "npz"],
)
def test_states_of_another_engine_are_those_of_the_model(
    layout: str, change: Callable[[dict[str, Any]], Any], count: int, here: Path
) -> None:
    folder = saved(here / "states", layout, change)
    done = check("./model", "--states", folder, "-n", "2", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert f"All {count} states of 2 samples are the same" in told


def some_layers(held: dict[str, Any]) -> dict[str, Any]:
    """Three of them, in another order."""
    some = torch.tensor([6, 2, 3])
    return held | {"hidden_states": held["hidden_states"][some], "layer_ids": some}


def by_names_of_llama_cpp(held: dict[str, Any]) -> dict[str, Any]:
    """Two of them, each a tensor."""
    states = held.pop("hidden_states")
    named = {f"l_out-{n - 1}": states[n].clone() for n in (1, 4)}
    return held | named | {"layer_ids": torch.tensor([1, 4])}


@pytest.mark.parametrize(("change", "layers"), [(some_layers, 3), (by_names_of_llama_cpp, 2)])
def test_some_layers_are_enough_where_they_are_named(
    change: Callable[[dict[str, Any]], Any], layers: int, here: Path
) -> None:
    folder = saved(here / "states", "layers", change)
    words = ("--states", folder, "-n", "2", "--dtype", "float32")
    done = check("./model", *words)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert f"All {2 * layers} states of 2 samples are the same" in told
    assert told.endswith(f"Of 6 layers {layers} were saved.")
    for file in folder.rglob("*.safetensors"):
        held = load_file(file)
        save_file({k: 2 * v if v.is_floating_point() else v for k, v in held.items()}, file)
    assert check("./model", *words).exit_code == 1


def exchanged(held: dict[str, Any]) -> dict[str, Any]:
    return held | {"hidden_states": held["hidden_states"][[0, 1, 3, 2, 4, 5, 6]]}


def test_exchanged_layers_of_another_engine_are_named(here: Path) -> None:
    folder = saved(here / "states", "layers", exchanged)
    done = check("./model", "--states", folder, "-n", "2", "--dtype", "float32")
    assert done.exit_code == 1, done.output
    told = " ".join(done.stdout.split())
    assert "from layer 2 on" in told
    assert "It is the state of layer 3 of the baseline" in told


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda held: {key: each for key, each in held.items() if key != name}


@pytest.mark.parametrize(
    ("layout", "damage", "problem"),
    [
        ("modules", without("model.layers.3.output"), "expected all of 6, received no layer [4]"),
        (
            "layers",
            lambda held: held | {"input_ids": held["input_ids"] + 1},
            "those that the processor of the model makes, received other ids",
        ),
    ],
)
def test_files_that_are_not_the_states_are_refused(
    layout: str, damage: Callable[[dict[str, Any]], Any], problem: str, here: Path
) -> None:
    folder = saved(here / "states", layout, damage)
    assert_two_lines(check("./model", "--states", folder, "-n", "2"), problem)


def test_a_sample_without_a_file_and_a_file_that_is_none_are_refused(here: Path) -> None:
    folder = saved(here / "states", "layers")
    first, *_ = sorted(folder.iterdir())
    first.write_bytes(b"none")
    assert_two_lines(check("./model", "--states", folder, "-n", "2"), "cannot be read")
    first.unlink()
    assert_two_lines(check("./model", "--states", folder, "-n", "2"), "holds no states of")


def test_against_another_model_and_a_run(here: Path) -> None:
    done = check("./port", "--against", "./model", "-n", "1", "--format", "csv")
    assert done.exit_code == 1, done.output
    assert "projector_output,visual" in done.stdout
    assert invoke("layers", "./model", "-n", "2", "-b", "2", "-o", "run").exit_code == 0
    assert check("./model", "--against", "run").exit_code == 0
    assert check("./port", "--against", "run").exit_code == 1


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (("--against", "b.json", "-n", "2"), "says which samples", "leave --limit out"),
        (("--against", "none.json"), "none.json cannot be read", "--write FILE makes one"),
        (("--against", "./nowhere"), "./nowhere", ""),
    ],
)
def test_what_cannot_be_compared_is_refused(
    words: tuple[str, ...], problem: str, remedy: str, here: Path
) -> None:
    assert_two_lines(check("./model", *words), problem, remedy)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "expected --write FILE, --against,"),
        (("--write", "a", "--against", "b"), "cannot go with --against"),
        (("--write", "a", "--tolerance", "1"), "changes nothing without --against"),
        (("--fake-quant", "int4"), "is not one of 'int8-tensor'"),
        (("--fake-quant", "int8-token", "--against-dtype", "float16"), "cannot go with"),
    ],
)
def test_usage(words: tuple[str, ...], problem: str, here: Path) -> None:
    done = check("./model", *words)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.replace("│", " ").split())


#: Options of the action, and the words that the command gets.
OPTIONS = {
    "--dtype float32\n  --tolerance\t0.01\n\n-n 2": [
        "--dtype",
        "float32",
        "--tolerance",
        "0.01",
        "-n",
        "2",
    ],
    "--prompt \"What is it's colour?\" \\\n  --system 'a  $(b) `c` #d'": [
        *("--prompt", "What is it's colour?", "--system", "a  $(b) `c` #d"),
    ],
    "": [],
}


@pytest.mark.parametrize("options", OPTIONS)
def test_the_options_of_the_action_are_words_of_the_command(options: str, tmp_path: Path) -> None:
    """What a sample is called commands no runner: between the two lines of a word nothing does."""
    done = run_action(options, tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    first, *received, last = done.stdout.splitlines()
    words = ["check", "a model", "--against", "b.json", "--junit", "c.xml", *OPTIONS[options]]
    assert received == words
    assert first == f"::stop-commands::{last.strip(':')}"


def test_options_of_the_action_that_are_not_closed_are_an_error(tmp_path: Path) -> None:
    done = run_action("--prompt 'a", tmp_path)
    assert done.returncode == 1
    told = "error: options: No closing quotation: --prompt 'a\n       close the quotation\n"
    assert done.stderr == told


def run_action(options: str, folder: Path) -> Any:
    """The last step of the action, with a program that prints what it was called with."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    program = folder / "normprobe"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n')
    program.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    words = {"MODEL": "a model", "AGAINST": "b.json", "JUNIT": "c.xml", "PATH": f"{folder}:/bin"}
    return subprocess.run(
        [
            *("/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"),
            action["runs"]["steps"][-1]["run"],
        ],
        env=words | {"OPTIONS": options},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("gpu", "there", "from_index"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_the_action_takes_torch_for_cpus_where_there_is_no_gpu(
    gpu: bool, there: bool, from_index: bool, tmp_path: Path
) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    programs = {"pip": f'[ "$1" = show ] && exit {int(not there)}\necho "pip $*"'}
    programs |= {"uname": "echo Linux", **({"nvidia-smi": "true"} if gpu else {})}
    for name, lines in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-eo", "pipefail", "-c", action["runs"]["steps"][-2]["run"]],
        env={"PATH": f"{tmp_path}", "GITHUB_ACTION_PATH": "/here"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, *more = done.stdout.splitlines()
    assert ("--index-url https://download.pytorch.org/whl/cpu" in first) == from_index
    assert [first, *more][-1] == "pip install /here"


def test_the_action_and_the_hook_run_the_command() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    script = action["runs"]["steps"][-1]["run"]
    assert '"normprobe", "check"' in script
    assert "${{" not in script  # inputs are no code
    assert (hook["entry"], hook["language"]) == ("normprobe check", "system")
    assert hook["pass_filenames"] is False


def test_a_tolerance_that_lets_all_pass_is_refused_at_once(run: Run, tmp_path: Path) -> None:
    result = run("check", "specimen", "--against", tmp_path, "--tolerance", "inf")
    assert result.exit_code == 1
    assert "--tolerance: expected a finite number from 0 on, received inf" in result.stderr
