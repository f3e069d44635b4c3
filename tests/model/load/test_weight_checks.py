"""Weights that are missing, not finite, without scales or of another shape are refused."""

import copy
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.cases import model_of
from support.processors import make_processor
from support.remote_code.tokenizer import byte_tokenizer
from support.tiny_inputs import tiny_inputs
from support.tiny_models import build, tiny_model
from torch import nn
from transformers import LlavaForConditionalGeneration

from normprobe import Probe, find_parts
from normprobe.errors import NormprobeError
from normprobe.inputs.inputs_file import InputsFile
from normprobe.measurements.inspect import inspected
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.load import weight_checks
from normprobe.model.load.loading import load_model
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.load.plan import plan_for, plan_loading
from normprobe.model.load.repository import Repository
from normprobe.model.load.required_tensors import (
    Needs,
    before_the_decoder,
    embedding_tables,
    forward_to_last_layer,
)
from normprobe.model.load.weight_checks import (
    is_relabelled,
    quantised_parts,
    refuse_lacking,
    without_read,
)
from normprobe.model.load.weight_files import WeightFiles
from normprobe.specimen import SPECIMEN_DIR
from normprobe.versions import is_line_5

Weights = dict[str, torch.Tensor]

NEEDED = (embedding_tables, before_the_decoder, forward_to_last_layer)


def damaged(folder: Path, model_type: str = "llava") -> tuple[Weights, Path]:
    """The weights of a saved model, to change and to save again."""
    model_of(model_type).save_pretrained(folder)
    file = folder / "model.safetensors"
    # Copies: older safetensors maps the file, and would read what is written over it.
    return {name: weight.clone() for name, weight in load_file(file).items()}, file


def key_of(weights: Weights, part: str) -> str:
    return next(key for key in weights if part in key)


def load(folder: Path, needs: Needs) -> None:
    checkpoint: Checkpoint = open_checkpoint(str(folder))
    load_model(checkpoint, plan_for(needs, checkpoint), device="cpu")


@pytest.mark.parametrize("needs", NEEDED)
def test_a_missing_tensor_stops_the_measurements_that_read_it(needs: Needs, tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "layers.1.mlp.up_proj")
    del weights[key]
    save_file(weights, file, metadata={"format": "pt"})
    if needs is not forward_to_last_layer:
        load(tmp_path, needs)
        return
    with pytest.raises(NormprobeError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path, needs)


