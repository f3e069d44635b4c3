"""From a checkpoint to a model whose every weight was saved."""

import json
from pathlib import Path

import pytest
import torch
from rich.filesize import decimal
from support.cases import model_of
from support.tiny_models import tiny_model

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import (
    bytes_to_fetch,
    device_and_dtype,
    load_model,
    pick_device,
    placement,
    reading_record,
    reading_sentence,
)
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.load.plan import plan_for
from normprobe.model.load.repository import Repository
from normprobe.model.load.required_tensors import (
    before_the_decoder,
    embedding_tables,
    everything,
)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_vl", "clip", "siglip", "llama", "qwen3"])
def test_a_saved_model_comes_back_whole(model_type: str, tmp_path: Path) -> None:
    saved = tiny_model(model_type)
    saved.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    loaded = load_model(checkpoint, device="cpu")
    assert not loaded.training
    expected = saved.state_dict()
    for name, weight in loaded.state_dict().items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=0)
    meta = build_on_meta(checkpoint)
    assert {p.device.type for p in meta.parameters()} == {"meta"}
    assert [name for name, _ in meta.named_modules()] == [
        name for name, _ in loaded.named_modules()
    ]


def test_auto_is_the_type_of_most_bytes(tmp_path: Path) -> None:
    saved = tiny_model("llama").to(torch.bfloat16)
    for layer in saved.model.layers:
        layer.mlp.float()
    bits = [weight.element_size() * 8 for weight in saved.state_dict().values()]
    assert bits.count(16) > bits.count(32)
    saved.save_pretrained(tmp_path)
    loaded = load_model(open_checkpoint(str(tmp_path)), device="cpu")
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


def test_a_config_may_name_a_weight_file_in_its_folder(tmp_path: Path) -> None:
    saved = tiny_model("llama")
    saved.save_pretrained(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "model.safetensors").rename(tmp_path / "weights/mine.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["transformers_weights"] = "weights/mine.safetensors"
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_model(open_checkpoint(str(tmp_path)), device="cpu").state_dict()
    for name, weight in saved.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)


def test_the_dtype_asked_for_is_given(tmp_path: Path) -> None:
    tiny_model("llava").save_pretrained(tmp_path)
    assert load_model(open_checkpoint(str(tmp_path)), dtype="bfloat16").dtype == torch.bfloat16


def test_a_weight_of_another_shape_is_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NormprobeError, match=r"model\.norm\.weight"):
        load_model(open_checkpoint(str(tmp_path)))


def test_a_weight_that_the_report_hides_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model classes may declare weights unneeded: the loader then says nothing of them."""
    from safetensors.torch import load_file, save_file

    model = tiny_model("llava")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    hidden = next(name for name in weights if "projector" in name)
    del weights[hidden]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(type(model), "_keys_to_ignore_on_load_missing", [r".*projector.*"])
    with pytest.raises(NormprobeError, match=r"projector\.linear"):
        load_model(open_checkpoint(str(tmp_path)))


# --- the sentence and the record of what a load reads ---------------------------------------------


def test_a_partial_load_names_files_and_bytes(tmp_path: Path) -> None:
    model_of("llava").save_pretrained(tmp_path, max_shard_size="50KB")
    plan = plan_for(embedding_tables, open_checkpoint(str(tmp_path)))
    number = len(plan.weights.files)
    assert number > 2
    assert reading_sentence(plan).startswith(f"reads 1 of {number} weight files of ")
    table = model_of("llava").get_input_embeddings().weight
    record = reading_record(plan)
    assert record["bytes"] == table.nbytes
    assert record["files"] == plan.files
    assert record["everything_because"] is None


@pytest.mark.parametrize("ranges", [True, False])
def test_what_is_about_to_be_fetched_is_without_what_is_here(
    ranges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_of("llava").save_pretrained(tmp_path, max_shard_size="50KB")
    plan = plan_for(before_the_decoder, open_checkpoint(str(tmp_path)))
    absent, *here = plan.files
    assert here
    sizes = {file: (tmp_path / file).stat().st_size for file in plan.weights.files}
    look = Repository.path_here
    monkeypatch.setattr(Repository, "path_here", lambda r, f: None if f == absent else look(r, f))
    monkeypatch.setattr(Repository, "sizes", lambda _, files: {file: sizes[file] for file in files})
    plan.weights.range_reads = ranges
    needed, whole = decimal(plan.nbytes_in([absent])), decimal(sum(sizes.values()))
    which = f"1 of {len(sizes)} weight files of {tmp_path.name}"
    if ranges:
        assert reading_sentence(plan) == f"fetches bytes of {which}, {needed} of {whole}"
        assert bytes_to_fetch(plan) == plan.nbytes_in([absent])
    else:
        fetched = decimal(sizes[absent])
        said = f"fetches {which}, {fetched} of {whole}, for {needed} of tensors"
        assert reading_sentence(plan) == said
        assert bytes_to_fetch(plan) == sizes[absent]


def test_a_full_load_says_why(tmp_path: Path) -> None:
    model_of("llava").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    asked_for = plan_for(everything, checkpoint)
    assert "weight file of" in reading_sentence(asked_for)
    unknown = plan_for(embedding_tables, checkpoint, named={"decoder_layers": "model.nowhere"})
    assert "reads every weight of" in reading_sentence(unknown)
    assert "its structure does not tell its parts" in reading_sentence(unknown)
    assert reading_record(unknown)["everything_because"] == unknown.because


# --- devices and dtypes by name -------------------------------------------------------------------


def test_auto_takes_a_device_that_is_there() -> None:
    assert torch.ones(1, device=pick_device("auto")).sum() == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("toaster", "there is no device 'toaster'"),
        ("cuda:99", "device 'cuda:99' is not available: "),
    ],
)
def test_a_device_that_is_not_there_is_refused(name: str, problem: str) -> None:
    with pytest.raises(NormprobeError, match=problem) as failure:
        pick_device(name)
    assert "\n" not in failure.value.problem


def test_a_dtype_that_is_unknown_is_refused() -> None:
    with pytest.raises(NormprobeError, match="unknown dtype 'float7'") as failure:
        placement("cpu", "float7", None)
    assert "bfloat16" in failure.value.remedy


def test_weights_on_meta_do_not_count() -> None:
    assert device_and_dtype(model_of("llava")) == ("cpu", "float32")
    assert device_and_dtype(torch.nn.Linear(2, 2, device="meta")) == ("", "None")
