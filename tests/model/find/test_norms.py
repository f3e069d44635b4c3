"""The norm placement is what the source of a layer says, with weights and without."""

from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import combinations

import pytest
import torch
import transformers
from support.cases import model_of
from support.hooks import hooks_of
from support.tiny_inputs import tiny_inputs
from support.tiny_models import EVERY, IMAGE, build
from support.toy_layers import (
    HIDDEN,
    BranchPost,
    BranchPostScaled,
    EarlierStates,
    HalfSandwich,
    JoinedStreams,
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
    PreWithDropout,
    PreWithMultiplier,
    PreWithScaledResidual,
    Sandwich,
    Streams,
)
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaModel,
    PretrainedConfig,
    PreTrainedModel,
)

from normprobe import find_parts
from normprobe.errors import NormprobeError
from normprobe.model.find.norms import (
    find_norm_placement,
    norm_placement,
    norm_placement_note,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# --- hand-made layers: the placement is what the forward says -------------------------------------

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


class NormedBehind(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.branch, self.norm = nn.Linear(size, size), nn.LayerNorm(size)

    def forward(self, hidden_states, **_):
        return self.norm(hidden_states + self.branch(hidden_states))


def test_the_middle_layer_is_asked():
    with torch.device("meta"):
        model = build("llama")
        model.model.layers[0] = NormedBehind(model.config.hidden_size)
    assert find_norm_placement(model, parts_of(model)) == "pre"


def test_a_model_that_does_not_run_says_why():
    with torch.device("meta"):
        model = build("llama")
    for layer in model.model.layers:
        layer.mlp.up_proj = nn.Linear(3, 3, device="meta")
    with pytest.raises(NormprobeError, match=r"LlamaForCausalLM.*cannot be multiplied"):
        find_norm_placement(model, parts_of(model))


# --- language models of transformers; test_every_type.py has the others ---------------------------


def parts_of(model):
    """The config of a video model names no image token; which one it is moves no norm."""
    try:
        return find_parts(model)
    except NormprobeError:  # its config names no placeholder
        return find_parts(model, named={"image_token_ids": (IMAGE,)})


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
    opened = placement in ("pre", "pre-parallel")  # and closed by none
    note = "the paper's theory applies" if opened else "the paper's theory is about pre-norm"
    assert norm_placement_note(model, parts_of(model)) == f"{placement}: {note}"


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
        ("llava_gptj", {}, "pre-parallel"),
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


#: Of each placement; in the rest of the table test_every_type.py believes the followed residual.
COMPARED = ("llava", "aya_vision", "exaone4_5", "gemma3", "git", "molmo2", "lfm3_vl")


@pytest.mark.parametrize("model_type", COMPARED)
def test_equal_values_say_the_same_of_types(model_type):
    model = model_of(model_type)
    parts = parts_of(model)
    by_values = placement_by_values(
        parts.decoder_layers.module[1], partial(model, **tiny_inputs(model))
    )
    assert find_norm_placement(model, parts) == by_values


class Acting(PreTrainedModel):
    """As GR00T's: the size that its config names is that of what acts, behind the decoder."""

    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        self.read = LlamaModel(LlamaConfig(hidden_size=16, vocab_size=9, **sizes))

    def forward(self, input_ids):
        return self.read(input_ids)


def test_the_size_of_what_acts_makes_no_streams():
    model = Acting(PretrainedConfig(hidden_size=4)).eval()
    named = {"decoder_layers": "read.layers", "text_embedding": "read.embed_tokens"}
    assert find_norm_placement(model, find_parts(model, named=named)) == "pre"
