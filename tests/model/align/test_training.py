"""Training an aligned model: Trainer, checkpointing, DDP, FSDP2, torch.compile."""

import copy
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainingArguments

from normprobe import (
    GlobalWeightCompensatedLayerNorm,
    align_norms,
    load_aligned,
)


def aligned_model(model_type="llava", **arguments):
    model = tiny_model(model_type)
    align_norms(model, **arguments)
    return model.train()


def training_inputs(model, seed=0):
    inputs = tiny_inputs(model, 2, seed=seed)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    return inputs | {"labels": labels}


def gradients(model):
    return {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


def of_vision_encoder(found):
    return {name: g for name, g in found.items() if "vision_tower" in name}


@pytest.fixture
def single_process(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


CHECKPOINTED = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}


class Samples(torch.utils.data.Dataset):
    """Single samples, all of one length."""

    def __init__(self, model, count=8):
        inputs = [training_inputs(model, seed) for seed in range(count)]
        self.items = [{name: tensor[0] for name, tensor in each.items()} for each in inputs]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def train(folder, model, **arguments):
    settings = TrainingArguments(
        str(folder),
        use_cpu=True,
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **arguments,
    )
    trainer = Trainer(model, settings, train_dataset=Samples(model))
    trainer.train()
    return trainer


def test_a_trainer_run_with_gradient_checkpointing(tmp_path):
    model = aligned_model()
    before = {name: w.detach().clone() for name, w in model.named_parameters()}
    trainer = train(tmp_path, model, **CHECKPOINTED)
    moved = {name for name, w in model.named_parameters() if not torch.equal(w, before[name])}
    assert {"alignment_norm.weight", "alignment_norm.bias"} < moved
    assert any("vision_tower" in name for name in moved)
    trainer.save_model(str(tmp_path / "saved"))
    again = load_aligned(tmp_path / "saved").train()
    inputs = training_inputs(model)
    assert torch.equal(model.eval()(**inputs).logits, again.eval()(**inputs).logits)
    assert torch.equal(again.alignment_norm.weight, model.alignment_norm.weight)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(use_reentrant):
    model = aligned_model()
    inputs = training_inputs(model)
    model(**inputs).loss.backward()
    plain = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        model.enable_input_require_grads()
    model(**inputs).loss.backward()
    checkpointed = gradients(model)
    assert of_vision_encoder(plain)
    for name in plain.keys() & checkpointed.keys():
        torch.testing.assert_close(checkpointed[name], plain[name], rtol=1e-4, atol=1e-6)
    if not use_reentrant:
        assert plain.keys() == checkpointed.keys()


def test_a_norm_inside_a_checkpointed_block():
    norm = GlobalWeightCompensatedLayerNorm(8)
    nn.init.constant_(norm.weight, 2.0**-5)
    block = nn.Sequential(nn.Linear(8, 8), norm)
    x = torch.randn(3, 8, requires_grad=True)
    seen = []
    for run in (block, lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)):
        x.grad = None
        run(x).pow(2).sum().backward()
        seen.append(x.grad.clone())
    assert torch.equal(*seen)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3", "idefics3"])
def test_compensation_scales_the_gradient_of_everything_upstream(model_type):
    """The decoder's gradients stay; projector and vision encoder get 1 / mean |gain|."""
    model = tiny_model(model_type).double()
    inputs = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in training_inputs(model).items()
    }
    seen = {}
    for compensate in (False, True):
        norm = align_norms(model, 1.0, compensate=compensate)
        norm.weight.data.fill_(2.0**-4)
        model.train().zero_grad()
        model(**inputs).loss.backward()
        seen[compensate] = gradients(model)
    upstream = ("vision", "visual", "projector", "connector")
    found = 0
    for name, plain in seen[False].items():
        factor = 16 if any(part in name for part in upstream) else 1
        found += factor == 16 and bool(plain.abs().max() > 0)
        torch.testing.assert_close(seen[True][name], factor * plain, rtol=1e-9, atol=1e-12)
    assert found > 4


def test_ddp_of_one_process_gives_the_same_gradients(single_process):
    model = aligned_model()
    inputs = training_inputs(model)
    model(**inputs).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    wrapped(**inputs).loss.backward()
    found = gradients(model)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)


def test_fsdp2_of_one_process_gives_the_same_gradients(single_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = aligned_model()
    twin = copy.deepcopy(model)
    inputs = training_inputs(model)
    model(**inputs).loss.backward()
    expected = gradients(model)
    mesh = init_device_mesh("cpu", (1,))
    for layer in twin.model.language_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(twin.model.multi_modal_projector, mesh=mesh)
    fully_shard(twin, mesh=mesh)
    twin(**inputs).loss.backward()
    found = {name: gradient.full_tensor() for name, gradient in gradients(twin).items()}
    assert {"alignment_norm.weight", "alignment_norm.bias"} < found.keys()
    assert of_vision_encoder(found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)


def _trainer_process(rank, folder, shard):
    """One of two processes: the Trainer with DDP, or a step with FSDP2."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": (folder / "port").read_text(),
    }
    torch.set_num_threads(1)
    model = aligned_model()
    if shard:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
        inputs = training_inputs(model)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        model(**inputs).loss.backward()
        found = {name: gradient.full_tensor() for name, gradient in gradients(model).items()}
    else:
        # The last layer of the encoder is unused: the projector reads the one before.
        train(folder, model, ddp_find_unused_parameters=True, **CHECKPOINTED)
        found = {name: w.detach().clone() for name, w in model.named_parameters()}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def _spawn(tmp_path, shard):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(probe.getsockname()[1]))
    mp.spawn(_trainer_process, (tmp_path, shard), nprocs=2)
    return [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
def test_a_trainer_run_with_ddp_of_two_processes(tmp_path):
    first, second = _spawn(tmp_path, shard=False)
    start = dict(aligned_model().named_parameters())
    assert all(torch.equal(first[name], second[name]) for name in first)
    moved = {name for name in first if not torch.equal(first[name], start[name])}
    assert {"alignment_norm.weight", "alignment_norm.bias"} < moved
    assert any("vision_tower" in name for name in moved)


@pytest.mark.slow
def test_fsdp2_of_two_processes_gives_the_gradients_of_one(tmp_path):
    model = aligned_model()
    model(**training_inputs(model)).loss.backward()
    for found in _spawn(tmp_path, shard=True):
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param(
            "inductor",
            marks=pytest.mark.skipif(
                not (shutil.which("g++") or shutil.which("clang++")) or sys.platform == "win32",
                reason="torch.compile needs a C++ compiler",
            ),
        ),
    ],
)
def test_torch_compile_traces_the_layer_whole(backend):
    norm = GlobalWeightCompensatedLayerNorm(16)
    nn.init.constant_(norm.weight, 0.03)
    layer = nn.Sequential(nn.Linear(4, 16), norm)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x, direction = torch.randn(5, 4), torch.randn(5, 16)
    seen = []
    for run in (layer, compiled):
        layer.zero_grad()
        # Not the norm: a norm layer holds it, so that its gradients are rounding errors.
        (run(x) * direction).sum().backward()
        seen.append(gradients(layer))
    for name in seen[0]:
        torch.testing.assert_close(seen[1][name], seen[0][name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_torch_compile_of_the_projector_keeps_the_norm():
    model = aligned_model()
    projector = model.model.multi_modal_projector
    features = torch.randn(1, 3, projector.linear_1.in_features)
    expected = projector(features)
    compiled = torch.compile(projector, backend="aot_eager")
    torch.testing.assert_close(compiled(features), expected, rtol=1e-5, atol=1e-6)
