"""``normprobe align``, ``--align``, and adapters as MODEL."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cli.conftest import assert_two_lines
from PIL import Image
from safetensors.torch import load_file, save_file
from support.flat import flat
from support.processors import make_processor
from support.tiny_models import tiny_model
from typer.testing import Result

from experiments.specimen.evaluate import load
from normprobe import align_norms, load_aligned
from normprobe.model.config import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from normprobe.specimen import SPECIMEN_DIR
from normprobe.tidy import select

Run = Callable[..., Result]
Measured = Callable[..., Path]


def table_norm() -> float:
    """Mean norm of the non-zero rows of the specimen's text embedding (Eq. 11)."""
    weight = load_file(SPECIMEN_DIR / "model.safetensors")[
        "language_model.model.embed_tokens.weight"
    ]
    norms = np.sqrt((weight.double().numpy() ** 2).sum(-1))
    return float(norms[norms > 0].mean())


def layer_norms(folder: str | Path, layer: int = 0) -> pd.Series:
    table = pd.read_csv(Path(folder) / "layers.csv")
    return select(table, "norm", layer=layer).set_index("group")["mean"]


@pytest.fixture
def adapter(measured: Measured, tmp_path: Path) -> Path:
    """A copy, to damage, of what ``normprobe align specimen`` writes."""
    return Path(shutil.copytree(measured("align", "-n", "2"), tmp_path / "adapter"))


def test_quiet_prints_the_folder_of_the_adapter(run: Run, tmp_path: Path) -> None:
    result = run("align", "-n", "2", "-o", tmp_path / "out", "-q")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(tmp_path / "out")


def test_the_next_step_is_told(run: Run, tmp_path: Path) -> None:
    result = run("align", "-n", "2", "-o", tmp_path / "out")
    assert f"measure it: normprobe layers {tmp_path / 'out'}" in result.stderr


def edit(adapter: Path, **changes: object) -> None:
    path = adapter / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_layers_with_alignment(run: Run, measured: Measured) -> None:
    untouched = measured("layers", "-n", "4")
    result = run("layers", "-n", 4, "-o", "after", "--align", "table")
    assert result.exit_code == 0
    assert "Decoder layers, visual tokens aligned" in result.stdout
    before, after = layer_norms(untouched), layer_norms("after")
    assert after["visual"] == pytest.approx(table_norm(), rel=0.01)
    assert after["text"] == before["text"]  # alignment touches no text
    assert before["visual"] > 50 * after["visual"]
    record = json.loads(Path("after/run.json").read_text())["alignment"]
    assert record["after"] == "model.multi_modal_projector"
    assert record["target_norm"] == pytest.approx(table_norm(), rel=1e-3)
    assert "alignment" not in json.loads((untouched / "run.json").read_text())


def test_the_prompt_and_a_number_as_targets(run: Run) -> None:
    aligned = ("layers", "-n", 4, "--align")
    assert run(*aligned, "prompt", "-o", "prompt").exit_code == 0
    norms = layer_norms("prompt")
    assert norms["visual"] == pytest.approx(norms["text"], rel=0.01)
    assert run(*aligned, "3.5", "-o", "number").exit_code == 0
    assert layer_norms("number")["visual"] == pytest.approx(3.5, rel=0.01)


def test_interface_with_alignment(run: Run) -> None:
    assert run("interface", "-n", 2, "--align", "table", "-o", "out").exit_code == 0
    table = flat(pd.read_csv("out/interface.csv")).set_index(["stage", "group"])
    assert table.loc[("decoder_input", "visual"), "ratio_to_table"] == pytest.approx(1, rel=0.01)


@pytest.mark.slow
def test_an_adapter_as_model_measures_what_align_measures(
    run: Run, measured: Measured, adapter: Path
) -> None:
    assert run("layers", adapter, "-n", 4, "-o", "adapted").exit_code == 0
    assert run("layers", adapter, "-n", 4, "-o", "twice", "--align", "table").exit_code == 0
    expected = (measured("layers", "-n", "4", "--align", "table") / "layers.csv").read_text()
    assert Path("adapted/layers.csv").read_text() == expected
    assert Path("twice/layers.csv").read_text() == expected  # once is enough
    assert "alignment" in json.loads(Path("adapted/run.json").read_text())


