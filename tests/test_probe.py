"""``Probe``: the numbers of the functions and of the command line, loading when it is needed."""

import json
import random
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.commands import invoke
from support.flat import flat
from support.hooks import hooks_of
from support.plain_modules import Plain, made
from support.processors import make_checkpoint, make_processor
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from transformers import PreTrainedModel

from normprobe import NormprobeError, Probe, align_norms, probe_interface, probe_layers
from normprobe.model.align.norm import inserted_norm
from normprobe.runs import model_source
from normprobe.runs.files import csv_bytes
from normprobe.schema import DECODER_INPUT, VISUAL
from normprobe.specimen import SPECIMEN_DIR
from normprobe.tidy import BAND, ends_of, select

pytestmark = pytest.mark.usefixtures("unrendered")

TYPES = ("llava", "llava_next", "qwen2_5_vl", "mllama", "gemma3")

every_batch = pytest.mark.parametrize("batch_size", [1, 4])
every_type = pytest.mark.parametrize("model_type", TYPES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llava", tmp_path_factory.mktemp("checkpoints") / "llava")


class Calls(list[Any]):
    """What a function returned, call by call."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``calls("load_model")``: the calls of a function that loading a model takes."""

    def watch(name: str) -> Calls:
        seen, original = Calls(), getattr(model_source, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            seen.append(original(*arguments, **options))
            return seen[-1]

        monkeypatch.setattr(model_source, name, watched)
        return seen

    return watch


def in_memory(model_type: str = "llava") -> Probe:
    return Probe(tiny_model(model_type), make_processor(model_type))


def columns_of(table: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """Those of ``probe_layers``, which tells no intervals."""
    others = set(table) - set(expected)
    assert others <= {
        end for name in ("mean", "sample_mean", "geometric_mean") for end in ends_of(name)
    } | {*BAND}
    return table[expected.columns]


# --- a model in memory ----------------------------------------------------------------------------


@every_batch
@every_type
def test_layers_of_inputs_are_those_of_probe_layers(model_type: str, batch_size: int) -> None:
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, batch_size)
    expected = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS)
    run = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs)
    pd.testing.assert_frame_equal(columns_of(run.table, expected), expected)
    assert run.samples["sample_id"].nunique() == batch_size
    assert run.path is None


@every_batch
@every_type
def test_interface_of_inputs_is_that_of_probe_interface(model_type: str, batch_size: int) -> None:
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, batch_size)
    expected = probe_interface(model, inputs, special_token_ids=SPECIAL_IDS)
    run = Probe(model, special_token_ids=SPECIAL_IDS).interface(inputs)
    pd.testing.assert_frame_equal(columns_of(run.table, expected), expected)
    assert "One sample" not in str(run.verdict)  # a batch counts as one row, whatever it holds
    assert run.record["warnings"] == ["1 batch: no intervals, and nothing is said of others"]


def test_several_measurements_find_the_parts_once(calls: Any) -> None:
    found = calls("find_or_trace")
    probe = in_memory()
    inputs = tiny_inputs(tiny_model("llava"))
    for _ in range(2):
        probe.layers(inputs)
        probe.interface("sample", limit=1)
    probe.embeddings()
    assert len(found) == 1


class Casting(Plain):
    """As Osprey: its forward casts its weights, for good."""

    def forward(self, tokens: torch.Tensor, image: torch.Tensor, **_: Any) -> torch.Tensor:
        self.double()
        return super().forward(tokens, image.double())


@pytest.mark.parametrize("kind", [Plain, Casting])
def test_a_forward_that_casts_its_weights_is_in_doubt(kind: type[Plain]) -> None:
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2]])
    inputs = {"tokens": ids, "image": torch.randn(1, 3, 8, 8)}
    record = Probe(made(kind)).layers(inputs).record
    told = "the model's own forward casts its weights from float32 to float64"
    own = made(Plain)
    again = Probe(own)
    again.layers(inputs)
    own.double()  # by its owner, between two runs
    assert not again.layers({**inputs, "image": inputs["image"].double()}).record.get("doubts")
    casts = kind is Casting
    assert (told in record.get("doubts", [])) == casts
    assert record["dtype"] == ("float64" if casts else "float32")


