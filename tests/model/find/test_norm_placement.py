"""The norm placement is what the source of a layer says, with weights and without."""

from contextlib import suppress
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from itertools import combinations

import pytest
import torch
import transformers
from support.cases import model_of
from support.hooks import hooks_of
from support.tiny_inputs import tiny_inputs
from support.tiny_models import ALL_TYPES, EVERY, IMAGE, NEEDS, TINY, VISION_ENCODERS, build
from torch import nn
from torch.nn.functional import dropout
from transformers import AutoModelForCausalLM

from normprobe import find_parts
from normprobe.errors import NormprobeError
from normprobe.model.find.layer_norms import norm_placement
from normprobe.model.find.norm_placement import THEORY_APPLIES, find_norm_placement

HIDDEN = 16
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# --- hand-made layers: the placement is what the forward says -------------------------------------


class Attention(nn.Module):
    """Mixes tokens. Its query and key norms are as wide as the residual, as in OLMo-2."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.query_norm, self.key_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, hidden_states, **_):
        queries = self.query_norm(self.query(hidden_states))
        keys = self.key_norm(self.key(hidden_states))
        weights = (queries @ keys.mT).softmax(-1)
        return self.out(weights @ self.value(hidden_states)), weights


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x):
        return self.down(self.gate(x).sigmoid() * self.up(x))


class Layer(nn.Module):
    """The parts of a layer; each subclass is one way to put them together."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.third, self.fourth = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def attend(self, x):
        return self.attention(hidden_states=x)[0]


class Pre(Layer):
    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.mlp(self.second(x))


class PreInPlace(Layer):
    def forward(self, x):
        x += self.attend(self.first(x))
        written = self.mlp(self.second(x))
        written += x
        return written


class PreThroughViews(Layer):
    def forward(self, x):
        rows = x.view(-1, HIDDEN)
        attended = self.attend(self.first(rows).unflatten(0, x.shape[:2])).flatten(0, 1)
        rows.add_(attended)  # writes into x
        return x + self.mlp(self.second(x.transpose(0, 1))).transpose(0, 1)


class PreWithDropout(Layer):
    def forward(self, x):
        x = x + dropout(self.attend(self.first(x)), 0.5, training=self.training)
        x, _ = torch.native_dropout(dropout(x, 0.1), 0.1, True)  # the latter as fused on GPUs
        return x + dropout(self.mlp(self.second(x)), 0.5)


class PreWithMultiplier(Layer):
    """Granite."""

    def forward(self, x):
        x = (x + 0.25 * self.attend(self.first(x))) / 2
        return x.clone() + self.mlp(self.second(x)) * 0.25


class PreWithScaledResidual(Layer):
    """Gemma 4 scales the whole residual, in place; here by zero."""

    def forward(self, x):
        x = x + self.attend(self.first(x))
        x = x + self.mlp(self.second(x))
        x *= torch.zeros(1, dtype=x.dtype, device=x.device)
        return x, None


class PreInFloat(Layer):
    """Mamba keeps the residual in float32."""

    def forward(self, x):
        residual = x.float()
        residual = residual + self.attend(self.first(residual.to(x.dtype)))
        return (residual + self.mlp(self.second(residual.to(x.dtype)))).to(x.dtype)


class PreClosedGate(Layer):
    """A closed gate: by value, the residual that leaves is the one that entered."""

    def forward(self, x):
        x = x + torch.zeros_like(x) * self.attend(self.first(x))
        return x + 0.0 * self.mlp(self.second(x))


class PreSingleBranch(Layer):
    def forward(self, x):
        return x + self.mlp(self.first(x))


class PreNested(nn.Module):
    """T5 keeps norm, branch and sum of each half in a module of its own."""

    class Half(nn.Module):
        def __init__(self, branch):
            super().__init__()
            self.branch, self.norm = branch, nn.RMSNorm(HIDDEN)

        def forward(self, x):
            return x + self.branch(self.norm(x))

    def __init__(self):
        super().__init__()
        self.halves = nn.ModuleList([self.Half(Mlp()), self.Half(Mlp())])

    def forward(self, x):
        for half in self.halves:
            x = half(x).clamp(-1e4, 1e4)
        return x