def test_the_adapter_names_its_base(run: Run, adapter: Path) -> None:
    assert json.loads((adapter / ADAPTER_CONFIG).read_text()) == {
        "base_model": "specimen",
        "revision": None,
        "model_type": "llava",
        "hidden_size": 128,
        "after": "model.multi_modal_projector",
        "compensate": True,
    }
    weights = load_file(adapter / ADAPTER_WEIGHTS)
    assert set(weights) == {"alignment_norm.weight", "alignment_norm.bias"}
    model = load_aligned(adapter)
    for name, weight in weights.items():
        assert torch.equal(model.state_dict()[name], weight)


@pytest.mark.parametrize("source", ["./model", "model"])
def test_a_local_base_is_named_by_its_path_and_the_adapter_may_be_used_elsewhere(
    source: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SPECIMEN_DIR, "model")
    assert run("align", source, "-n", 1, "-o", "local").exit_code == 0
    adapter = Path("local").resolve()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("interface", adapter, "-n", 1, "-o", "out").exit_code == 0


def test_an_adapter_folder_is_replaced_only_when_asked(run: Run, adapter: Path) -> None:
    assert_two_lines(run("align", "-n", 2, "-o", adapter), "exists", "--overwrite")
    result = run("align", "-n", 2, "-o", adapter, "--overwrite", "--target", 2, "-q")
    assert result.exit_code == 0, result.output
    gain = load_file(adapter / ADAPTER_WEIGHTS)["alignment_norm.weight"]
    torch.testing.assert_close(gain.float().norm(), torch.tensor(2.0), rtol=0.01, atol=0)