def test_the_inputs_stay_as_they_are() -> None:
    model = tiny_model("mllama")
    inputs = tiny_inputs(model, 2)
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    Probe(model).layers(inputs)
    assert list(inputs) == list(given)
    assert all(torch.equal(inputs[name], given[name]) for name in given)


def test_parts_named_by_hand() -> None:
    named = {"projector": "model.multi_modal_projector.linear_1"}
    model = tiny_model("llava")
    run = Probe(model, named=named).interface(tiny_inputs(model))
    assert run.record["parts"]["projector"] == named["projector"]
    assert run.record["parts_found_by"] == "by hand"


def test_the_embedding_table_needs_no_processor() -> None:
    model = tiny_model("llava")
    bare, known = Probe(model).embeddings(), Probe(model, make_processor("llava")).embeddings()
    numbers = [run.wide("norm").loc["text", "all_rows"] for run in (bare, known)]
    assert numbers[0] == numbers[1] > 0
    assert bare.tables["tokens"]["token"].eq("").all()
    assert known.tables["tokens"]["token"].ne("").any()


def test_attention_to_a_sample_s_image() -> None:
    from normprobe.data.data_set import open_data

    sample = next(iter(open_data("sample", limit=1)))
    run = in_memory().attention(sample)
    assert select(run.table, "share")["layer"].tolist() == [1, 2, 3]
    assert run.record["image_hashes"] == {sample.id: sample.image_hash}
    assert run.samples.empty