class Parallel(Layer):
    """Cohere."""

    def forward(self, x):
        normed = self.first(x)
        return x + self.attend(normed) + self.mlp(normed)


class ParallelTwoNorms(Layer):
    """GPT-NeoX; the branches are summed first, as in GPT-J."""

    def forward(self, x):
        return self.attend(self.first(x)) + self.mlp(self.second(x)) + x


class BranchPost(Layer):
    """OLMo-2."""

    def forward(self, x):
        x = x + self.first(self.attend(x))
        return x + self.second(self.mlp(x))


class BranchPostScaled(Layer):
    def forward(self, x):
        x = x + 0.5 * dropout(self.third(self.first(self.attend(x))), 0.5)
        return self.fourth(self.second(self.mlp(x))).mul_(0.5).add_(x)


class Sandwich(Layer):
    """GLM-4 and Gemma 2."""

    def forward(self, x):
        x = x + self.second(self.attend(self.first(x)))
        return x + self.fourth(self.mlp(self.third(x)))


class HalfSandwich(Layer):
    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.third(self.mlp(self.second(x)))


class ParallelSandwich(Layer):
    def forward(self, x):
        normed = self.first(x)
        return x + (self.second(self.attend(normed)) + self.third(self.mlp(normed)))


class Post(Layer):
    """BART."""

    def forward(self, x):
        x = self.first(x + self.attend(x))
        return self.second(x + self.mlp(x))


class PostNested(Layer):
    """BERT keeps the sum and the norm in a module that reads branch and residual."""

    class Close(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.LayerNorm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)

        def forward(self, branch, residual):
            return self.LayerNorm(dropout(self.dense(branch), 0.1) + residual)

    def __init__(self):
        super().__init__()
        self.close_attention, self.close_mlp = self.Close(), self.Close()

    def forward(self, x):
        x = self.close_attention(self.attend(x), x)
        return (self.close_mlp(self.mlp(x), x),)


class Streams(Layer):
    """Hyper-connections: four streams, read as one and written as one."""

    def forward(self, x):
        return x + self.mlp(self.first(x.mean(0))) * torch.ones(4, 1, 1, 1).to(x)