@pytest.mark.parametrize("needs", NEEDED)
def test_a_table_of_another_shape_gives_both_shapes(needs: Needs, tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "embed_tokens")
    rows, width = weights[key].shape
    weights[key] = torch.ones(rows + 1, width)
    save_file(weights, file, metadata={"format": "pt"})
    shapes = rf"saved \[{rows + 1}, {width}\], expected \[{rows}, {width}\]"
    with pytest.raises(NormprobeError, match=shapes):
        load(tmp_path, needs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_that_is_not_finite_is_named(
    value: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    weights = {name: weight.to(dtype) for name, weight in weights.items()}
    weights[key][0, 0] = value
    save_file(weights, file, metadata={"format": "pt"})
    load(tmp_path, embedding_tables)
    with pytest.raises(NormprobeError, match=r"NaN or infinity in .*linear_1\.weight"):
        load(tmp_path, before_the_decoder)


def test_the_largest_finite_weights_pass(tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    weights = {name: weight.half() for name, weight in weights.items()}
    weights[key][:] = torch.finfo(torch.float16).max
    save_file(weights, file, metadata={"format": "pt"})
    load(tmp_path, before_the_decoder)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
@pytest.mark.parametrize("declared", [False, True])
def test_a_table_without_its_scales_is_refused(
    dtype: torch.dtype, declared: bool, tmp_path: Path
) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "embed_tokens")
    weights[key] = weights[key].to(dtype)
    save_file(weights, file, metadata={"format": "pt"})
    if declared:
        config = open_checkpoint(str(tmp_path)).config
        config.quantization_config = {"quant_method": "fp8"}
        config.save_pretrained(tmp_path)
    with pytest.raises(NormprobeError, match=r"embed_tokens\.weight \((F8_E4M3|I8|U8)\)"):
        load(tmp_path, embedding_tables)


def test_a_weight_that_its_class_calls_unneeded_is_missed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    del weights[key]
    save_file(weights, file, metadata={"format": "pt"})
    hidden = [r"linear_1\.weight"]
    monkeypatch.setattr(type(model_of("llava")), "_keys_to_ignore_on_load_missing", hidden)
    with pytest.raises(NormprobeError, match=r"linear_1\.weight"):
        load(tmp_path, before_the_decoder)


def test_parts_with_packed_weights_are_told() -> None:
    model = build("llava")
    parts = find_parts(model)
    assert quantised_parts(parts) == []
    assert parts.projector is not None
    packed = torch.nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    parts.projector.module.register_parameter("packed", packed)
    assert quantised_parts(parts) == ["projector"]


@pytest.mark.parametrize("needs", NEEDED)
def test_whole_numbers_in_place_of_floats_are_named(needs: Needs, tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    weights[key] = (100 * weights[key]).to(torch.int32)
    weights["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    save_file(weights, file, metadata={"format": "pt"})
    if needs is embedding_tables:
        load(tmp_path, needs)
        return
    named = r"whole numbers .*linear_1\.weight \(I32\)"
    if transformers.__version__.startswith("4."):  # its own loader refuses them before
        named = r"cannot build .* copying the parameter named \"weight\""
    with pytest.raises(NormprobeError, match=named):
        load(tmp_path, needs)


@pytest.mark.parametrize("needs", NEEDED)
def test_layers_that_the_config_leaves_out_are_named(needs: Needs, tmp_path: Path) -> None:
    damaged(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    saved = config["text_config"]["num_hidden_layers"]
    checkpoint = open_checkpoint(str(tmp_path))
    assert plan_for(needs, checkpoint).notes == ()
    config["text_config"]["num_hidden_layers"] = saved - 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    (note,) = plan_for(needs, open_checkpoint(str(tmp_path))).notes
    assert f"language_model.layers: {saved - 1} by the config, {saved} in" in note


def test_no_layers_at_all_are_refused(tmp_path: Path) -> None:
    shutil.copytree(SPECIMEN_DIR, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NormprobeError, match="no decoder layers"):
        Probe(str(tmp_path)).layers(limit=1)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_auto_is_the_type_of_most_bytes_in_the_files(form: str, tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    large = sorted(weights, key=lambda name: weights[name].numel())[-(len(weights) // 3) :]
    for dtype, note in ((torch.float32, ["config.json says bfloat16"]), (torch.bfloat16, [])):
        kept = {name: w.to(dtype if name in large else torch.half) for name, w in weights.items()}
        if form == "bin":
            file.unlink(missing_ok=True)
            torch.save(kept, tmp_path / "pytorch_model.bin")
        else:
            save_file(kept, file, metadata={"format": "pt"})
        checkpoint = open_checkpoint(str(tmp_path))
        plan = plan_for(forward_to_last_layer, checkpoint)
        assert [text.partition(",")[0] for text in plan.notes] == note
        assert load_model(checkpoint, plan, device="cpu").dtype == dtype
        if form == "safetensors":  # from its files, as what is offloaded stays there
            whole = plan_loading(checkpoint, build_on_meta(checkpoint))
            spread = load_model(checkpoint, whole, device_map={"": "cpu"})
            assert spread.dtype == dtype


@pytest.mark.parametrize("size", [1e-3, 0.02, 1.0])
def test_bfloat16_that_is_read_as_float16_is_told_by_its_numbers(size: float) -> None:
    table = size * torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    assert is_relabelled(table.bfloat16().view(torch.float16))
    assert not any(map(is_relabelled, (table, table.bfloat16(), table.half())))
    assert not is_relabelled(torch.ones(500, 64))  # made by hand, not read from a file
    assert not is_relabelled(table.to("meta"))


def test_what_an_inputs_file_loads_with_random_weights_is_in_doubt(tmp_path):
    """As a tower whose folder another transformers saved, under other names."""
    weights, file = damaged(tmp_path, "clip_vision_model")
    kept = {name: weight for name, weight in weights.items() if "layers.0" not in name}

    code = f"CLIPVisionModel.from_pretrained({str(tmp_path)!r}).train()"
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from transformers import CLIPVisionModel\ndef prepare(model, processor):\n    " + code
    )
    for lacking in (False, True):
        save_file(kept if lacking else weights, file, metadata={"format": "pt"})
        run = Probe(model_of("llava"), inputs=str(mine)).layers(tiny_inputs(model_of("llava")))
        told = " ".join(run.record.get("doubts", []))
        assert ("of the weights of CLIPVisionModel, such as " in told) == lacking


@pytest.mark.parametrize(("cast", "doubt"), [("", False), (".half()", True)])
def test_what_an_inputs_file_loads_is_in_the_dtype_of_the_model(tmp_path, cast: str, doubt: bool):
    """transformers 5 takes that of the files (LLaVA's tower), which would be no numbers of ours."""
    weights, file = damaged(tmp_path, "clip_vision_model")
    save_file({name: w.bfloat16() for name, w in weights.items()}, file, metadata={"format": "pt"})
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "dtype": "bfloat16"}))
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from transformers import CLIPVisionModel\n"
        "def prepare(model, processor):\n"
        f"    model.second = CLIPVisionModel.from_pretrained({str(tmp_path)!r}){cast}\n"
    )
    model = copy.deepcopy(model_of("llava"))
    run = Probe(model, inputs=str(mine)).layers(tiny_inputs(model))
    assert {w.dtype for w in model.second.parameters()} == {
        torch.float16 if doubt else torch.float32
    }
    told = " ".join(run.record.get("doubts", []))
    assert ("leaves weights in float16, the others are in float32" in told) == doubt


IDS = {"input_ids": torch.tensor([[5, 9, 12, 30, 7]])}


@pytest.fixture
def with_more(repository, tmp_path):
    """Code of a repository, in whose files lies a module that it does not make."""
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    weights = load_file(folder / "model.safetensors")
    more = {"layers.0.pool.weight": torch.full((3, 3), 0.5), "layers.1.inv_freq": torch.ones(2)}
    more |= {"layers.0.attn.bias": torch.ones(1, 1, 4, 4)}  # a mask, as GPT-2's
    save_file(weights | more, folder / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer((), None).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "no place for 1 of the tensors in its files, such as layers.0.pool.weight: what"),
        ("fill_(0.5)", ""),
        ("fill_(0.4)", "1 of the weights that prepare() made, and 1 of 1 that were comp"),
        ("new_zeros(2)", "1 of the weights that prepare() made, and 1 of 1 that were comp"),
    ],
)
def test_what_the_files_hold_beside_the_model_is_in_doubt(with_more, tmp_path, made, told):
    """As Wings, whose code makes modules later, and ALLaVA, whose tower loads other weights."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\ndef prepare(model, processor):\n"
        "    pool = model.layers[0].pool = torch.nn.Linear(3, 3, bias=False)\n"
        f"    pool.weight = torch.nn.Parameter(pool.weight.data.{made})\n"
    )
    inputs = str(mine) if made else None
    run = Probe(str(with_more), trust_remote_code=True, inputs=inputs).layers(IDS)
    doubts = " ".join(run.record.get("doubts", []))
    assert (told in doubts) if told else not doubts
    checkpoint = open_checkpoint(str(with_more), trust_remote_code=True)
    compared = inspected(checkpoint, {}).facts["weight files"]
    assert "; more for which it has no place: 1, such as layers.0.pool.weight" in compared


@pytest.mark.parametrize(
    ("code", "doubted"),
    [
        ("block.norm = torch.nn.LayerNorm(block.norm.weight.numel())", True),
        ("block.norm = copy.deepcopy(block.norm)", False),
        ("model.double()", False),
        ("block.norm.weight.data.mul_(2)", False),
    ],
)
def test_weights_that_prepare_puts_in_place_of_others_are_compared(
    repository, tmp_path, code: str, doubted: bool
) -> None:
    """ASMv2: a tower that its loader loads again loses what was trained of it."""
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    file = folder / "model.safetensors"
    weights = load_file(file)
    key = "layers.0.block.norm.weight"
    save_file({**weights, key: weights[key] + 0.5}, file, metadata={"format": "pt"})
    byte_tokenizer((), None).save_pretrained(folder)
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import copy\nimport torch\ndef prepare(model, processor):\n"
        f"    block = model.layers[0].block\n    {code}\n"
    )
    run = Probe(str(folder), trust_remote_code=True, inputs=str(mine)).layers(IDS)
    told = " ".join(run.record.get("doubts", []))
    assert ("such as layers.0.block.norm." in told) == doubted
    assert told.endswith(": is what prepare() loads what was trained?") == doubted


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("torch.nn.init.normal_(pool.weight)", True),
        ("pool.double()", False),
        ("pool.requires_grad_(False)", False),
        ("torch.nn.init.normal_(pool.weight); pool.load_state_dict(held)", False),
        ("pool.weight = torch.nn.Parameter(held['weight'])", False),
    ],
)
def test_weights_that_are_made_anew_behind_their_load_are_in_doubt(
    with_more, tmp_path, code: str, changed: bool
) -> None:
    """VLM-3R's spatial tower, of which only half the runs would tell."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\ndef prepare(model, processor):\n"
        "    pool = model.layers[0].pool = torch.nn.Linear(3, 3, bias=False)\n"
        "    held = {'weight': torch.full((3, 3), 0.5)}\n"
        f"    pool.load_state_dict(state_dict=held)\n    {code}\n"
    )
    run = Probe(str(with_more), trust_remote_code=True, inputs=str(mine)).layers(IDS)
    told = " ".join(run.record.get("doubts", []))
    said = "weights changed behind the load_state_dict() that read them (1, such as Linear.weight)"
    assert (said in told) == changed


