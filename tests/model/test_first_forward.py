"""Decoders that would be measured wrongly: told by one forward, whatever measures them."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from model.test_decoder_rows import FULL, pictures
from support.flat import flat
from support.plain_modules import EYE, WIDTH, Block, Eye, Plain, made
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn

from normprobe import NormprobeError, Probe, find_parts
from normprobe.model.first_forward import _is, _unlike, check_forward
from normprobe.model.measured_model import MeasuredModel
from normprobe.run import Run

pytestmark = pytest.mark.usefixtures("unrendered")


@pytest.fixture
def model() -> Any:
    return copy.deepcopy(tiny_model("llava"))


class Running(nn.ModuleList):
    """A list of layers that the decoder runs in another way than one after the other."""

    how: Callable[[list[nn.Module]], list[Any]]

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self.how([*found]) if isinstance(index, slice) else found


def run_so(model: Any, how: Callable[[list[nn.Module]], list[Any]], layers: Any = None) -> None:
    stack = Running(layers or model.model.language_model.layers)
    stack.how = how
    model.model.language_model.layers = stack


def measured(model: Any) -> MeasuredModel:
    return MeasuredModel(model, find_parts(model), SPECIAL_IDS)


class Decoy(nn.Module):
    """A layer that returns another tensor of the same shape before its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, state: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
        left = self.layer(state, **named)
        return torch.ones_like(left), left

    def state(self, state: Tensor, **named: Any) -> Tensor:
        left: Tensor = self(state, **named)[1]
        return left


def looped(layers: list[nn.Module]) -> list[nn.Module]:
    return [layers[0], layers[1], layers[1], layers[2]]


def test_a_layer_that_is_looped_over_is_refused(model: Any) -> None:
    run_so(model, looped)
    with pytest.raises(
        NormprobeError, match=r"decoder layer 2 of .* runs 2 times in one forward"
    ) as told:
        Probe(model).layers(tiny_inputs(model))
    assert told.value.remedy.startswith("layers that are looped over are not supported; `norm")


def test_two_passes_of_the_whole_stack_are_refused(model: Any) -> None:
    run_twice(model.model.language_model)
    with pytest.raises(NormprobeError, match="runs 2 times in one forward") as told:
        Probe(model).layers(tiny_inputs(model))
    assert told.value.remedy.startswith("pass inputs that it reads in one pass")


def test_a_layer_that_is_listed_twice_is_refused(model: Any) -> None:
    layers = model.model.language_model.layers
    layers[2] = layers[0]
    with pytest.raises(NormprobeError, match="decoder layer 3 is layer 1"):
        Probe(model).layers(tiny_inputs(model))


def test_a_decoy_in_front_of_the_state_is_refused(model: Any) -> None:
    decoys = [Decoy(layer) for layer in model.model.language_model.layers]
    run_so(model, lambda layers: [layer.state for layer in layers], decoys)
    with pytest.raises(NormprobeError, match="layer 1 returns several states, and the first"):
        check_forward(measured(model), tiny_inputs(model))


def test_a_state_that_changes_between_layers_is_a_doubt(model: Any) -> None:
    def scaled(layer: nn.Module) -> Any:
        return lambda state, **named: layer(1.5 * state, **named)

    run_so(model, lambda layers: [layers[0], scaled(layers[1]), layers[2]])
    run = Probe(model).layers(tiny_inputs(model))
    (doubt,) = run.record["doubts"]
    assert "no token enters decoder layer 2 as it left the layer before" in doubt