def test_statistics_of_an_adapter(run: Run, adapter: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    gain, bias = torch.randn(2, 128, generator=generator)
    save_file(
        {"alignment_norm.weight": gain, "alignment_norm.bias": bias}, adapter / ADAPTER_WEIGHTS
    )
    result = run("inspect", "--weights", adapter, "--format", "json")
    rows = {row["parameter"]: row for row in json.loads(result.stdout)["norm"]}
    for name, weight in (("gain", gain), ("bias", bias)):
        values = weight.double().numpy()
        assert rows[name]["l2_norm"] == pytest.approx(np.sqrt((values**2).sum()), rel=1e-9)
        assert rows[name]["mean_abs"] == pytest.approx(np.abs(values).mean(), rel=1e-9)
        assert rows[name]["std_abs"] == pytest.approx(np.abs(values).std(), rel=1e-9)
    printed = run("inspect", "--weights", adapter).stdout
    assert max(map(len, printed.splitlines())) <= 80
    assert "gain" in printed
    assert "bias" in printed


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an aligned specimen, as a Trainer leaves it; it is aligned to 7."""
    folder = tmp_path_factory.mktemp("saved")
    model, processor = load(SPECIMEN_DIR)
    align_norms(model, 7.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def trained(saved: Path, tmp_path: Path) -> Path:
    """A copy of the trained checkpoint, to change."""
    return Path(shutil.copytree(saved, tmp_path / "trained"))


def in_shards(folder: Path) -> None:
    """Gain and bias in different files."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    bias = {"alignment_norm.bias": weights.pop("alignment_norm.bias")}
    shards = {"model-1.safetensors": weights, "model-2.safetensors": bias}
    for name, shard in shards.items():
        save_file(shard, folder / name, {"format": "pt"})
    weight_map = {key: name for name, shard in shards.items() for key in shard}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("stored", [None, in_shards, as_bin])
def test_a_trained_checkpoint_is_measured_with_its_norm(
    stored: Callable[[Path], None] | None, run: Run, trained: Path
) -> None:
    """The auto classes would leave the norm out; then the norms of layer 0 would be the base's."""
    if stored is not None:
        stored(trained)
    assert run("layers", "./trained", "-n", 2, "-o", "out").exit_code == 0
    assert layer_norms("out")["visual"] == pytest.approx(7.0, rel=0.01)
    result = run("inspect", "--weights", "./trained", "--format", "json")
    assert json.loads(result.stdout)["norm"][0]["l2_norm"] == pytest.approx(7.0, rel=1e-5)


def test_a_command_without_the_projector_reads_no_norm(
    run: Run, adapter: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (adapter / ADAPTER_WEIGHTS).unlink()
    assert run("embeddings", adapter, "-o", "out").exit_code == 0
    assert not [warning for warning in recwarn if "meta" in str(warning.message)]
    assert_two_lines(run("interface", adapter, "-n", 1), "no alignment norm", ADAPTER_WEIGHTS)


def test_an_adapter_of_an_adapter_names_the_same_base(run: Run, adapter: Path) -> None:
    assert run("align", adapter, "-n", 1, "-o", "again").exit_code == 0
    assert (Path("again") / ADAPTER_CONFIG).read_text() == (adapter / ADAPTER_CONFIG).read_text()


@pytest.mark.slow
def test_the_base_of_an_adapted_model_is_its_adapter(run: Run) -> None:
    from peft import LoraConfig, get_peft_model  # slow

    """Behind the base alone the norm would stand behind another projector."""
    config = LoraConfig(r=2, target_modules=["linear_1"], init_lora_weights=False)
    adapted = get_peft_model(load(SPECIMEN_DIR)[0], config)
    adapted.peft_config["default"].base_model_name_or_path = str(SPECIMEN_DIR)
    adapted.save_pretrained("lora")
    assert run("align", "lora", "-n", 1, "-o", "aligned").exit_code == 0
    settings = json.loads((Path("aligned") / ADAPTER_CONFIG).read_text())
    assert settings["base_model"] == str(Path("lora").resolve())
    assert run("layers", "lora", "-n", 1, "--align", "table", "-o", "what-if").exit_code == 0
    assert run("layers", "./aligned", "-n", 1, "-o", "out").exit_code == 0
    assert Path("out/layers.csv").read_text() == Path("what-if/layers.csv").read_text()


def test_every_run_of_an_aligned_model_says_so(run: Run, adapter: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    Image.new("RGB", (8, 8), "red").save(image)
    prompt = ("--image", image, "--prompt", "What is this?")
    assert run("attention", adapter, *prompt, "-o", "attention").exit_code == 0
    assert run("interface", adapter, "-n", 1, "-o", "interface").exit_code == 0
    for folder in ("attention", "interface"):
        record = json.loads(Path(folder, "run.json").read_text())
        assert record["alignment"] == {"after": "model.multi_modal_projector", "compensate": True}
    assert run("report", "interface", "-o", "page.html").exit_code == 0
    assert "after: model.multi_modal_projector" in Path("page.html").read_text()
    shown = run("inspect", adapter).stdout
    assert "behind model.multi_modal_projector" in shown
    assert "behind model." not in run("inspect").stdout


def test_a_run_does_not_go_on_with_another_norm(run: Run, adapter: Path) -> None:
    assert run("layers", adapter, "-n", 2, "-o", "out").exit_code == 0
    file = adapter / ADAPTER_WEIGHTS
    save_file({name: 2 * weight for name, weight in load_file(file).items()}, file)
    record = json.loads(Path("out/run.json").read_text())
    Path("out/run.json").write_text(json.dumps(record | {"status": "partial"}))
    resumed = run("layers", adapter, "-n", 2, "-o", "out", "--resume")
    assert_two_lines(resumed, "other weights: alignment_norm.weight was")


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["align", "layers"])
@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("chameleon", "image tokenizer"), ("mllama", "attends to visual states")],
)
def test_models_that_cannot_be_aligned(
    command: str, model_type: str, reason: str, run: Run, tmp_path: Path
) -> None:
    tiny_model(model_type).save_pretrained("tiny")
    make_processor(model_type).save_pretrained("tiny")
    arguments = ["--align", "table"] if command == "layers" else []
    result = run(command, "./tiny", "-n", 1, "-o", "out", *arguments)
    assert_two_lines(result, "cannot be aligned", reason)
    assert not (tmp_path / "out").exists()


def test_a_language_model_cannot_be_aligned(run: Run) -> None:
    tiny_model("llama").save_pretrained("llama")
    assert_two_lines(run("align", "./llama"), "is a language model", "vision-language model")


@pytest.mark.parametrize("target", ["loud", "-1", "0", "nan"])
def test_a_target_that_is_none(target: str, run: Run, tmp_path: Path) -> None:
    result = run("layers", "-n", 1, f"--align={target}", "-o", "out")
    assert_two_lines(result)
    assert not (tmp_path / "out").exists()


def test_a_base_model_that_is_missing(run: Run, adapter: Path) -> None:
    edit(adapter, base_model="./gone")
    assert_two_lines(run("layers", adapter), "./gone", ADAPTER_CONFIG)
    edit(adapter, base_model="nobody/nothing")
    assert_two_lines(run("layers", adapter), "nobody/nothing", ADAPTER_CONFIG)


