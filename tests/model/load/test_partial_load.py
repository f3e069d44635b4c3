"""What a measurement loads equals a full load bit for bit, for every model type."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cases import model_of
from support.remote_code import HERE
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import (
    ALL_TYPES,
    LANGUAGE_MODELS,
    NEEDS,
    VISION_ENCODERS,
    VLM_TYPES,
)
from torch import nn
from transformers import LlavaForConditionalGeneration

from normprobe import NormprobeError, find_parts, probe_interface
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.find.parts import Parts, weight_of
from normprobe.model.load.loading import load_model
from normprobe.model.load.partial_load import _unsaved_tensors, changed_buffers
from normprobe.model.load.plan import plan_for
from normprobe.model.load.required_tensors import (
    Needs,
    before_the_decoder,
    embedding_tables,
    everything,
    forward_to_last_layer,
    outside,
    unneeded,
)
from normprobe.model.model_kind import auto_class
from normprobe.versions import is_line_5, tied_weights

NEEDED = (embedding_tables, before_the_decoder, forward_to_last_layer)

#: Saved by their own class, these do not load through the auto class at all.
NOT_LOADABLE = {"evolla", "shieldgemma2"}
LOADABLE = [
    name
    for name in (*VISION_ENCODERS, *LANGUAGE_MODELS, *ALL_TYPES)
    if name not in NOT_LOADABLE and find_spec(NEEDS.get(name, "torch"))
]
#: A language model, bare encoders, tied tables, DeepStack, layers that are shared with an encoder.
FAST = ("llama", "clip", "siglip2_vision_model", "llava", "gemma3", "qwen3_vl", "udop")


def saved(model_type: str, folder: Path) -> Checkpoint:
    model_of(model_type).save_pretrained(folder)
    return open_checkpoint(str(folder))


def loaded(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that hold values."""
    parameters = model.named_parameters(remove_duplicate=False)
    tensors = [*parameters, *model.named_buffers(remove_duplicate=False)]
    return {name: tensor for name, tensor in tensors if not tensor.is_meta}


def inside(name: str, parts: Parts) -> bool:
    assert parts.decoder_layers is not None
    return name.startswith(f"{parts.decoder_layers.name}.")


@pytest.mark.parametrize(
    "model_type",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in LOADABLE],
)
def test_what_is_loaded_equals_a_full_load(model_type: str, tmp_path: Path) -> None:
    checkpoint = saved(model_type, tmp_path)
    full = auto_class(checkpoint.kind, checkpoint.config).from_pretrained(tmp_path)
    values = loaded(full)
    parts = find_parts(full)
    for needs in NEEDED:
        plan = plan_for(needs, checkpoint)
        assert plan.keys is not None, plan.because
        partial = load_model(checkpoint, plan, device="cpu")
        held = loaded(partial)
        for name, tensor in held.items():
            assert torch.equal(tensor, values[name]), (needs, name)
        assert [name for name, _ in partial.named_modules()] == [
            name for name, _ in full.named_modules()
        ]
        if parts.text_embedding is not None:
            assert any(name.startswith(parts.text_embedding.name) for name in held)
        if needs is before_the_decoder and parts.decoder_layers is not None:
            # UDOP shares a position bias with its first layer, diffusion_gemma whole layers.
            tied = tied_weights(full)
            shared = {*tied, *tied.values(), *(name for name, _ in full.named_buffers())}
            assert all(name in shared for name in held if inside(name, parts))
        if needs is before_the_decoder and model_type in VLM_TYPES:  # all that it reads is there
            tables = [
                probe_interface(model, tiny_inputs(model), special_token_ids=SPECIAL_IDS)
                for model in (partial, full.eval())
            ]
            pd.testing.assert_frame_equal(*tables, check_exact=True)
        if needs is forward_to_last_layer:
            head = full.get_output_embeddings()
            alone = {name for name, module in full.named_modules() if module is head}
            tied = tied_weights(full)
            assert all(
                name.rpartition(".")[0] in alone and name not in tied
                for name in values.keys() - held.keys()
            )