@pytest.mark.parametrize(
    ("used", "generator"), [(True, None), (False, None), (True, torch.Generator())]
)
def test_random_numbers_are_a_doubt_where_they_change_a_state(
    used: bool, generator: torch.Generator | None, model: Any
) -> None:
    def drawing(layer: nn.Module) -> Any:
        def forward(state: Tensor, **named: Any) -> Tensor:
            drawn = torch.randn(state.shape, generator=generator)
            return layer(state + 0.5 * drawn if used else state, **named)

        return forward

    first = model.model.language_model.layers[0]
    first.forward = drawing(copy.deepcopy(first))
    run = Probe(model).layers(tiny_inputs(model))
    told = [doubt for doubt in run.record.get("doubts", []) if "draws random numbers" in doubt]
    assert len(told) == used
    assert not used or "of the mean norm behind layer 1" in told[0]


def test_a_hook_that_counts_its_calls_is_a_doubt(model: Any) -> None:
    calls: list[None] = []

    def louder(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        calls.append(None)
        return output * len(calls)

    model.model.language_model.layers[1].mlp.register_forward_hook(louder)
    (doubt,) = Probe(model).layers(tiny_inputs(model)).record["doubts"]
    assert "draws random numbers, counts its calls or changes itself" in doubt
    assert "of the mean norm behind layer 2" in doubt


@pytest.mark.parametrize("steady", [True, False])
def test_what_a_projector_draws_is_a_doubt_of_what_enters_the_decoder(
    steady: bool, model: Any
) -> None:
    """A generator of its own, which nothing else knows, and no layer runs."""
    own = random.Random(0)
    model.model.multi_modal_projector = Around(
        model.model.multi_modal_projector, lambda rows: rows * (1 if steady else 1 + own.random())
    )
    doubts = Probe(model).interface(tiny_inputs(model)).record.get("doubts", [])
    told = [doubt for doubt in doubts if "counts its calls or changes itself" in doubt]
    assert len(told) == (not steady)
    assert steady or "of the mean norm at the decoder input" in told[0]


class HeldApart(nn.Module):
    """What a plain list holds runs, or another module of the same kind does."""

    def __init__(self, inner: nn.Module, runs: bool) -> None:
        super().__init__()
        self.held = {"tower": inner} if runs else [nn.Linear(2, 2)]
        self.other = nn.Identity() if runs else inner
        self.runs = runs

    def forward(self, rows: Any) -> Any:
        return self.held["tower"](rows) if self.runs else self.other(rows)


def test_a_module_around_the_model_s_own_layers_is_no_doubt(model: Any) -> None:
    """PIIP runs its blocks by wrappers that a plain list holds."""
    projector = model.model.multi_modal_projector
    wrapped = HeldApart(nn.Sequential(projector), True)
    wrapped.own = projector
    model.model.multi_modal_projector = wrapped
    doubts = Probe(model).interface(tiny_inputs(model)).record.get("doubts", [])
    assert not [doubt for doubt in doubts if "no module of the model to PyTorch" in doubt]


@pytest.mark.parametrize("runs", [True, False])
def test_a_module_that_a_plain_list_holds_and_that_runs_is_a_doubt(runs: bool, model: Any) -> None:
    """As towers of LongVU and GPT4RoI: no stage shows their states."""
    projector = model.model.multi_modal_projector
    model.model.multi_modal_projector = HeldApart(projector, runs)
    doubts = Probe(model).interface(tiny_inputs(model)).record.get("doubts", [])
    told = [doubt for doubt in doubts if "no module of the model to PyTorch" in doubt]
    assert len(told) == runs
    assert not told or "model.multi_modal_projector.held['tower'] is a Llava" in told[0]


def test_rows_that_are_drawn_are_a_doubt_and_no_crash() -> None:
    """As LaVIT, which keeps the patches that a draw tells it to."""
    rows = [torch.ones(2, count) for count in (3, 4)]
    assert _unlike(rows[0], rows[0], "behind layer 1") == ""
    told = _unlike(*rows, "behind layer 1")
    assert "two forwards of one batch have 3 and 4 rows behind layer 1" in told


def test_random_numbers_of_a_layers_own_are_a_doubt(model: Any) -> None:
    """A generator of its own, which nothing else knows."""
    layers, own = model.model.language_model.layers, random.Random(0)
    layers[0] = Around(layers[0], lambda state: state * (1 + own.random()))
    (doubt,) = Probe(model).layers(tiny_inputs(model)).record["doubts"]
    assert "draws random numbers, counts its calls or changes itself" in doubt


@pytest.mark.parametrize(("begin", "end", "told"), [(0, 3, 3), (2, 0, 2), (0, 1, 0), (0, 0, 0)])
def test_padding_without_a_mask_is_a_doubt(begin: int, end: int, told: int, model: Any) -> None:
    inputs = tiny_inputs(model)
    ids = inputs["input_ids"]
    pad, word = 7, ids[:, -1:]
    edges = (ids.new_full((1, begin), pad), ids.new_full((1, end), pad))
    without = {
        "pixel_values": inputs["pixel_values"],
        "input_ids": torch.cat([edges[0], torch.where(ids == pad, word, ids), edges[1]], dim=1),
    }
    found = measured(model)
    found.padding_id = pad
    check_forward(found, without)
    assert (f"{told} tokens at the edges" in found.doubt) == bool(told)
    assert bool(found.doubt) == bool(told)
    masked = measured(model)
    masked.padding_id = pad
    mask = torch.ones_like(without["input_ids"])
    check_forward(masked, {**without, "attention_mask": mask})
    assert masked.doubt == ""


def test_the_head_reads_one_token_and_the_forward_runs_once(model: Any) -> None:
    """Logits of all tokens may need more memory than all else."""
    shapes = []
    model.lm_head.register_forward_hook(lambda _, args, logits: shapes.append(logits.shape))
    found, inputs = measured(model), tiny_inputs(model, batch_size=2)
    for _ in range(2):
        check_forward(found, inputs)
    assert [shape[1] for shape in shapes] == [1]


def test_rows_that_are_left_out_between_layers_are_refused(model: Any) -> None:
    """As VideoChat-Flash compresses them; the hook stands for a loop that does so."""
    layer = model.model.language_model.layers[1]
    layer.register_forward_pre_hook(lambda _, args: (args[0][:, :-2], *args[1:]))
    rows = tiny_inputs(model)["input_ids"].numel()
    told = f"{rows} rows leave decoder layer 1, and {rows - 2} enter layer 2"
    with pytest.raises(NormprobeError, match=told) as raised:
        Probe(model).layers(tiny_inputs(model))
    assert "switch that off" in raised.value.remedy


def test_layers_of_two_widths_are_refused(model: Any) -> None:
    """HaploVL widens its rows between two of them."""
    layer = model.model.language_model.layers[1]
    layer.register_forward_pre_hook(lambda _, args: (args[0][..., :-2], *args[1:]))
    size = model.config.text_config.hidden_size
    told = f"decoder layer 2 takes rows of size {size - 2}, and layer 1 hands over {size}"
    with pytest.raises(NormprobeError, match=told) as raised:
        Probe(model).layers(tiny_inputs(model))
    assert '"decoder_layers": "half"' in raised.value.remedy


def test_a_forward_that_fails_is_told_by_the_measurement(model: Any) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no such shape")

    model.model.language_model.layers[1].forward = fail
    found = measured(model)
    check_forward(found, tiny_inputs(model))
    assert not found.forward_seen
    with pytest.raises(NormprobeError, match="no such shape"):
        Probe(model).layers(tiny_inputs(model))


def replace_embedding(language: Any) -> None:
    table = nn.Embedding(*language.embed_tokens.weight.shape)
    language.embed_tokens = table


def replace_layer(language: Any) -> None:
    layer = copy.deepcopy(language.layers[1])
    with torch.no_grad():
        layer.mlp.down_proj.weight.mul_(5)
    language.layers[1] = layer


def delete_layer(language: Any) -> None:
    del language.layers[2]


def append_layer(language: Any) -> None:
    layer = copy.deepcopy(language.layers[0])
    layer.self_attn.layer_idx = len(language.layers)
    language.layers.append(layer)
    language.config.num_hidden_layers = len(language.layers)
    if getattr(language.config, "layer_types", None):
        language.config.layer_types = [*language.config.layer_types, "full_attention"]


def norms(run: Run) -> np.ndarray:
    """Mean norms of all cells."""
    return flat(run.table)["norm_mean"].to_numpy()


@pytest.mark.parametrize(
    "change", [replace_embedding, replace_layer, delete_layer, append_layer, "projector"]
)
def test_a_probe_that_is_used_again_finds_what_was_replaced(change: Any, model: Any) -> None:
    probe, inputs = Probe(model), tiny_inputs(model)
    before = norms(probe.layers(inputs))
    if change == "projector":
        projector = copy.deepcopy(model.model.multi_modal_projector)
        with torch.no_grad():
            projector.linear_2.weight.mul_(9)
        model.model.multi_modal_projector = projector
    else:
        change(model.model.language_model)
    again, anew = norms(probe.layers(inputs)), norms(Probe(model).layers(inputs))
    assert len(anew) != len(before) or not np.array_equal(anew, before)
    np.testing.assert_array_equal(again, anew)
    interface = norms(probe.interface(inputs))
    np.testing.assert_array_equal(interface, norms(Probe(model).interface(inputs)))


def flip_tokens(language: Any) -> None:
    language.layers[1].register_forward_hook(lambda module, args, output: output.flip(1))


def draw(language: Any) -> None:
    noisy = language.layers[1].mlp
    noisy.register_forward_hook(lambda module, args, output: output + torch.randn_like(output))


def run_twice(language: Any) -> None:
    """As guidance runs it, with another prompt the second time."""
    once = language.forward

    def twice(*args: Any, **named: Any) -> Any:
        once(*args, **named)
        return once(*args, **named)

    language.forward = twice


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (flip_tokens, "changes the order of its tokens"),
        (draw, "draws random numbers"),
        (run_twice, "runs 2 times in one forward"),
    ],
)
def test_a_probe_that_is_used_again_looks_at_the_forward_again(
    change: Any, said: str, model: Any
) -> None:
    probe, inputs = Probe(model), tiny_inputs(model)
    assert "doubts" not in probe.layers(inputs).record
    change(model.model.language_model)
    try:
        told = " ".join(probe.layers(inputs).record.get("doubts", []))
    except NormprobeError as error:
        told = error.problem
    assert said in told


