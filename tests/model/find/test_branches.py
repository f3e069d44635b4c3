"""The branches of a layer are what the source of the layer says they are."""

from functools import partial

import pytest
import torch
from support.hooks import hooks_of
from support.toy_layers import (
    HIDDEN,
    Attention,
    BranchPost,
    BranchPostScaled,
    HalfSandwich,
    Layer,
    Mlp,
    NoNorm,
    NormedAtItsEnd,
    NormedResidual,
    Parallel,
    ParallelSandwich,
    ParallelTwoNorms,
    Post,
    PostNested,
    Pre,
    PreClosedGate,
    PreInFloat,
    PreInPlace,
    PreNested,
    PreSingleBranch,
    PreThroughViews,
    PreWithMultiplier,
    PreWithScaledResidual,
    Sandwich,
)
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from normprobe.model.find.layer_branches import split
from normprobe.model.find.residual import Residual

# --- more hand-made layers ------------------------------------------------------------------------


class OneBranchOfTwoModules(Layer):
    """OPT keeps the projections of its MLP in the layer; Inkling convolves what attention wrote."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.attn_conv = nn.Conv1d(HIDDEN, HIDDEN, 1)

    def forward(self, x):
        x = x + self.attn_conv(self.attend(self.first(x)).mT).mT
        return x + self.fc2(self.fc1(self.second(x)).relu())


class ExpertsAndShared(Layer):
    """Routed and shared experts are one branch; what weighs them is no branch of its own."""

    def __init__(self):
        super().__init__()
        self.router, self.shared = nn.Linear(HIDDEN, 1), Mlp()

    def forward(self, x):
        x = x + self.attend(self.first(x))
        normed = self.second(x)
        return x + (self.router(x).sigmoid() * self.mlp(normed) + self.shared(normed))


class AddedInside(nn.Module):
    """BLOOM hands the residual to its branches, which add it themselves, here in place."""

    class Adding(nn.Module):
        def __init__(self, branch):
            super().__init__()
            self.branch = branch

        def forward(self, normed, residual):
            written = self.branch(normed)
            written += residual
            return written

    class AttentionAlone(Attention):
        def forward(self, x):
            return super().forward(x)[0]

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.self_attention = self.Adding(self.AttentionAlone())
        self.mlp = self.Adding(Mlp())

    def forward(self, x):
        x = self.self_attention(self.first(x), x)
        return self.mlp(self.second(x), x)


class WithPositions(Layer):
    """Attention adds positions to what it reads: that is no branch."""

    def forward(self, x):
        x = torch.add(x, self.attend(self.first(x + torch.ones_like(x))), alpha=2)
        return x + self.mlp(self.second(x))


class CrossAttention(Layer):
    def __init__(self):
        super().__init__()
        self.encoder_attn = Attention()

    def forward(self, x):
        x = x + self.attend(self.first(x))
        x = x + self.encoder_attn(self.third(x))[0]
        return x + self.mlp(self.second(x))


class Transposed(Layer):
    """Sums over ``[seq, batch, hidden]``."""

    def forward(self, x):
        x = x.transpose(0, 1)
        x = x + self.attend(self.first(x.transpose(0, 1))).transpose(0, 1)
        return (x + self.mlp(self.second(x))).transpose(0, 1)


class PastTorch(Pre):
    """Writes where no operation is seen."""

    def forward(self, x):
        left = super().forward(x)
        left.numpy()[...] += 0.01
        return left


class MixedThenClosed(Layer):
    def forward(self, x):
        return x + self.third(self.attend(self.first(x)) + self.mlp(self.second(x)))


class AroundAttention(Layer):
    def __init__(self):
        super().__init__()
        self.mlp_after = Mlp()

    def forward(self, x):
        x = x + self.mlp(self.first(x))
        x = x + self.attend(self.second(x))
        return x + self.mlp_after(self.third(x))


class OwnWeight(Layer):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN, HIDDEN))

    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.second(x) @ self.weight


class TurnedResidual(Layer):
    """One factor a dimension turns the residual: that is no branch's doing."""

    def forward(self, x):
        return torch.linspace(0.5, 2, HIDDEN) * x + self.attend(self.first(x))


class Part(Layer):
    """Only some tokens are written to."""

    def forward(self, x):
        x = x + self.attend(self.first(x))
        x[:, 1:] += self.mlp(self.second(x[:, 1:]))
        return x