@pytest.mark.parametrize("needs", NEEDED)
def test_modules_that_code_keeps_twice_are_loaded_once(
    needs: Needs, repository: Any, tmp_path: Path
) -> None:
    """As PaddleOCR-VL's head, which holds the decoder too."""
    del repository  # its cache of modules
    full = model_of("llava")
    full.save_pretrained(tmp_path)
    (tmp_path / "twice.py").write_text(
        "from torch import nn\n"
        "from transformers import LlavaForConditionalGeneration\n"
        "class Twice(LlavaForConditionalGeneration):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.again = nn.ModuleList([self.model, self.lm_head])\n"
    )
    config = json.loads((tmp_path / "config.json").read_text())
    auto_map = {"AutoModelForImageTextToText": "twice.Twice"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": auto_map}))
    checkpoint = open_checkpoint(str(tmp_path), trust_remote_code=True)
    plan = plan_for(needs, checkpoint)
    assert plan.keys is not None, plan.because
    held, values = loaded(load_model(checkpoint, plan, device="cpu")), loaded(full)
    assert held
    for name, tensor in held.items():
        once = name.replace("again.0.", "model.").replace("again.1.", "lm_head.")
        assert torch.equal(tensor, values[once])
    layers = any(name.startswith("model.language_model.layers.") for name in held)
    assert layers or needs is not forward_to_last_layer
    assert not layers or needs is not before_the_decoder or not is_line_5()  # 4.57 reads them all


def test_memory_that_was_never_filled_is_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``skip_init`` gives weights memory though they are built on meta (VisualGLM)."""
    checkpoint = saved("llava", tmp_path)
    build = LlavaForConditionalGeneration.__init__

    def skipping(self: Any, config: Any, **options: Any) -> None:
        build(self, config, **options)
        for layer in self.model.language_model.layers:
            weight = layer.mlp.up_proj.weight
            layer.mlp.up_proj.weight = nn.Parameter(torch.full(weight.shape, torch.nan))

    plan = plan_for(before_the_decoder, checkpoint)
    monkeypatch.setattr(LlavaForConditionalGeneration, "__init__", skipping)
    model = load_model(checkpoint, plan, device="cpu")
    assert model.model.language_model.layers[0].mlp.up_proj.weight.is_meta
    assert not model.model.multi_modal_projector.linear_1.weight.is_meta


def test_a_bare_encoder_needs_no_text_side(tmp_path: Path) -> None:
    checkpoint = saved("clip", tmp_path)
    keys = plan_for(before_the_decoder, checkpoint).keys
    assert keys and all(key.startswith("vision_model.") for key in keys)


def test_a_model_whose_parts_are_unknown_is_read_whole(tmp_path: Path) -> None:
    checkpoint = saved("llava", tmp_path)
    named = {"decoder_layers": "model.nowhere"}
    plan = plan_for(before_the_decoder, checkpoint, named=named)
    assert plan.because
    assert plan.keys == frozenset(plan.weights.file_of)


def test_a_trace_needs_everything(tmp_path: Path) -> None:
    checkpoint = saved("llava", tmp_path)
    plan = plan_for(everything, checkpoint)
    assert not plan.because
    assert plan.keys == frozenset(plan.weights.file_of)


@pytest.mark.parametrize("needs", [*NEEDED, everything])
def test_needed_and_unneeded_tensors_are_all_tensors(needs: Needs) -> None:
    model = model_of("gemma3")  # its output embedding is tied to the table
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    parts = find_parts(model)
    left_over = unneeded(needs, model, parts)
    assert needs(model, parts) | left_over | {"lm_head.weight"} == {name for name, _ in tensors}
    assert not needs(model, parts) & left_over
    assert "lm_head.weight" not in left_over


def test_the_tensors_outside_a_part() -> None:
    model = model_of("llava")
    inside_it = {name for name, _ in model.named_parameters() if "multi_modal_projector." in name}
    rest = outside("model.multi_modal_projector", model)
    assert inside_it and not inside_it & rest
    assert inside_it | rest >= {name for name, _ in model.named_parameters()}


def test_a_tied_table_is_found_under_either_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = saved("gemma3", tmp_path)
    file = tmp_path / "model.safetensors"
    weights = {key: tensor.clone() for key, tensor in load_file(file).items()}  # they map the file
    key = next(key for key in weights if key.endswith("embed_tokens.weight"))
    table = weights.pop(key)
    save_file({**weights, "lm_head.weight": table}, file, metadata={"format": "pt"})
    plan = plan_for(embedding_tables, checkpoint)
    assert plan.keys == {"lm_head.weight"}
    part = find_parts(load_model(checkpoint, plan, device="cpu")).text_embedding
    assert part is not None
    assert torch.equal(weight_of(part), table)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dtype_that_is_asked_for(dtype: str, tmp_path: Path) -> None:
    checkpoint = saved("llava", tmp_path)
    partial = load_model(
        checkpoint, plan_for(before_the_decoder, checkpoint), device="cpu", dtype=dtype
    )
    full = auto_class(checkpoint.kind, checkpoint.config).from_pretrained(tmp_path, dtype=dtype)
    values = loaded(full)
    assert all(torch.equal(tensor, values[name]) for name, tensor in loaded(partial).items())


# --- a buffer that no checkpoint holds is as a fresh model has it, or the checkpoint is refused ---


Repository = Callable[[str], Path]

IDS = torch.tensor([[5, 9, 12, 30, 7]])


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model as plain PyTorch makes it: nothing of transformers' loading takes part."""
    package = tmp_path_factory.mktemp("plain") / "plain_buffers"
    shutil.copytree(HERE / "buffers", package)
    shutil.copy(HERE / "shared/tiny_blocks.py", package)
    (package / "__init__.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package.parent)
        module: Any = import_module("plain_buffers.modeling_buffers")
    return module.BuffersForCausalLM(module.BuffersConfig(vocab_size=300)).eval()


@pytest.fixture
def folder(repository: Repository, tmp_path: Path) -> Path:
    """The repository, without the buffer that some checkpoints hold."""
    copy = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    tensors = load_file(copy / "model.safetensors")
    del tensors["saved_or_not"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy


def with_trait(folder: Path, trait: str) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"trait": trait}))
    tensors = load_file(folder / "model.safetensors")
    gains = {f"layers.{n}.tables.gain": torch.ones(16) for n in range(2)}
    save_file(tensors | gains, folder / "model.safetensors", {"format": "pt"})
    return folder