def test_a_doubt_goes_with_its_cause(model: Any) -> None:
    probe, inputs = Probe(model), tiny_inputs(model)
    layer = model.model.language_model.layers[1]
    hook = layer.register_forward_hook(lambda module, args, output: output * (1 + random.random()))
    assert probe.layers(inputs).record["doubts"]
    hook.remove()
    assert "doubts" not in probe.layers(inputs).record


def test_a_norm_that_was_replaced_inside_a_layer_is_measured(model: Any) -> None:
    probe, inputs = Probe(model), tiny_inputs(model)
    probe.layers(inputs)
    layer = model.model.language_model.layers[1]
    layer.input_layernorm = copy.deepcopy(layer.input_layernorm)
    again, anew = (flat(each.layers(inputs).table) for each in (probe, Probe(model)))
    assert again["attention_input_norm_mean"].iloc[-1] > 0
    np.testing.assert_array_equal(
        again["attention_input_norm_mean"], anew["attention_input_norm_mean"]
    )


@pytest.mark.parametrize(
    "noise",
    [
        lambda state: state * torch.randint(0, 2, state.shape).mul(2).sub(1),
        lambda state: state.roll(int(torch.randint(1, 16, ())), dims=-1),
    ],
    ids=["signs", "dimensions"],
)
def test_noise_that_keeps_the_norms_is_a_doubt(
    noise: Callable[[Tensor], Tensor], model: Any
) -> None:
    layers = model.model.language_model.layers
    layers[-1].register_forward_hook(lambda module, args, output: noise(output))
    (doubt,) = Probe(model).layers(tiny_inputs(model)).record["doubts"]
    assert f"of the mean norm behind layer {len(layers)}" in doubt