class Identity(Layer):
    def forward(self, x):
        return x


# --- what they add, by hand -----------------------------------------------------------------------


def attends(layer, y):
    return layer.attend(layer.first(y))


def thinks(layer, y):
    return layer.mlp(layer.second(y))


def one_by_one(attention=attends, mlp=thinks, scale=1):
    """The states and what is added to them; ``scale`` multiplies the residual in between."""

    def added(layer, x):
        attended = attention(layer, x)
        between = (x + attended) * scale
        return {"attention": (x, attended), "mlp": (between, mlp(layer, between))}

    return added


def in_parallel(attention, mlp):
    return lambda layer, x: {"attention": (x, attention(layer, x)), "mlp": (x, mlp(layer, x))}


def alone(mlp):
    return lambda layer, x: {"mlp": (x, mlp(layer, x))}


def nested(layer, x):
    """Two MLPs in a row are one branch."""
    first = layer.halves[0].branch(layer.halves[0].norm(x))
    return first + layer.halves[1].branch(layer.halves[1].norm(x + first))


def crossed(layer, x):
    found = {"attention": (x, attends(layer, x))}
    x = sum(found["attention"])
    found["cross_attention"] = x, layer.encoder_attn(layer.third(x))[0]
    x = sum(found["cross_attention"])
    return found | {"mlp": (x, thinks(layer, x))}


BY_HAND = {
    **dict.fromkeys((Pre, PreInPlace, PreThroughViews, PreWithScaledResidual), one_by_one()),
    PreInFloat: one_by_one(),
    PreWithMultiplier: one_by_one(
        lambda layer, y: 0.25 * attends(layer, y), lambda layer, y: 0.25 * thinks(layer, y), 0.5
    ),
    PreClosedGate: in_parallel(lambda _, y: 0 * y, lambda _, y: 0 * y),
    PreSingleBranch: alone(lambda layer, y: layer.mlp(layer.first(y))),
    PreNested: alone(nested),
    Parallel: in_parallel(attends, lambda layer, y: layer.mlp(layer.first(y))),
    ParallelTwoNorms: in_parallel(attends, thinks),
    ParallelSandwich: in_parallel(
        lambda layer, y: layer.second(attends(layer, y)),
        lambda layer, y: layer.third(layer.mlp(layer.first(y))),
    ),
    BranchPost: one_by_one(
        lambda layer, y: layer.first(layer.attend(y)), lambda layer, y: layer.second(layer.mlp(y))
    ),
    Sandwich: one_by_one(
        lambda layer, y: layer.second(attends(layer, y)),
        lambda layer, y: layer.fourth(layer.mlp(layer.third(y))),
    ),
    HalfSandwich: one_by_one(mlp=lambda layer, y: layer.third(thinks(layer, y))),
    NoNorm: alone(lambda layer, y: layer.mlp(y)),
    OneBranchOfTwoModules: one_by_one(
        lambda layer, y: layer.attn_conv(attends(layer, y).mT).mT,
        lambda layer, y: layer.fc2(layer.fc1(layer.second(y)).relu()),
    ),
    ExpertsAndShared: one_by_one(
        mlp=lambda layer, y: (
            layer.router(y).sigmoid() * thinks(layer, y) + layer.shared(layer.second(y))
        )
    ),
    AddedInside: one_by_one(
        lambda layer, y: layer.self_attention.branch(layer.first(y)),
        lambda layer, y: layer.mlp.branch(layer.second(y)),
    ),
    WithPositions: one_by_one(lambda layer, y: 2 * layer.attend(layer.first(y + 1))),
    CrossAttention: crossed,
}


def followed(layer, x):
    """The layer has run under the eyes of ``Residual``: its split."""
    branches = Residual()
    with torch.no_grad(), branches.following([layer]):
        layer.eval()(x.clone())
    return split(branches.take())


def state(dtype=torch.float32):
    return torch.randn(2, 4, HIDDEN).to(dtype)


@pytest.mark.parametrize("toy", BY_HAND)
def test_states_and_what_is_added_to_them(toy):
    layer, x = toy(), state()
    branches, reason, fits = followed(layer, x)
    with torch.no_grad():
        expected = BY_HAND[toy](layer, x)
    assert (reason, bool(fits)) == ("", True)
    assert [branch.name for branch in branches] == list(expected)
    for branch in branches:
        turned, added = expected[branch.name]
        torch.testing.assert_close(branch.state.reshape(x.shape), turned)
        torch.testing.assert_close(sum(t.reshape(x.shape) for t in branch.terms), added)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("toy", BY_HAND)