@torch.no_grad()
def test_every_buffer_is_that_of_a_fresh_model(folder: Path, fresh: Any) -> None:
    for _ in range(3):
        model = load_model(open_checkpoint(str(folder), trust_remote_code=True))
        for name, buffer in fresh.named_buffers():
            torch.testing.assert_close(model.get_buffer(name), buffer, rtol=0, atol=0, msg=name)
        own, other = model.layers[1].tables, fresh.layers[1].tables
        torch.testing.assert_close(own.attribute, other.attribute, rtol=0, atol=0)
        torch.testing.assert_close(own.listed[0], other.listed[0], rtol=0, atol=0)
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(IDS).logits, fresh(IDS).logits, rtol=0, atol=0)


def test_a_buffer_that_is_saved_is_read(repository: Repository, tmp_path: Path) -> None:
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    saved = torch.tensor([4.0, 3.0, 2.0, 1.0])
    tensors = load_file(folder / "model.safetensors") | {"saved_or_not": saved}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = load_model(open_checkpoint(str(folder), trust_remote_code=True))
    torch.testing.assert_close(model.saved_or_not, saved, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("trait", "words"),
    [
        ("random", r"tables\.drawn.*random numbers"),
        ("of weights", r"tables\.norm.*does not make it"),
    ],
)
def test_a_buffer_that_nobody_can_make_again_is_refused(
    trait: str, words: str, folder: Path
) -> None:
    with pytest.raises(NormprobeError, match=words):
        load_model(open_checkpoint(str(with_trait(folder, trait)), trust_remote_code=True))


@torch.no_grad()
def test_buffers_of_garbage_are_named(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    model = load_model(checkpoint)
    assert changed_buffers(checkpoint, model) == []
    unsaved = [
        (f"{prefix}.{name}", buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set and buffer.is_floating_point()
    ]
    name, buffer = unsaved[0]
    model.added = torch.nn.Module()  # as prepare() of an inputs file adds a tower (VisionZip)
    model.added.register_buffer("places", torch.arange(4.0), persistent=False)
    assert changed_buffers(checkpoint, model) == []
    buffer += 1.0
    assert changed_buffers(checkpoint, model) == [name]


def test_what_is_made_again_of_tensors_without_memory() -> None:
    """An attribute, which a forward needs; a buffer of a module that is not needed stays away."""
    module = nn.Module()
    module.attribute = torch.empty(2, device="meta")
    module.register_buffer("far", torch.empty(2, device="meta"), persistent=False)
    module.register_buffer("near", torch.ones(2), persistent=False)
    far = set() if is_line_5() else {"far"}
    assert set(_unsaved_tensors(module)) == {"attribute", "near"} | far