def test_a_cache_in_the_inputs_stays_as_it_is(model: Any) -> None:
    inputs = tiny_inputs(model)
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    length = cache.get_seq_length()
    ids = torch.tensor([[9, 11, 12]])
    more = {
        "input_ids": ids,
        "attention_mask": torch.ones(1, length + 3, dtype=torch.long),
        "past_key_values": cache,
    }
    probe = Probe(model)
    first, second = (norms(probe.layers(more)) for _ in range(2))
    assert cache.get_seq_length() == length
    np.testing.assert_array_equal(first, second)


def test_an_input_that_cannot_be_copied_is_refused(model: Any) -> None:
    class Own:
        def __deepcopy__(self, _: Any) -> Any:
            raise TypeError("not twice")

    with pytest.raises(NormprobeError, match=r"past_key_values \(Own\) cannot be copied"):
        Probe(model).layers({**tiny_inputs(model), "past_key_values": Own()})


def test_an_input_that_is_missing_is_told_in_one_line() -> None:
    """What Qwen2.5-VL raises without the grid of its patches is an AttributeError."""
    model = tiny_model("qwen2_5_vl")
    inputs = {n: value for n, value in tiny_inputs(model).items() if n != "image_grid_thw"}
    with pytest.raises(NormprobeError, match="fails on these inputs"):
        Probe(model).layers(inputs)