def test_rounding_is_no_misfit(toy, dtype):
    assert bool(followed(toy().to(dtype), state(dtype)).fits)


REFUSED = {
    Post: "its output is not its input plus",
    PostNested: "its output is not its input plus",
    NormedResidual: "its output is not its input plus",
    NormedAtItsEnd: "its output is not its input plus",
    TurnedResidual: "its output is not its input plus",
    Part: "its output is not its input plus",
    MixedThenClosed: "attention and mlp are mixed, then added",
    AroundAttention: "its mlp writes twice",
    OwnWeight: "it adds what none of its modules returns",
    Identity: "it adds nothing",
}


@pytest.mark.parametrize("toy", REFUSED)
def test_other_layers_are_refused_with_the_reason(toy):
    branches, reason, fits = followed(toy(), state())
    assert reason.startswith(REFUSED[toy])
    assert not branches
    assert fits is None


@pytest.mark.parametrize("toy", [PastTorch, Transposed])
def test_sums_that_are_not_the_update_are_no_fit(toy):
    assert not bool(followed(toy(), state()).fits)


def test_what_is_random_in_a_branch_is_in_what_it_adds():
    branches, _, fits = followed(BranchPostScaled(), state())
    assert [branch.name for branch in branches] == ["attention", "mlp"]
    assert bool(fits)


def test_nothing_outlives_its_layer():
    layer, seen = Pre(), []
    for module in (layer.attention, layer.mlp, layer.mlp.up):
        module.register_forward_hook(lambda _, __, output: seen.append(storage_of(output)))
    gone = []
    layer.register_forward_hook(lambda *_: gone.extend(storage.expired() for storage in seen))
    branches = Residual()
    with torch.no_grad(), branches.following([layer]):
        layer(state())
        assert gone == [False, True, False]  # attention, inside the MLP, MLP
        branches.take()
        assert all(storage.expired() for storage in seen)
        assert split(branches.take()).reason == "it has not run"


def storage_of(output):
    first = output[0] if isinstance(output, tuple) else output
    return StorageWeakRef(first.untyped_storage())


def test_hooks_go_and_the_output_is_the_same():
    layer, x = Pre(), state()
    before = len(hooks_of(layer))
    with torch.no_grad():
        expected = layer(x)
        with Residual().following([layer]):
            assert torch.equal(layer(x), expected)
        with pytest.raises(RuntimeError), Residual().following([layer]):
            layer(state()[..., 1:])
    assert len(hooks_of(layer)) == before


NAMES = {
    "attention": [
        ("self_attn", "LlamaAttention"),
        ("linear_attn", "Qwen3_5GatedDeltaNet"),
        ("conv", "Lfm2ShortConv"),
        ("mixer", "NemotronHMamba2Mixer"),
        ("temporal_block", "RecurrentGemmaRecurrentBlock"),
        ("0", "T5LayerSelfAttention"),
    ],
    "mlp": [
        ("mlp", "RecurrentGemmaMlp"),
        ("ffn", "Kosmos2TextFFN"),
        ("feed_forward", "Llama4TextMoe"),
        ("fc1", "Linear"),
        ("block_sparse_moe", "MixtralSparseMoeBlock"),
        ("mixer", "NemotronHMLP"),
        ("1", "T5LayerFF"),
    ],
    "cross_attention": [
        ("cross_attn", "MllamaTextCrossAttention"),
        ("crossattention", "BertAttention"),
        ("encoder_attn", "BartAttention"),
        ("1", "T5LayerCrossAttention"),
        ("adapter", "EvollaSequenceAlignerCrossAttention"),
    ],
}


@pytest.mark.parametrize(
    ("branch", "name", "kind"), [(b, *module) for b, modules in NAMES.items() for module in modules]
)
def test_which_branch_a_module_begins(branch, name, kind):
    child = type(kind, (Mlp,), {})()
    layer = nn.Module()
    layer.add_module(name, child)
    layer.forward = partial(lambda x: x + child(x))
    assert [found.name for found in followed(layer, state()).branches] == [branch]