def test_matrices_are_compared_before_biases(repository, tmp_path):
    """Every n-th of sorted names may be a bias each time (VLM-3R): the trained ones are others."""
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    file = folder / "model.safetensors"
    weights = load_file(file)
    more = {f"tower.{n:02}.bias": torch.zeros(3) for n in range(40)}
    more |= {f"tower.{n:02}.weight": torch.ones(3, 3) for n in range(40)}
    save_file(weights | more, file, metadata={"format": "pt"})
    byte_tokenizer((), None).save_pretrained(folder)
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\ndef prepare(model, processor):\n"
        "    model.tower = torch.nn.Module()\n"
        "    for n in range(40):\n"
        "        layer = torch.nn.Linear(3, 3)\n"
        "        layer.bias.data.zero_()\n"
        "        model.tower.add_module(f'{n:02}', layer)\n"
    )
    run = Probe(str(folder), trust_remote_code=True, inputs=str(mine)).layers(IDS)
    told = " ".join(run.record["doubts"])
    assert "80 of the weights that prepare() made, and 8 of 8 that were compared" in told


def test_a_weight_that_has_its_place_under_two_names_is_no_doubt(with_more, tmp_path):
    """ST-LLM keeps its table of words in two modules, one of them made later."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\ndef prepare(model, processor):\n"
        "    pool = model.layers[0].pool = torch.nn.Linear(3, 3, bias=False)\n"
        "    torch.nn.init.constant_(pool.weight, 0.5)\n"
        "    model._modules = {'first': pool, **model._modules}\n"
    )
    run = Probe(str(with_more), trust_remote_code=True, inputs=str(mine)).layers(IDS)
    assert not run.record.get("doubts")


def test_it_is_in_doubt_too_where_the_loader_could_not_be_asked_beforehand(with_more, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("tensors without values")

    monkeypatch.setattr("normprobe.model.load.plan.dry_run", fails)
    run = Probe(str(with_more), trust_remote_code=True).layers(IDS)
    assert "dry run" in run.record["weights"]["everything_because"]
    told = "no place for 1 of the tensors in its files, such as layers.0.pool.weight"
    assert told in " ".join(run.record.get("doubts", []))


@pytest.mark.parametrize("by_class", [False, True])
def test_names_that_a_readme_or_a_class_maps_are_those_of_the_loader(
    repository, tmp_path, by_class
):
    """Step3-VL's class does not take the map; transformers 5 passes over a class's own.

    So it does of LLaVA-OneVision-1.5's, and 4.57 takes those of the classes that it lists.
    """
    folder = shutil.copytree(repository("buffers"), tmp_path / f"mapped_{by_class}")
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("layers.", "blocks."): weight for name, weight in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    renames = {r"^blocks\.": "layers."}
    file = InputsFile(keywords={} if by_class else {"key_mapping": renames})
    if by_class:
        if not is_line_5():
            pytest.skip("4.57 takes the map of a class only where its list names it")
        (code,) = folder.glob("modeling_*.py")
        text = code.read_text()
        own = f"\n    _checkpoint_conversion_mapping = {renames!r}\n"
        opened = re.search(r"class \w+\(PreTrainedModel\):\n", text)
        code.write_text(text.replace(opened[0], opened[0] + own))
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True, inputs_file=file)
    model = load_model(checkpoint, device="cpu")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name])


@pytest.mark.skipif(not is_line_5(), reason="4.57 has the module")
def test_names_of_a_tower_that_lost_a_module_are_those_of_the_loader(repository, tmp_path):
    """CLIP's and SigLIP's own, inside code that holds one whole (LLaVA-UHD v2)."""
    folder = shutil.copytree(repository("buffers"), tmp_path / "towered")
    weights = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("layers.0.", "layers.0.vision_model."): w for name, w in weights.items()
    }
    assert renamed.keys() != weights.keys()
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    model = load_model(checkpoint, device="cpu")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name])
    assert "names of weights behind .vision_model." in checkpoint.bridges


@pytest.mark.parametrize(("value", "differs"), [(0.5, False), (0.4, True)])
def test_a_tower_that_became_its_own_model_has_its_place(repository, tmp_path, value, differs):
    """Volcano's files hold a tower as ``vision_model``, which transformers 5 has no more."""
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    weights = load_file(folder / "model.safetensors")
    more = {"layers.0.vision_model.pool.weight": torch.full((3, 3), 0.5)}
    save_file(weights | more, folder / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer((), None).save_pretrained(folder)
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\ndef prepare(model, processor):\n"
        "    pool = model.layers[0].pool = torch.nn.Linear(3, 3, bias=False)\n"
        f"    pool.weight = torch.nn.Parameter(torch.full((3, 3), {value}))\n"
    )
    run = Probe(str(folder), trust_remote_code=True, inputs=str(mine)).layers(IDS)
    doubts = " ".join(run.record.get("doubts", []))
    assert ("1 of 1 that were compared have other values" in doubts) == differs
    assert "no place" not in doubts