class Around(nn.Module):
    """A layer, and what is made of its state."""

    def __init__(self, layer: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.change = layer, change

    def forward(self, state: Tensor, **named: Any) -> Tensor:
        return self.change(self.layer(state, **named))


def flipped(state: Tensor) -> Tensor:
    return state.flip(1)


def two_swapped(state: Tensor) -> Tensor:
    order = torch.arange(state.shape[1])
    order[[2, 5]] = order[[5, 2]]
    return state[:, order]


@pytest.mark.parametrize("change", [flipped, two_swapped])
@pytest.mark.parametrize("at", [1, 3])
def test_a_layer_that_returns_tokens_in_another_order_is_refused(
    model: Any, at: int, change: Callable[[Tensor], Tensor]
) -> None:
    layers = model.model.language_model.layers
    layers[at - 1] = Around(layers[at - 1], change)
    said = rf"changes the order of its tokens in decoder layer {at}: row \d+ leaves as row \d+"
    with pytest.raises(NormprobeError, match=said):
        Probe(model).layers(tiny_inputs(model))


def test_a_hook_that_does_so_is_refused(model: Any) -> None:
    layer = model.model.language_model.layers[1]
    layer.register_forward_hook(lambda module, args, output: flipped(output))
    with pytest.raises(NormprobeError, match="the order of its tokens in decoder layer 2"):
        check_forward(measured(model), tiny_inputs(model))


def test_a_stack_that_does_so_between_layers_is_refused(model: Any) -> None:
    layer = model.model.language_model.layers[2]
    change = lambda module, args: (flipped(args[0]), *args[1:])  # noqa: E731
    layer.register_forward_pre_hook(change)
    layer.register_forward_hook(lambda module, args, output: output)
    with pytest.raises(NormprobeError, match="order of its tokens between decoder layers 2 and 3"):
        check_forward(measured(model), tiny_inputs(model))


@pytest.mark.parametrize("change", [lambda state: state, lambda state: 3 * state])
def test_own_layers_that_keep_the_order_are_measured(
    model: Any, change: Callable[[Tensor], Tensor]
) -> None:
    layers = model.model.language_model.layers
    layers[0] = Around(layers[0], change)
    found = measured(model)
    check_forward(found, tiny_inputs(model))
    assert found.forward_seen


class Beside(nn.Module):
    """As engines write layers: the update is handed on beside what it is added to."""

    def __init__(self, layer: nn.Module, *, last: bool) -> None:
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, state: Any, **named: Any) -> Any:
        state = sum(state) if isinstance(state, tuple) else state
        left = self.layer(state, **named)
        return left if self.last else (left - state, state)


