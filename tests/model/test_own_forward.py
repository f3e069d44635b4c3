"""Models that a function runs: whatever makes the layers run is a forward."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from model.test_decoder_rows import BY_HAND, FULL, assert_right, groups_of, pictures
from support.plain_modules import SPECIAL, Plain, made
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn
from transformers import BatchEncoding

from normprobe import NormprobeError, Probe, schema
from normprobe.hooks import lock_of
from normprobe.model.own_forward import captured, run_by
from normprobe.tidy import select

NAMED = {**BY_HAND, "projector": "connector"}
EVERYWHERE = groups_of(FULL, torch.ones_like(FULL))


class InParts(Plain):
    """As DeepSeek-VL: rows are prepared by one method, and the layers are run by another."""

    def forward(self) -> Tensor:
        raise NotImplementedError

    def prepare(self, ids: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))
        return self.words(ids).masked_scatter((ids == self.place).unsqueeze(-1), rows)


def in_parts(module: InParts, ids: Tensor, image: Tensor) -> Tensor:
    return module.think(module.prepare(ids, image), None)


class Expected(nn.Module):
    """What ``assert_right`` asks for."""

    def __init__(self, module: InParts) -> None:
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        return in_parts(self.module, ids, image)

    @property
    def seen(self) -> list[np.ndarray]:
        return self.module.seen


@pytest.mark.parametrize("named", [None, NAMED])
@pytest.mark.parametrize("given", ["forward", "tuple", "closure"])
def test_methods_that_are_called_one_by_one(given: str, named: dict[str, str] | None) -> None:
    module, image = made(InParts), pictures(2)
    ids, how = FULL, {"named": named, "special_token_ids": SPECIAL}
    if given == "closure":
        run = Probe(module, **how).layers(lambda m: m.think(m.prepare(ids, image), None))
    else:
        inputs = {"ids": ids, "image": image} if given == "forward" else (ids, image)
        run = Probe(module, forward=in_parts, **how).layers(inputs)
    expected = Expected(module)
    assert_right(expected, {"ids": ids, "image": image}, EVERYWHERE, run.table)
    assert run.record["model"] == "InParts"
    assert not run.record.get("doubts")
    with pytest.raises(NotImplementedError):
        module()


def test_a_language_model_that_is_called_by_itself() -> None:
    """The states are those of the whole model, which a text alone has."""
    model, inputs = tiny_model("llama"), tiny_inputs(tiny_model("llama"))
    ids = inputs["input_ids"]
    whole = Probe(model, special_token_ids=SPECIAL_IDS).layers({"input_ids": ids})
    part = Probe(model, special_token_ids=SPECIAL_IDS).layers(lambda m: m.model(input_ids=ids))
    for run in (whole, part):
        assert not run.record.get("doubts")
    norms, own = (select(run.table, "norm") for run in (whole, part))
    assert np.allclose(norms["mean"], own["mean"], rtol=1e-6)


def test_pixels_that_a_forward_holds_are_asked_for() -> None:
    module, image = made(InParts), pictures(2)
    probe = Probe(module, forward=lambda m, ids: in_parts(m, ids, image), named=NAMED)
    with pytest.raises(NormprobeError, match="vision side of InParts runs, and no input") as raised:
        probe.layers({"ids": FULL})
    assert "among the inputs" in raised.value.remedy


def test_a_function_that_holds_no_tensor_is_refused() -> None:
    module, ids, image = made(InParts), FULL, pictures(2)
    for function in (partial(in_parts, ids=ids, image=image), lambda m: None):
        with pytest.raises(NormprobeError, match="does not call InParts") as raised:
            Probe(module, named=NAMED).layers(function)
        assert "Probe(model, forward=" in raised.value.remedy


def test_a_model_that_is_run_by_a_function_is_the_same_model() -> None:
    module = made(InParts)
    other = run_by(module, in_parts)
    assert isinstance(other, InParts)
    assert [*other.named_parameters()] == [*module.named_parameters()]
    assert lock_of(other) is lock_of(module)
    assert torch.equal(
        other(FULL, pictures(2), use_cache=False), in_parts(module, FULL, pictures(2))
    )
    again = run_by(other, lambda m, ids: ids)
    assert torch.equal(again(FULL), FULL)
    other.eval()
    assert not module.training
    with pytest.raises(NormprobeError, match="takes no model"):
        run_by(module, lambda: None)
    module.forward = lambda: None  # type: ignore[method-assign]
    with pytest.raises(NormprobeError, match="replaced already"):
        run_by(module, in_parts)


def test_what_a_function_holds_is_found_by_its_names() -> None:
    image, other = pictures(1), {"ids": FULL}
    held, forward = captured(lambda m: m(image, other["ids"], WORDS))
    assert held.keys() == {"image", "other", "WORDS"}
    given = forward(lambda *args: args, image=image + 1, WORDS=WORDS + 1)
    assert [torch.equal(a, b) for a, b in zip(given, (image + 1, FULL, WORDS + 1), strict=True)]


def test_what_a_tokenizer_returned_keeps_its_attributes() -> None:
    """Those of a mapping are read as ``held.input_ids``, too."""
    held_ids = BatchEncoding({"input_ids": FULL})
    held, forward = captured(lambda m: m(held_ids.input_ids, held_ids["input_ids"]))
    given = forward(lambda *args: args, **{name: dict(value) for name, value in held.items()})
    assert all(torch.equal(ids, FULL) for ids in given)
    module, image = made(InParts), pictures(2)
    how = {"named": NAMED, "special_token_ids": SPECIAL}
    run = Probe(module, **how).layers(lambda m: m.think(m.prepare(held_ids.input_ids, image), None))
    assert_right(Expected(module), {"ids": FULL, "image": image}, EVERYWHERE, run.table)


def test_a_function_may_switch_the_model_to_training_while_it_runs() -> None:
    """As BAGEL, which reads a prompt in one pass while it trains alone."""
    module, image = made(InParts), pictures(2)

    def trained(module: InParts, ids: Tensor, image: Tensor) -> Tensor:
        module.blocks.train()
        return in_parts(module, ids, image)

    how = {"named": NAMED, "special_token_ids": SPECIAL}
    run = Probe(module, forward=trained, **how).layers({"ids": FULL, "image": image})
    assert_right(Expected(module), {"ids": FULL, "image": image}, EVERYWHERE, run.table)
    assert not run.record.get("doubts")


WORDS = torch.tensor([[1, 8, 2]])


class Outside(Plain):
    """As openpi: an outer loop calls what is inside the layers, and never a layer."""

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        for block in self.blocks:
            read = block.norm1(x)
            x = x + block.attend(read, read, read, need_weights=False)[0]
            x = x + block.mlp(block.norm2(x))
        return x


def layer_by_layer(module: Outside, tokens: Tensor, image: Tensor) -> Tensor:
    rows = module.connector(module.vision(image))
    x = module.words(tokens).masked_scatter((tokens == module.place).unsqueeze(-1), rows)
    return Plain.think(module, x, None)


def test_layers_that_are_never_called_are_refused_with_the_way_out() -> None:
    module, inputs = made(Outside), {"tokens": FULL, "image": pictures(2)}
    with pytest.raises(NormprobeError, match=r"ends without a call of blocks\.0") as raised:
        Probe(module, named=NAMED).layers(inputs)
    assert "forward=" in raised.value.remedy
    run = Probe(module, forward=layer_by_layer, named=NAMED, special_token_ids=SPECIAL)
    table = run.layers(inputs).table
    with torch.no_grad():
        layer_by_layer(module, **inputs)
    norms = [np.linalg.norm(state, axis=-1)[EVERYWHERE == schema.VISUAL] for state in module.seen]
    found = select(table[table["group"] == schema.VISUAL], "norm")["mean"]
    assert np.allclose(found, [each.mean() for each in norms], rtol=1e-6)


def test_an_inputs_file_says_how_the_layers_are_run(tmp_path: Path) -> None:
    file = tmp_path / "inputs.py"
    file.write_text(
        "def forward(model, ids, image):\n    return model.think(model.prepare(ids, image), None)\n"
    )
    module, image = made(InParts), pictures(2)
    how = {"named": NAMED, "special_token_ids": SPECIAL}
    run = Probe(module, inputs=str(file), **how).layers({"ids": FULL, "image": image})
    assert_right(Expected(module), {"ids": FULL, "image": image}, EVERYWHERE, run.table)