def test_a_bias_of_one_row_is_no_mask(repository, tmp_path):
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    weights = load_file(folder / "model.safetensors") | {"layers.0.attn.bias": torch.ones(3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    assert plan_loading(checkpoint, build_on_meta(checkpoint)).unplaced == ("layers.0.attn.bias",)


@pytest.mark.parametrize(("made", "doubt"), [(torch.bfloat16, True), (torch.float64, False)])
def test_own_code_that_makes_narrower_floats_than_were_asked_for_is_in_doubt(
    made, doubt, tmp_path, monkeypatch
):
    """As Nemotron's language model, which its code builds in bfloat16."""
    damaged(tmp_path)
    make_processor("llava").save_pretrained(tmp_path)
    build = LlavaForConditionalGeneration.__init__

    def narrow(self, config, **options):
        build(self, config, **options)
        self.model.vision_tower.to(made)
        self.model.multi_modal_projector.to(made)

    monkeypatch.setattr(LlavaForConditionalGeneration, "__init__", narrow)
    for dtype in ("float32", "auto"):
        run = Probe(str(tmp_path), dtype=dtype).interface(tiny_inputs(model_of("llava")))
        told = " ".join(run.record.get("doubts", []))
        assert ("float32 was asked for" in told) == (doubt and dtype == "float32")


def test_experts_under_older_names_are_no_weights_that_lack(monkeypatch):
    """VITA: transformers 5 joins them by the type, which it does not know."""
    config = SimpleNamespace(transformers_version="4.41.1")
    checkpoint = SimpleNamespace(name="org/model", source="org/model", config=config)
    lacking = ["model.layers.0.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj"]
    monkeypatch.setattr(weight_checks, "is_line_5", lambda: True)
    with pytest.raises(NormprobeError, match="under the names that transformers 5") as raised:
        refuse_lacking(checkpoint, lacking)
    assert "check that config.json" not in raised.value.remedy
    monkeypatch.setattr(weight_checks, "is_line_5", lambda: False)
    with pytest.raises(NormprobeError, match="lacks weights that the model needs"):
        refuse_lacking(checkpoint, lacking)


@pytest.mark.parametrize("below", [True, False])
def test_weights_in_folders_below_are_named(below, tmp_path):
    """VisualCLA's package loads those of its two halves from there."""
    (tmp_path / "text_encoder").mkdir()
    if below:
        (tmp_path / "text_encoder" / "pytorch_model-00001-of-00002.bin").touch()
    checkpoint = SimpleNamespace(name="visual", source=str(tmp_path), config=SimpleNamespace())
    with pytest.raises(NormprobeError, match="lacks weights that the model needs") as raised:
        refuse_lacking(checkpoint, ["layers.0.weight"])
    assert ("its folders text_encoder hold weights" in raised.value.remedy) == below


def test_a_loader_that_is_no_method_is_its_own(tmp_path, monkeypatch):
    """An inputs file may put a plain function in the place of a class's from_pretrained."""
    model_of("llava").save_pretrained(tmp_path)
    monkeypatch.setattr(
        LlavaForConditionalGeneration, "from_pretrained", lambda path, *more, **named: None[path]
    )
    with pytest.raises(NormprobeError):
        Probe(str(tmp_path)).interface(tiny_inputs(model_of("llava")))


def test_a_file_whose_prepare_fails_is_to_be_mended(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def prepare(model, processor):\n    model.no_such_part.load()\n")
    with pytest.raises(NormprobeError, match=r"the inputs file .*mine\.py does not fit") as raised:
        Probe(model_of("llava"), inputs=str(mine)).layers(tiny_inputs(model_of("llava")))
    assert raised.value.remedy.startswith(f"mend prepare() in {mine}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        # As of a package's class that has the name of transformers' (Vamba).
        ("language_model.layers.0.cross_attn.q_proj.weight", True),
        ("language_model.layers.0.self_attn.rotary_emb.inv_freq", False),
        ("language_model.layers.0.self_attn.q_proj.weight_scale", False),
        ("language_model.layers.61.cross_attn.q_proj.weight", False),  # DeepSeek-V3's last
        ("head_that_only_training_has.weight", False),
    ],
)
def test_what_layers_of_transformers_have_no_place_for_is_told(
    name: str, told: bool, tmp_path: Path
) -> None:
    """All else in files of a type of transformers may be left out on purpose."""
    tiny_model("llava").save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    layer = next(key for key in held if "layers.0.self_attn.q_proj" in key and "vision" not in key)
    name = layer.partition("layers.0.")[0] + name.removeprefix("language_model.")
    save_file({**held, name: torch.ones(4, 4)}, tmp_path / "model.safetensors", {"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path))
    unplaced = plan_loading(checkpoint, build_on_meta(checkpoint)).unplaced
    assert [each.rpartition("layers.0.")[2] for each in unplaced] == (
        [name.rpartition("layers.0.")[2]] if told else []
    )
    make_processor("llava").save_pretrained(tmp_path)
    run = Probe(str(tmp_path)).layers(tiny_inputs(model_of("llava")))
    (doubt,) = run.record.get("doubts") or [""]
    said = (
        "a package may have a LlavaForConditionalGeneration of its own: register it in setup() of"
    )
    assert (said in doubt) == told


def test_what_a_loader_of_its_own_does_is_done(repository, tmp_path):
    """VLM-3R's sets a tower behind transformers' own, which was asked for a report, too."""
    folder = shutil.copytree(repository("buffers"), tmp_path / "own_loader")
    (code,) = folder.glob("modeling_*.py")
    text = code.read_text()
    opened = re.search(r"class \w+\(PreTrainedModel\):\n", text)
    own = (
        "    @classmethod\n    def from_pretrained(cls, *arguments, **options):\n"
        "        model = super().from_pretrained(*arguments, **options)\n"
        "        model.config.was_read = True\n        return model\n\n"
    )
    code.write_text(text.replace(opened[0], opened[0] + own))
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    model = load_model(checkpoint, device="cpu")
    assert model.config.was_read
    weights = load_file(folder / "model.safetensors")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name])


@pytest.mark.parametrize("widens", [True, False])
@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float32])
def test_what_prepare_widens_again_is_in_doubt_only_where_files_hold_more(
    saved, widens, tmp_path, monkeypatch
):
    """URSA's code makes its language model in bfloat16, which is all that its files hold."""
    damaged(tmp_path)
    make_processor("llava").save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    weights = {name: value.to(saved) for name, value in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    build = LlavaForConditionalGeneration.__init__

    def narrow(self, config, **options):
        build(self, config, **options)
        self.model.to(torch.bfloat16)

    monkeypatch.setattr(LlavaForConditionalGeneration, "__init__", narrow)
    mine = tmp_path / "mine.py"
    body = "model.float()" if widens else "pass"
    mine.write_text(f"def prepare(model, processor):\n    {body}\n")
    probe = Probe(str(tmp_path), dtype="float32", inputs=mine)
    told = " ".join(probe.interface(tiny_inputs(model_of("llava"))).record.get("doubts", []))
    assert ("numbers are those of rounded weights" in told) == (saved == torch.float32)
    of_arithmetic = "as its files hold them: what they compute is rounded; model.float() in"
    assert (of_arithmetic in told) == (saved == torch.bfloat16 and not widens)


def test_what_a_class_reads_by_itself_is_not_lacking(tmp_path: Path) -> None:
    """Phi-4-reasoning-vision makes its tower behind the load of the rest."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["1.bias"] += 1
    save_file(state, tmp_path / "model.safetensors")
    files = WeightFiles(Repository(str(tmp_path), str(tmp_path), None))
    report = {"missing_keys": {"1.weight", "1.bias", "2.weight"}, "mismatched_keys": []}
    assert without_read(report, files, model)["missing_keys"] == {"1.bias", "2.weight"}