# --- a checkpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["layers", "interface", "embeddings"])
def test_a_run_in_memory_is_that_of_the_command_line(
    command: str, checkpoint: Path, tmp_path: Path
) -> None:
    sampled = command != "embeddings"
    result = invoke(command, checkpoint, *(["-n", 3] if sampled else []), "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    probe = Probe(str(checkpoint))
    run = probe.measure(command, "sample", limit=3) if sampled else probe.embeddings()
    written = {file.stem: file.read_bytes() for file in (tmp_path / "out").glob("*.csv")}
    assert command in written
    assert {name: csv_bytes(table) for name, table in run.tables.items()} == written
    record = json.loads((tmp_path / "out/run.json").read_text())
    same = ("model", "model_type", "parts", "sample_ids", "image_hashes", "weights", "family")
    for name in same:
        assert run.record.get(name) == record.get(name), name


def test_output_is_the_folder_of_the_command_line(checkpoint: Path, tmp_path: Path) -> None:
    run = Probe(checkpoint).layers("sample", limit=2, output=tmp_path / "out")
    assert run.path == tmp_path / "out"
    names = {str(file.relative_to(tmp_path / "out")) for file in run.path.rglob("*.*")}
    assert {"layers.csv", "theory.csv", "run.json", "plots/layers.png"} <= names
    assert "samples/part-00000.parquet" in names


def is_loaded(probe: Probe) -> bool:
    assert probe.parts.decoder_layers is not None
    return not any(weight.is_meta for weight in probe.parts.decoder_layers.module.parameters())


def test_what_a_measurement_does_not_read_is_loaded_when_another_does(
    checkpoint: Path, calls: Any
) -> None:
    loads = calls("load_model")
    probe = Probe(str(checkpoint))
    assert not loads  # the config is enough to begin with
    probe.embeddings()
    assert not is_loaded(probe)
    first = probe.layers("sample", limit=1)
    assert is_loaded(probe)
    probe.embeddings()
    probe.interface("sample", limit=1)
    again = probe.layers("sample", limit=1)
    assert len(loads) == 2
    pd.testing.assert_frame_equal(again.table, first.table)
    weights = first.record["weights"]
    assert 0 < weights["bytes"] < sum(file.stat().st_size for file in checkpoint.glob("*.safe*"))


def test_load_reads_everything_at_once(checkpoint: Path, calls: Any) -> None:
    loads = calls("load_model")
    probe = Probe(str(checkpoint))
    assert probe.load() is probe
    (model,) = loads
    assert not any(weight.is_meta for weight in model.parameters())
    probe.layers("sample", limit=1, verify=True)
    probe.embeddings()
    assert len(loads) == 1


def test_load_reads_what_some_measurements_need(checkpoint: Path, calls: Any) -> None:
    loads = calls("load_model")
    probe = Probe(str(checkpoint)).load("embeddings", "interface")
    assert not is_loaded(probe)
    probe.interface("sample", limit=1)
    assert len(loads) == 1


def test_the_parts_are_found_once_a_load(checkpoint: Path, calls: Any) -> None:
    found = calls("find_or_trace")
    probe = Probe(str(checkpoint)).load()
    for _ in range(2):
        probe.layers("sample", limit=1)
        probe.interface("sample", limit=1)
    assert len(found) == 1


def test_embeddings_beside_a_base(checkpoint: Path) -> None:
    run = Probe(str(checkpoint)).embeddings(base=str(checkpoint))
    shift = run.tables["shift"]
    assert shift["distance"].eq(0).all()
    assert run.record["base"] == run.record["model"]


# --- alignment ------------------------------------------------------------------------------------


def everything_about(model: PreTrainedModel) -> dict[str, Any]:
    """What must be as it was: weights, hooks, modes, and the config."""
    return {
        "weights": {name: weight.clone() for name, weight in model.state_dict().items()},
        "parameters": {name: id(weight) for name, weight in model.named_parameters()},
        "learning": {name: weight.requires_grad for name, weight in model.named_parameters()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": len(hooks_of(model)),
        "config": model.config.to_dict(),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    weights, before = found.pop("weights"), expected.pop("weights")
    assert list(weights) == list(before)
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert found == expected


@pytest.mark.parametrize("carries_a_norm", [False, True])
@pytest.mark.parametrize("given", ["inputs", "samples"])
def test_alignment_leaves_the_model_as_it_was(given: str, carries_a_norm: bool) -> None:
    model = tiny_model("llava")
    if carries_a_norm:
        norm = align_norms(model, 7.0, compensate=False)
        norm.weight.data += torch.linspace(0, 1, len(norm.weight))  # trained
        norm.bias.requires_grad_(False)
    data = {"data": tiny_inputs(model, 2)} if given == "inputs" else {"limit": 2}
    probe = Probe(model, make_processor("llava"))
    plain = probe.layers(**data)  # transformers adds hooks of its own in the first forward
    before, layer = everything_about(model), inserted_norm(model)
    aligned = probe.layers(**data, align="table")
    assert_same(everything_about(model), before)
    assert inserted_norm(model) is layer
    norms = [flat(run.table).set_index(["layer", "group"])["norm_mean"] for run in (plain, aligned)]
    assert norms[0][0, VISUAL] != pytest.approx(norms[1][0, VISUAL], rel=0.02)
    record = aligned.record["alignment"]
    assert norms[1][0, VISUAL] == pytest.approx(record["target_norm"], rel=0.01)
    assert record["target"] == "table"
    again = probe.layers(**data)
    pd.testing.assert_frame_equal(again.table, plain.table)


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model = tiny_model("llava")
    align_norms(model, 7.0)
    inputs = tiny_inputs(model)
    Probe(model).layers(inputs)
    before = everything_about(model)
    with pytest.raises(NormprobeError, match="unknown alignment target 'loud'"):
        Probe(model).layers(inputs, align="loud")
    with pytest.raises(NormprobeError, match="fails on these inputs"):
        Probe(model).layers({**inputs, "position_ids": torch.zeros(7, 7)}, align=3.0)
    assert_same(everything_about(model), before)


@pytest.mark.parametrize("target", ["prompt", 3.0, "3"])
def test_other_targets(target: str | float) -> None:
    run = in_memory().interface("sample", limit=1, align=target)
    found = run.wide("norm").loc[DECODER_INPUT, VISUAL]
    assert found == pytest.approx(run.record["alignment"]["target_norm"], rel=0.01)
    if target != "prompt":
        assert found == pytest.approx(3.0, rel=0.01)


def test_align_tells_what_it_would_do_and_changes_nothing() -> None:
    model = tiny_model("llava")
    run = Probe(model, make_processor("llava")).align(limit=1)
    assert inserted_norm(model) is None
    assert run.table["target_norm"].item() == run.record["alignment"]["target_norm"]


# --- what is refused ------------------------------------------------------------------------------


def test_samples_need_a_processor(tmp_path: Path) -> None:
    probe = Probe(tiny_model("llava"))
    with pytest.raises(NormprobeError, match="samples need a processor"):
        probe.layers("sample", limit=1)
    with pytest.raises(NormprobeError, match="samples need a processor"):
        probe.layers("sample", limit=1, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["embeddings", "attention", "compare", "inspect", "anything"])
def test_what_is_not_measured_over_samples(name: str) -> None:
    with pytest.raises(NormprobeError, match="expected one of interface, layers"):
        in_memory().measure(name, "sample", limit=1)


def test_what_means_something_of_a_hub_alone_is_refused(tmp_path: Path) -> None:
    for model in ("specimen", tmp_path):
        with pytest.raises(NormprobeError, match=r"--revision: .* on this machine"):
            Probe(model, revision="main")


def test_an_unknown_keyword_is_a_type_error() -> None:
    probe = in_memory()
    for call in (lambda: Probe("specimen", devise="cpu"), lambda: probe.layers(bach_size=1)):
        with pytest.raises(TypeError, match=r"unexpected keyword argument '(devise|bach_size)'"):
            call()
    with pytest.raises(NormprobeError, match="embeddings is one step"):
        probe.embeddings(resume=True)


def test_help_shows_every_keyword() -> None:
    shown = signature(Probe).parameters, signature(Probe.measure).parameters
    assert {"device", "named", "system", "special_token_ids"} <= shown[0].keys()
    assert {"batch_size", "also", "map", "output", "resume"} <= shown[1].keys()
    assert "resume" not in signature(Probe.embeddings).parameters


def test_an_unknown_measurement_is_not_loaded() -> None:
    with pytest.raises(NormprobeError, match="anything"):
        in_memory().load("anything")


def test_a_run_that_goes_on_needs_its_folder() -> None:
    with pytest.raises(NormprobeError, match="only a run in a folder"):
        in_memory().layers("sample", limit=1, resume=True)


@pytest.mark.parametrize("given", ["inputs", "samples"])
def test_verify_compares_with_a_trace(given: str) -> None:
    probe = in_memory()
    data = {"data": tiny_inputs(tiny_model("llava"))} if given == "inputs" else {"limit": 1}
    verified = pd.DataFrame(probe.layers(**data, verify=True).record["verified"])
    assert verified["agree"].all()
    assert {"vision_encoder", "projector", "decoder_layers"} <= {
        name.replace(" ", "_") for name in verified["part"]
    }


def test_verify_tells_where_a_part_named_by_hand_is_another() -> None:
    model = tiny_model("llava")
    probe = Probe(model, named={"projector": "model.multi_modal_projector.linear_1"})
    run = probe.layers(tiny_inputs(model), verify=True)
    verified = pd.DataFrame(run.record["verified"]).set_index("part")
    assert not verified.loc["projector", "agree"]
    assert any("differ from a trace" in text for text in run.record["warnings"])


def test_verify_recomputes_the_numbers() -> None:
    record = in_memory().layers(limit=1, verify=True).record
    numbers = [n for n in record["recomputed"].values() if not isinstance(n, str)]
    assert max(numbers) < 1e-5
    assert {"norm", "cosine", "angle", "hidden_states", "visual_tokens"} <= set(
        record["recomputed"]
    )
    assert "doubts" not in record


def test_verify_recomputes_the_norms_of_the_interface(caplog: pytest.LogCaptureFixture) -> None:
    record = in_memory().interface(limit=1, verify=True).record
    stages = {"vision_encoder", "projector_input", "projector_output", "decoder_input"}
    assert set(record["recomputed"]) == {*stages, "rows_of_groups", "visual_tokens"}
    assert max(record["recomputed"].values()) < 1e-6
    assert "doubts" not in record
    assert "largest differences: vision encoder" in caplog.text
    assert "not recomputed" not in caplog.text


def test_verify_finds_a_projector_named_wrongly_by_one_module() -> None:
    model = tiny_model("llava")
    named = {"projector": "model.multi_modal_projector.linear_1"}
    run = Probe(model, named=named).interface(tiny_inputs(model), verify=True)
    (doubt,) = [text for text in run.record["doubts"] if "recomputed" in text]
    assert doubt.startswith("projector output: DIFFERS")
    assert run.record["recomputed"]["projector_input"] < 1e-6


def test_verify_says_what_it_does_not_recompute(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("mllama")
    record = Probe(model).interface(tiny_inputs(model), verify=True).record
    assert record["recomputed"]["projector_output"].startswith("rows that no pixel changes")
    assert caplog.text.count("not recomputed: ") == 1
    assert "doubts" not in record


def test_verify_takes_the_vision_side_of_a_dual_encoder() -> None:
    model = tiny_model("clip")
    record = Probe(model).interface(tiny_inputs(model), verify=True).record
    assert record["recomputed"]["vision_encoder"] < 1e-6
    assert "doubts" not in record


def test_a_wrong_image_token_id_is_refused() -> None:
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    other = int(inputs["input_ids"][0, -1])
    with pytest.raises(NormprobeError, match="that are taken for text"):
        Probe(model, named={"image_token_ids": (other,)}).layers(inputs)


def test_verify_doubts_buffers_that_are_not_those_of_a_fresh_build(
    checkpoint: Path, calls: Any
) -> None:
    loaded, probe = calls("load_model"), Probe(str(checkpoint))
    assert "doubts" not in probe.layers(limit=1, verify=True).record
    tables = {n: table for n, table in loaded[-1].named_buffers() if n.endswith("inv_freq")}
    name, table = next(iter(tables.items()))
    table.mul_(1.5)
    run = probe.layers(limit=1, verify=True)
    assert any(name in text for text in run.record["doubts"])


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_batch_longer_than_the_positions_is_said(batch_size: int) -> None:
    model = tiny_model("llava")
    model.config.text_config.max_position_embeddings = 5
    inputs = tiny_inputs(model, batch_size)
    lengths = inputs["attention_mask"].sum(-1)
    run = Probe(model).layers(inputs)
    (line,) = [text for text in run.record["warnings"] if "positions" in text]
    named = f"sample {int(lengths.argmax())} has {int(lengths.max())} tokens, more than the 5 "
    assert named in line


def test_a_vision_encoder_has_no_layers_to_measure() -> None:
    model = tiny_model("clip_vision_model")
    with pytest.raises(NormprobeError, match="no decoder layers"):
        Probe(model).layers(tiny_inputs(model))


def test_a_processor_in_memory_that_changed_is_told_by_a_prompt(tmp_path: Path) -> None:
    """No file tells of it: the prompts that it makes do."""
    probe = in_memory()
    probe.interface(limit=2, output=tmp_path / "run")
    probe.interface(limit=2, output=tmp_path / "run", resume=True)
    processor = make_processor("llava")
    processor.chat_template = f"{processor.chat_template} "
    other = Probe(tiny_model("llava"), processor)
    with pytest.raises(NormprobeError, match=r"the prompt of .* is not the one that .* measured"):
        other.interface(limit=2, output=tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "complete"


def test_a_model_in_memory_that_changed_is_told_by_a_tensor(tmp_path: Path) -> None:
    model = tiny_model("llava")
    probe = Probe(model, make_processor("llava"))
    assert "weight_digests" not in probe.interface(limit=1).record  # of a training, at every step
    kept = probe.interface(limit=1, output=tmp_path / "run")
    weight = model.get_submodule(kept.record["parts"]["projector"]).linear_2.weight
    before = float(weight[3, 5])
    weight.data[3, 5] = before + 1
    changed = r"(?m)multi_modal_projector.linear_2.weight was [0-9a-f]{16}, is [0-9a-f]{16}$"
    with pytest.raises(NormprobeError, match=changed):
        probe.interface(limit=1, output=tmp_path / "run", resume=True)
    weight.data[3, 5] = before
    probe.interface(limit=1, output=tmp_path / "run", resume=True)


# --- what is said of the states, the arithmetic and random numbers -----------------------------


def scaled_embeddings(scale: float) -> PreTrainedModel:
    model = tiny_model("llava")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(scale)
        model.model.multi_modal_projector.linear_2.weight.mul_(scale)
        model.model.multi_modal_projector.linear_2.bias.mul_(scale)
    return model


def test_doubts_of_a_run_in_memory_are_there_when_it_returns() -> None:
    model = tiny_model("llava")
    with torch.no_grad():
        model.model.language_model.layers[1].mlp.down_proj.weight.fill_(torch.nan)
    run = Probe(model).layers(tiny_inputs(model))
    assert [doubt for doubt in run.record["doubts"] if "none has finite numbers" in doubt]
    said = list(run.record["doubts"])
    assert "layers" in run.tables
    assert run.record["doubts"] == said


def test_zero_states_are_no_doubt_and_lose_no_other_number() -> None:
    model, sound = tiny_model("llava"), tiny_model("llava")
    inputs = tiny_inputs(model)
    word = int(inputs["input_ids"][0, -2])
    model.config.text_config.pad_token_id = None
    with torch.no_grad():
        model.get_input_embeddings().weight[word] = 0.0
    assert Probe(sound).layers(inputs).record.get("doubts") is None
    run = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs, verify=True)
    assert run.record.get("doubts") is None
    assert flat(run.table)["nonfinite"].sum() == 0
    row = run.samples.query("layer == 1 and group == 'text'").iloc[0]
    zeros = int((inputs["input_ids"][0] == word).sum())
    assert row["tokens"] - row["angle_tokens"] == zeros


def test_a_decoder_that_moves_no_token_is_in_doubt() -> None:
    """States near 1e36: their squares overflow inside RMSNorm, which then returns zeros."""
    model = scaled_embeddings(1e36)
    run = Probe(model).layers(tiny_inputs(model))
    assert run.record["doubts"] == ["no token is moved in layers 1-3: every update is exactly zero"]


def test_autocast_is_recorded_and_said(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("llava")
    with torch.autocast("cpu", torch.bfloat16):
        run = Probe(model).layers(tiny_inputs(model))
    said = "torch.autocast is on: the model, of float32, computes in bfloat16"
    assert run.record["autocast"] == "bfloat16"
    assert said in run.record["warnings"]
    assert said in caplog.text
    assert "autocast" not in Probe(model).layers(tiny_inputs(model)).record


@pytest.mark.parametrize("verify", [False, True])
def test_random_numbers_are_those_that_would_have_been_drawn(verify: bool) -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    def seeded() -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seeded()
    expected = draws()
    probe = in_memory()
    seeded()
    probe.layers("sample", limit=1, verify=verify, workers=0)
    probe.layers("sample", limit=2, workers=1)
    assert draws() == expected


def test_config_and_files_that_differ_are_said_in_the_record(tmp_path: Path) -> None:
    shutil.copytree(SPECIMEN_DIR, tmp_path / "model")
    file = tmp_path / "model/config.json"
    config = json.loads(file.read_text())
    config["text_config"]["num_hidden_layers"] -= 1
    file.write_text(json.dumps(config | {"dtype": "float32"}))
    run = Probe(tmp_path / "model").layers(limit=1)
    assert run.record["dtype"] == "bfloat16"
    warnings = " ".join(run.record["warnings"])
    assert "language_model.layers: 5 by the config, 6 in the weight files" in warnings
    assert "config.json says float32, and the weights are saved in bfloat16" in warnings
    assert set(run.record["attn_implementation"]) == {"vision_encoder", "decoder_layers"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="compiling on a CPU needs a C++ compiler")
def test_flex_attention_gives_the_norms_of_eager_attention() -> None:
    """It compiles itself, and is traced before it is measured."""
    found = [
        Probe("specimen", device="cpu", dtype="float32", attn_implementation=kernel)
        .layers(limit=2)
        .wide("norm")
        for kernel in ("flex_attention", "eager")
    ]
    torch.compiler.reset()
    numbers = [table.select_dtypes("number") for table in found]
    pd.testing.assert_frame_equal(*numbers, rtol=1e-4)


@pytest.mark.parametrize("special", [None, (), SPECIAL_IDS])
def test_a_batch_without_a_tokenizer_says_that_special_tokens_are_text(special: Any) -> None:
    """nanoVLM in memory: marks of a turn counted as text, without a word."""
    model = tiny_model("llava")
    run = Probe(model, special_token_ids=special).layers(tiny_inputs(model))
    told = " ".join(run.record["warnings"])
    assert ("no tokenizer is known: special tokens" in told) == (special is None)