def test_a_state_that_holds_nan_is_itself() -> None:
    """Broken states are measured, and told as such: their layers hand on one state."""
    state = torch.tensor([[1.0, torch.nan, torch.inf]])
    assert _is(state.clone(), state)
    assert not _is(state + 1, state)
    assert not _is(state.nan_to_num(), state)


def test_an_update_that_is_handed_on_beside_its_residual_is_refused(model: Any) -> None:
    """Hooks would read the update as the state."""
    inputs = tiny_inputs(model)
    logits = model(**inputs).logits
    layers = model.model.language_model.layers
    for place, layer in enumerate([*layers]):
        layers[place] = Beside(layer, last=place + 1 == len(layers))
    torch.testing.assert_close(model(**inputs).logits, logits)
    with pytest.raises(NormprobeError, match="layer 1 hands two states on to layer 2") as refusal:
        Probe(model).layers(inputs)
    assert refusal.value.remedy.startswith("put a module around each layer")


class OfTheFirst(nn.Module):
    """As RWKV-7: values of the first layer go through all others, beside the state."""

    def __init__(self, layer: nn.Module, *, last: bool, drifts: bool) -> None:
        super().__init__()
        self.layer, self.last, self.drifts = layer, last, drifts

    def forward(self, given: Any, *_: Any) -> Any:
        state, values = given if isinstance(given, tuple) else (given, given + 1)
        left = self.layer(state + 0 * values)
        return left if self.last else (left, values + self.drifts)


class InTurn(Plain):
    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("drifts", [False, True])
def test_values_of_the_first_layer_that_all_read_are_no_second_state(drifts: bool) -> None:
    module = made(InTurn)
    inputs = {"tokens": FULL, "image": pictures(2)}
    parts = {"vision_encoder": "vision", "decoder_layers": "blocks", "text_embedding": "words"}
    expected = Probe(module, named=parts).layers(inputs).wide("norm", "mean")
    last = len(module.blocks) - 1
    module.blocks = nn.ModuleList(
        OfTheFirst(block, last=place == last, drifts=drifts)
        for place, block in enumerate(module.blocks)
    )
    if drifts:
        with pytest.raises(NormprobeError, match="layer 1 hands two states on to layer 2"):
            Probe(module, named=parts).layers(inputs)
        return
    found = Probe(module, named=parts).layers(inputs).wide("norm", "mean")
    np.testing.assert_array_equal(found, expected)


class WithTables(Block):
    """Takes what only the model computes, as rotary tables."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, tables: Tensor) -> Tensor:
        return super().forward(x + 0 * tables, mask)


class PostNorm(WithTables):
    def forward(self, x: Tensor, mask: Tensor | None = None, *, tables: Tensor) -> Tensor:
        x = self.norm1(x + self.attend(x, x, x, need_weights=False)[0] + 0 * tables)
        return self.norm2(x + self.mlp(x))


class Tabled(Plain):
    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        tables = torch.ones(x.shape[1], 1)
        for block in self.blocks:
            x = block(x, tables=tables)
        return x


@pytest.mark.parametrize(("kind", "placement"), [(WithTables, "pre: "), (PostNorm, "post: ")])
def test_where_norms_stand_is_seen_on_the_first_batch(kind: type[Block], placement: str) -> None:
    """Made-up tokens do not run these layers (nanoVLM)."""
    module = made(Tabled)
    module.blocks = nn.ModuleList(kind(WIDTH) for _ in range(3)).eval()
    parts = {"vision_encoder": "vision", "decoder_layers": "blocks", "text_embedding": "words"}
    run = Probe(module, named=parts).layers({"tokens": FULL, "image": pictures(2)})
    assert run.record["norm_placement"].startswith(placement)


class TwoEyes(Plain):
    """As MoCHA: another encoder reads the picture, and its rows are added to the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.vision_encoder, self.second_encoder = self.vision, Eye()
        self.projector, self.second_projector = self.connector, nn.Linear(EYE, WIDTH)
        del self.vision, self.connector

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.projector(self.vision_encoder(image))
        rows = rows + self.second_projector(self.second_encoder(image))
        x = self.words(tokens)
        return self.think(x.masked_scatter((tokens == self.place).unsqueeze(-1), rows), None)