class JoinedStreams(nn.Module):
    """Two streams in the last axis, under one norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(2 * HIDDEN), Mlp()

    def forward(self, x):
        written = self.mlp(self.norm(x).unflatten(-1, (2, HIDDEN)).mean(-2))
        return x + written.repeat(1, 1, 2)


class EarlierStates(Layer):
    """Inkling attends to the states of earlier layers."""

    def forward(self, x, states):
        return x + self.mlp(self.first(states.mean(-2) + x))


class NormedResidual(Layer):
    """BLOOM can add the branch to the normed residual: none of the known placements."""

    def forward(self, x):
        normed = self.first(x)
        return normed + self.attend(normed)


class NormedAtItsEnd(Layer):
    """Opened by a norm, as in pre-norm, and the residual is normalised, as in post-norm."""

    def forward(self, x):
        return self.second(x + self.attend(self.first(x)))


class NoNorm(Layer):
    def forward(self, x):
        return x + self.mlp(x)


TOYS = {
    Pre: "pre",
    PreInPlace: "pre",
    PreThroughViews: "pre",
    PreWithDropout: "pre",
    PreWithMultiplier: "pre",
    PreWithScaledResidual: "pre",
    PreInFloat: "pre",
    PreClosedGate: "pre",
    PreSingleBranch: "pre",
    PreNested: "pre",
    Parallel: "pre-parallel",
    ParallelTwoNorms: "pre-parallel",
    BranchPost: "branch-post",
    BranchPostScaled: "branch-post",
    Sandwich: "sandwich",
    HalfSandwich: "sandwich",
    ParallelSandwich: "sandwich",
    Post: "post",
    PostNested: "post",
}


@pytest.fixture(params=["cpu", "meta"])
def device(request):
    return request.param


def state(*shape, **where):
    return torch.randn(shape or (2, 4, HIDDEN), **where)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("toy", TOYS)
def test_hand_made_layers(toy, device, dtype):
    layer = toy().to(device, dtype)
    forward = partial(layer, state(device=device, dtype=dtype))
    assert norm_placement(layer, forward) == TOYS[toy]


def test_several_streams(device):
    layer, joined, earlier = Streams(), JoinedStreams(), EarlierStates()
    for module in (layer, joined, earlier):
        module.to(device)
    stacked, wide = state(4, 2, 4, HIDDEN, device=device), state(2, 4, 2 * HIDDEN, device=device)
    states = state(2, 4, 3, HIDDEN, device=device)
    assert norm_placement(layer, partial(layer, stacked)) == "multi-stream"
    assert norm_placement(joined, partial(joined, wide), hidden_size=HIDDEN) == "multi-stream"
    assert norm_placement(joined, partial(joined, wide)) == "pre"  # one wide stream
    forward = partial(earlier, state(device=device), states=states)
    assert norm_placement(earlier, forward) == "multi-stream"


@pytest.mark.parametrize("toy", [NormedResidual, NormedAtItsEnd, NoNorm])
def test_other_layers_have_no_word(toy, device):
    layer = toy().to(device)
    with pytest.raises(NormprobeError, match=toy.__name__):
        norm_placement(layer, partial(layer, state(device=device)))


@pytest.mark.parametrize("kind", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_gradients_and_inference_mode_make_no_difference(kind):
    layer = Sandwich()
    with kind():
        assert norm_placement(layer, partial(layer, state())) == "sandwich"


# --- manners --------------------------------------------------------------------------------------


def test_the_forward_stops_after_the_layer_and_leaves_no_trace():
    layers = nn.Sequential(*(PreWithDropout() for _ in range(3))).train()
    reached, modes = [], []
    layers[2].register_forward_pre_hook(lambda *_: reached.append(2))
    layers[1].register_forward_pre_hook(
        lambda layer, _: modes.append((layer.training, torch.is_grad_enabled()))
    )
    before = len(hooks_of(layers))

    def forward():
        with suppress(Exception):  # code that swallows errors does not swallow the stop
            layers(state())
        reached.append("end")

    assert norm_placement(layers[1], forward) == "pre"
    assert not reached
    assert modes == [(False, False)]
    assert len(hooks_of(layers)) == before
    assert all(module.training for module in layers.modules())


def test_hooks_go_when_the_forward_fails():
    layer = Pre()
    with pytest.raises(RuntimeError):
        norm_placement(layer, partial(layer, state(2, 4, HIDDEN + 1)))
    assert not hooks_of(layer)


def test_a_layer_that_does_not_run():
    with pytest.raises(NormprobeError, match="without running Pre"):
        norm_placement(Pre(), partial(Post(), state()))


def test_bare_encoders_and_empty_stacks_have_none():
    with torch.device("meta"):
        encoder, language_model = build("clip_vision_model"), build("llama")
    with pytest.raises(NormprobeError, match="no decoder layers"):
        find_norm_placement(encoder, parts_of(encoder))
    parts = parts_of(language_model)
    del parts.decoder_layers.module[:]
    with pytest.raises(NormprobeError, match="no decoder layers"):
        find_norm_placement(language_model, parts)


class PassesOn(nn.Module):
    def forward(self, hidden_states, **_):
        return hidden_states


def test_the_middle_layer_is_asked():
    with torch.device("meta"):
        model = build("llama")
    model.model.layers[0] = PassesOn()
    assert find_norm_placement(model, parts_of(model)) == "pre"


def test_a_model_that_does_not_run_says_why():
    with torch.device("meta"):
        model = build("llama")
    for layer in model.model.layers:
        layer.mlp.up_proj = nn.Linear(3, 3, device="meta")
    with pytest.raises(NormprobeError, match=r"LlamaForCausalLM.*cannot be multiplied"):
        find_norm_placement(model, parts_of(model))


# --- transformers: what the sources say -----------------------------------------------------------

PRE_PARALLEL = {"aya_vision", "cohere2_vision", "cohere_compass", "llava_gptj"}
BRANCH_POST = {"exaone4_5"}
SANDWICH = {
    *("diffusion_gemma", "gemma3", "gemma4", "gemma4_unified", "shieldgemma2", "t5gemma2"),
    *("glm46v", "glm4v", "glm_ocr", "glmga", "hyperclovax_vision_v2", "lfm3_vl"),
    *("muse_glimmer", "muse_spark"),
}
POST = {"blip", "florence2", "git", "vision-encoder-decoder"}
MULTI_STREAM = {"gemma3n", "glm5_next", "inkling2", "qwen4_exp"}


def parts_of(model):
    """The config of a video model names no image token; which one it is moves no norm."""
    return find_parts(model, named={"image_token_ids": (IMAGE,)})


def placement_of(model_type):
    """All others, 70 of the 97 types, are pre-norm."""
    words = {
        "pre-parallel": PRE_PARALLEL,
        "branch-post": BRANCH_POST,
        "sandwich": SANDWICH,
        "post": POST,
        "multi-stream": MULTI_STREAM,
    }
    return next((word for word, types in words.items() if model_type in types), "pre")


def marked(model_type):
    """Types beyond the ones that every test runs on are slow."""
    needed = NEEDS.get(model_type, "torch")
    marks = [pytest.mark.skipif(find_spec(needed) is None, reason=f"needs {needed}")]
    if model_type not in TINY:
        marks.append(pytest.mark.slow)
    return pytest.param(model_type, marks=marks)


def decoders(types):
    return [marked(model_type) for model_type in types if model_type not in VISION_ENCODERS]


@pytest.mark.parametrize("model_type", decoders(EVERY))
def test_types_without_weights(model_type):
    with torch.device("meta"):
        model = build(model_type)
    assert find_norm_placement(model, parts_of(model)) == placement_of(model_type)


@pytest.mark.parametrize("model_type", decoders(EVERY))
def test_every_layer_of_a_type_with_weights(model_type):
    model = model_of(model_type)
    forward = partial(model, **tiny_inputs(model))
    width = getattr(model.config.get_text_config(decoder=True), "hidden_size", None)
    for layer in parts_of(model).decoder_layers.module:
        assert norm_placement(layer, forward, hidden_size=width) == placement_of(model_type)


def test_the_table_is_about_known_types():
    named = PRE_PARALLEL | BRANCH_POST | SANDWICH | POST | MULTI_STREAM
    assert named - {"llava_gptj"} < set(ALL_TYPES)
    assert {placement_of("llava"), placement_of("llava_gptj")} == THEORY_APPLIES


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
#: Config class, what it switches, the placement. The same class stands for several placements.
LANGUAGE_MODELS = {
    "llama": ("LlamaConfig", {}, "pre"),
    "granite": ("GraniteConfig", {"residual_multiplier": 0.2}, "pre"),
    "olmo, norms without weights": ("OlmoConfig", {}, "pre"),
    "mamba": ("MambaConfig", {}, "pre"),
    "opt": ("OPTConfig", {"do_layer_norm_before": True}, "pre"),
    "opt-350m": ("OPTConfig", {"do_layer_norm_before": False}, "post"),
    "bert": ("BertConfig", {"is_decoder": True}, "post"),
    "olmo2": ("Olmo2Config", {}, "branch-post"),
    "olmo3": ("Olmo3Config", {}, "branch-post"),
    "exaone4": ("Exaone4Config", {}, "branch-post"),
    "gemma2": ("Gemma2Config", {"head_dim": 8}, "sandwich"),
    "gemma": ("GemmaConfig", {"head_dim": 8}, "pre"),
    "glm4": ("Glm4Config", {"head_dim": 8}, "sandwich"),
    "glm": ("GlmConfig", {"head_dim": 8}, "pre"),
    "hyperclovax": ("HyperCLOVAXConfig", {"use_post_norm": True}, "sandwich"),
    "hyperclovax, open": ("HyperCLOVAXConfig", {"use_post_norm": False}, "pre"),
    "cohere": ("CohereConfig", {}, "pre-parallel"),
    "phi": ("PhiConfig", {}, "pre-parallel"),
    "gpt-neox": ("GPTNeoXConfig", {"use_parallel_residual": True}, "pre-parallel"),
    "gpt-neox, sequential": ("GPTNeoXConfig", {"use_parallel_residual": False}, "pre"),
    "stablelm": ("StableLmConfig", {"use_parallel_residual": True}, "pre-parallel"),
    "stablelm, sequential": ("StableLmConfig", {"use_parallel_residual": False}, "pre"),
    "falcon-7b": ("FalconConfig", {"parallel_attn": True}, "pre-parallel"),
    "falcon-40b": ("FalconConfig", {"new_decoder_architecture": True}, "pre-parallel"),
    "falcon-rw": ("FalconConfig", {"parallel_attn": False}, "pre"),
}


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models_and_their_switches(name, device):
    config_class, switches, placement = LANGUAGE_MODELS[name]
    config = getattr(transformers, config_class)(**SMALL | switches)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
    assert find_norm_placement(model, parts_of(model)) == placement


def with_switch(model_type, switches):
    """A tiny type whose language model is switched, without weights."""
    name, arguments = EVERY[model_type]
    arguments = deepcopy(arguments)
    arguments.get("text_config", arguments).update(switches)
    model_class = getattr(transformers, name)
    with torch.device("meta"):
        return model_class(model_class.config_class(**arguments))


@pytest.mark.parametrize(
    ("model_type", "switches", "placement"),
    [
        ("llava", {"model_type": "olmo2"}, "branch-post"),
        ("llava", {"model_type": "gemma2", "head_dim": 16}, "sandwich"),
        ("llava", {"model_type": "cohere"}, "pre-parallel"),
        ("chameleon", {"swin_norm": True}, "branch-post"),
        ("chameleon", {"swin_norm": False}, "pre"),
        ("molmo2", {"norm_after": True}, "branch-post"),
        ("molmo2", {"norm_after": False}, "pre"),
        ("hyperclovax_vision_v2", {"use_post_norm": False}, "pre"),
    ],
    ids=str,
)
def test_one_type_has_several_placements(model_type, switches, placement):
    model = with_switch(model_type, switches)
    assert find_norm_placement(model, parts_of(model)) == placement


# --- the same question asked by values ------------------------------------------------------------


def placement_by_values(layer, forward):
    """Which tensors are equal: norms against the states between branches.

    States: what enters the layer, what its norms read, what leaves it. Norms close branches where
    two states differ by what one or two of them returned.
    """
    seen = {}

    def keep(module, args, kwargs, output):
        entered = args[0] if args else kwargs["hidden_states"]
        seen[module] = entered.clone(), (output if torch.is_tensor(output) else output[0]).clone()

    norms = [
        module
        for name, module in layer.named_modules()
        if type(module).__name__.endswith("Norm")
        and not name.rpartition(".")[2].startswith(("q", "k"))  # of queries and keys
    ]
    handles = [m.register_forward_hook(keep, with_kwargs=True) for m in (layer, *norms)]
    with torch.no_grad():
        forward()
    for handle in handles:
        handle.remove()
    entered, left = seen.pop(layer)
    reads = [read for read, _ in seen.values() if read.shape == entered.shape]
    returns = [returned for _, returned in seen.values() if returned.shape == entered.shape]

    def among(tensor, others):
        return any(torch.allclose(tensor, other, atol=1e-4, rtol=1e-4) for other in others)

    opens = among(entered, reads)
    if among(left, returns) and not opens:
        return "post"
    states = [entered, *reads, left]
    steps = [b - a for a, b in combinations(states, 2)]
    closes = any(
        among(written, steps) for written in returns + list(map(sum, combinations(returns, 2)))
    )
    if closes:
        return "sandwich" if opens else "branch-post"
    return "pre" if any(not among(read, [entered]) for read in reads) else "pre-parallel"


@pytest.mark.parametrize(
    "toy", [Pre, Parallel, ParallelTwoNorms, BranchPost, Sandwich, HalfSandwich, Post, PostNested]
)
def test_equal_values_say_the_same_of_hand_made_layers(toy):
    layer = toy().eval()
    assert placement_by_values(layer, partial(layer, state())) == TOYS[toy]


COMPARED = [*TINY, "exaone4_5", "aya_vision", "florence2", "git", "glm_ocr", "molmo2", "lfm3_vl"]


@pytest.mark.parametrize("model_type", decoders(COMPARED))
def test_equal_values_say_the_same_of_types(model_type):
    model = model_of(model_type)
    layer = parts_of(model).decoder_layers.module[1]
    by_values = placement_by_values(layer, partial(model, **tiny_inputs(model)))
    with torch.device("meta"):
        bare = build(model_type)
    assert find_norm_placement(bare, parts_of(bare)) == by_values