def test_an_adapter_is_no_base_model(run: Run, adapter: Path) -> None:
    other = Path(shutil.copytree(adapter, adapter.parent / "other"))
    edit(adapter, base_model=str(other))
    for base in (str(adapter), str(other)):  # back to the first, or to itself
        edit(other, base_model=base)
        assert_two_lines(run("layers", adapter, "-o", "out"), str(other), "an adapter too")
    edit(adapter, base_model=5)
    assert_two_lines(run("layers", adapter, "-o", "out"), ADAPTER_CONFIG, "base_model")
    assert not Path("out").exists()


def test_a_base_model_of_another_type(run: Run, adapter: Path) -> None:
    edit(adapter, model_type="qwen2_vl")
    result = run("layers", adapter, "-o", "out")
    assert_two_lines(result, "does not fit its base model", "qwen2_vl", "llava")
    assert not Path("out").exists()


def test_a_base_model_without_that_projector(run: Run, adapter: Path) -> None:
    edit(adapter, after="model.connector")
    assert_two_lines(run("layers", adapter, "-o", "out"), "behind model.connector")


def test_a_base_model_of_another_width(run: Run, adapter: Path) -> None:
    save_file(
        {"alignment_norm.weight": torch.ones(64), "alignment_norm.bias": torch.zeros(64)},
        adapter / ADAPTER_WEIGHTS,
    )
    assert_two_lines(run("layers", adapter, "-o", "out"), "64 gains", "rows of 128")


def test_a_broken_adapter(run: Run, adapter: Path) -> None:
    (adapter / ADAPTER_WEIGHTS).unlink()
    assert_two_lines(run("layers", adapter, "-o", "out"), "no alignment norm")
    (adapter / ADAPTER_CONFIG).write_text("{}")
    assert_two_lines(run("layers", adapter), ADAPTER_CONFIG, "base_model")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("./nowhere", "no such folder"),
        ("nobody/nothing", "is not in the cache"),
    ],
)
def test_statistics_of_what_is_not_there(source: str, reason: str, run: Run) -> None:
    assert_two_lines(run("inspect", "--weights", source), source, reason)


def without_bias(weights: dict[str, torch.Tensor]) -> None:
    del weights["alignment_norm.bias"]


def short_bias(weights: dict[str, torch.Tensor]) -> None:
    weights["alignment_norm.bias"] = weights["alignment_norm.bias"][1:].clone()


def diverged_gain(weights: dict[str, torch.Tensor]) -> None:
    weights["alignment_norm.weight"][7] = torch.nan


@pytest.mark.parametrize(
    "command", [["inspect", "--weights"], ["interface", "-n", "1", "-o", "out"]]
)
@pytest.mark.parametrize("holder", ["adapter", "trained"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without_bias, "no alignment_norm.bias"),
        (short_bias, "bias of shape [127]"),
        (diverged_gain, "NaN or infinity in alignment_norm.weight"),
    ],
)
def test_weights_of_a_norm_that_mean_nothing(
    damage: Callable[[dict[str, torch.Tensor]], None],
    reason: str,
    holder: str,
    command: list[str],
    run: Run,
    adapter: Path,
    trained: Path,
) -> None:
    file = {"adapter": adapter / ADAPTER_WEIGHTS, "trained": trained / "model.safetensors"}[holder]
    weights = load_file(file)
    damage(weights)
    save_file(weights, file, {"format": "pt"})
    assert_two_lines(run(*command, file.parent), file.parent.name, reason)
    assert not Path("out").exists()


@pytest.mark.parametrize("family", ["kimi_vl", "minicpmv", "molmo", "deepseek_vl_v2", "phi4mm"])
def test_repositories_with_code_of_their_own(
    family: str, repository: Callable[[str], Path], run: Run
) -> None:
    folder = repository(family)
    result = run(
        "interface", folder, "--trust-remote-code", "-n", 1, "--align", "table", "-o", "out"
    )
    assert result.exit_code == 0, result.output
    norms = flat(pd.read_csv("out/interface.csv")).set_index(["stage", "group"])["norm_mean"]
    record = json.loads(Path("out/run.json").read_text())["alignment"]
    behind = record["target_norm"] / (record["scale"] or 1)
    assert norms["projector_output", "visual"] == pytest.approx(behind, rel=0.01)
    if family != "molmo":  # adds the features to the rows of the image tokens
        assert norms["decoder_input", "visual"] == pytest.approx(record["target_norm"], rel=0.01)


def test_ovis_says_why_not(repository: Callable[[str], Path], run: Run) -> None:
    result = run(
        "interface", repository("ovis2_5"), "--trust-remote-code", "-n", 1, "--align", "table"
    )
    assert_two_lines(result, "discrete visual table", "vte")