@pytest.mark.parametrize("named", [{}, {"projector": "projector"}])
def test_encoders_and_projectors_beside_those_that_were_found_are_in_doubt(
    named: dict[str, str],
) -> None:
    module = made(TwoEyes)
    ids = torch.tensor([[1, *[Plain.place] * 4, 5, 9, 7]])
    inputs = {"tokens": ids, "image": torch.randn(1, 3, 8, 8)}
    how = {"vision_encoder": "vision_encoder", "decoder_layers": "blocks", "behind": "adds others"}
    run = Probe(module, named={**how, **named}, special_token_ids=[1]).interface(inputs)
    told = " ".join(run.record["doubts"])
    assert "second_encoder reads pixels beside vision_encoder: no stage shows their states" in told
    unsure = "second_projector is taken for the projector, and projector may be it as well"
    assert (unsure in told) == (not named)


class Fused(Plain):
    """As Xoron: blocks that fuse picture and words run before a language model."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList(Block(WIDTH) for _ in range(3))
        self.llm = nn.ModuleDict({"words": self.words, "layers": layers})
        del self.words

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        place = (tokens == self.place).unsqueeze(-1)
        x = self.llm["words"](tokens).masked_scatter(place, self.connector(self.vision(image)))
        for block in [*self.blocks, *self.llm["layers"]]:
            x = block(x)
        return x


def test_a_larger_list_beside_the_text_table_is_a_doubt_of_what_enters() -> None:
    inputs = {"tokens": FULL, "image": pictures(2)}
    names = {"vision_encoder": "vision", "projector": "connector", "text_embedding": "llm.words"}
    told = "llm.layers lies beside llm.words and is larger than the decoder layers"
    for kept, doubted in ((2, True), (4, False)):
        model = made(Fused)
        model.blocks = model.blocks[:kept]
        run = Probe(model, named={**names, "decoder_layers": "blocks"}).interface(inputs)
        assert (told in " ".join(run.record.get("doubts", []))) == doubted


@pytest.mark.parametrize("behind", [True, False])
def test_a_larger_list_of_layers_behind_the_decoder_is_a_doubt(behind: bool) -> None:
    """HoVLE embeds words and patches in layers of their own, which its language model follows."""

    class TwoStacks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(40, 16)
            self.first = nn.ModuleList(Block(16) for _ in range(2))
            self.second = nn.ModuleList(Block(16) for _ in range(3))

        def forward(self, input_ids: Tensor) -> Tensor:
            state = self.table(input_ids)
            for layer in [*self.first, *self.second] if behind else [*self.second, *self.first]:
                state = layer(state)
            return state

    model = TwoStacks()
    names = {"decoder_layers": "first", "text_embedding": "table"}
    run = Probe(model, named=names).layers({"input_ids": torch.arange(3, 9)[None]})
    told = [each for each in run.record.get("doubts", []) if "behind the decoder layers" in each]
    assert told == behind * [
        "behind the decoder layers, second runs on as many rows and is larger: it may be the "
        "language model; `--part decoder_layers=second` measures it"
    ]
