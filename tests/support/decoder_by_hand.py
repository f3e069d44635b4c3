"""The forward of a decoder written out: own loop over the layers, plain tensors, no hooks.

What the layers are given beside the state (masks, rotary tables) is written down from one untouched
forward. From there on every intervention is an edit of a tensor in this loop. All in float64.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from support.expected_parts import PARTS
from support.reference import token_groups
from support.tiny.fragments import CLIP, TEXT
from support.tiny_inputs import SPECIAL_IDS, Inputs, collate, tiny_samples
from support.tiny_models import EVERY, FIRST_TEXT, IMAGE, tiny_model, unit_gain_

#: LLaVA with other language models.
GRANITE = {
    "residual_multiplier": 0.3,
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "attention_multiplier": 0.2,
}
LLAVA_WITH = {
    "granite": GRANITE,
    "olmo2": {},
    "cohere": {"logit_scale": 0.25},
    "glm4": {"head_dim": 16, "partial_rotary_factor": 0.5},
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": None},
}
#: A norm opens each branch, so that scaling visual states undoes scaling their updates.
OPENED_BY_NORMS = (
    *("llava", "qwen2_5_vl", "paligemma", "idefics3", "internvl"),
    *("granite", "cohere", "qwen3", "mistral"),
    *("gemma3", "glm4"),  # these end with a norm, too
)
#: Norms stand behind the branches alone.
NORMS_BEHIND = ("olmo2",)
#: Features that are added between layers (DeepStack), experts, keys and values of earlier layers.
OF_ANOTHER_KIND = ("qwen3_vl", "qwen3_vl_moe", "gemma4")
#: Where others keep their layers and read pictures.
_BUILT_LIKE = dict.fromkeys(LLAVA_WITH, "llava")
_BUILT_LIKE |= {"qwen3_vl_moe": "qwen3_vl", "gemma4": "gemma3"}
#: The last layer reads the keys of the one before it.
_SHARED_KEYS = {"num_kv_shared_layers": 1, "layer_types": ["full_attention"] * 3}


@cache
def model_of(name: str, eps: float | None = None) -> PreTrainedModel:
    """A float64 model by its type, or LLaVA with a language model of that type."""
    if name in LLAVA_WITH:
        torch.manual_seed(0)
        text = TEXT | {"model_type": name} | LLAVA_WITH[name]
        config = LlavaConfig(text_config=text, vision_config=CLIP, image_token_index=IMAGE)
        model: PreTrainedModel = LlavaForConditionalGeneration(config).eval()
        unit_gain_(model)
    elif name == "gemma4":
        text = EVERY[name].config["text_config"] | _SHARED_KEYS | {"per_layer_config": {}}
        model = tiny_model(name, text_config=text)
    else:
        model = deepcopy(tiny_model(name))
    if name == "qwen3_vl_moe":
        model.set_experts_implementation("eager")  # others have no float64
    for module in model.double().modules():
        if type(module).__name__ == "Gemma4RMSNorm":
            module.eps = 1.0  # else louder states have the same keys
            module.forward = partial(_without_float32, module.forward)
        elif type(module).__name__.endswith(("RMSNorm", "CohereLayerNorm")):  # they use float32
            module.forward = partial(_normed, module, eps)
        elif isinstance(module, nn.LayerNorm) and eps is not None:
            module.eps = eps
        elif type(module).__name__.endswith(
            "RotaryEmbedding"
        ):  # likewise: other places, other sums
            module.forward = partial(_without_float32, module.forward)
    return model


def _without_float32(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a module returns that would make float32 of its numbers."""
    with patch.object(Tensor, "float", Tensor.double):
        return forward(*args, **kwargs)


def _normed(norm: Any, eps: float | None, x: Tensor) -> Tensor:
    """A norm in float64."""
    gain = norm.weight + 1 if type(norm).__name__.startswith("Gemma") else norm.weight
    if type(norm).__name__.startswith("Cohere"):
        x = x - x.mean(-1, keepdim=True)
    if eps is None:
        eps = getattr(norm, "variance_epsilon", None) or norm.eps
    return gain * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


# --- one batch, each sample with an answer -------------------------------------------------------


@dataclass
class Batch:
    """Prompts with their answers behind them, and what the layers were given.

    Attributes:
        inputs: of the whole conversation.
        prompts: of what comes before the answers, padded on the same side.
        answers: the ids of each sample's answer.
        groups: ``[batch, seq]`` names; the tokens of the answers are ``"answer"``.
        entered: ``[batch, seq, hidden]`` what enters layer 1 untouched.
        given: of each layer, the other arguments of its call.
        between: of each layer, what is added to its output before the next one.
    """

    model: PreTrainedModel
    inputs: Inputs
    prompts: Inputs
    answers: list[list[int]]
    groups: Any
    entered: Tensor
    given: list[dict[str, Any]] = field(default_factory=list)
    between: list[Tensor] = field(default_factory=list)

    def rows(self, group: str) -> Tensor:
        return torch.from_numpy(self.groups == group)


@cache
def batch_of(
    name: str,
    batch_size: int = 3,
    padding: Literal["right", "left"] = "right",
    eps: float | None = None,
) -> Batch:
    """Samples of different lengths, answers of one to three tokens."""
    model = model_of(name, eps)
    samples = tiny_samples(model, batch_size)
    random = torch.Generator().manual_seed(5)
    answers = [
        torch.randint(FIRST_TEXT, 100, (1 + place % 3,), generator=random).tolist()
        for place in range(batch_size)
    ]
    return answered(name, model, samples, answers, padding)


def answered(
    name: str,
    model: PreTrainedModel,
    samples: list[Inputs],
    answers: list[list[int]],
    padding: Literal["right", "left"] = "right",
) -> Batch:
    """The samples of a model, each with an answer."""
    whole = [_behind(sample, answer) for sample, answer in zip(samples, answers, strict=True)]
    prompts, inputs = (_double(collate(each, padding)) for each in (samples, whole))
    parts = PARTS[_BUILT_LIKE.get(name, name)]
    if name == "gemma4":
        parts = replace(parts, projector="model.embed_vision")
    groups = token_groups(model, inputs, parts, SPECIAL_IDS)
    for row, answer in enumerate(answers):
        end = inputs["input_ids"].shape[1]
        if padding == "right":
            end = int(inputs["attention_mask"][row].sum())
        groups[row, end - len(answer) : end] = "answer"
    layers = model.get_submodule(parts.decoder_layers or "")
    return Batch(model, inputs, prompts, answers, groups, *_given(model, layers, inputs))


def _behind(sample: Inputs, answer: list[int]) -> Inputs:
    """A sample whose prompt goes on with its answer."""
    longer = dict(sample)
    paligemma = "token_type_ids" in sample and not sample["token_type_ids"].any()
    ones = ("attention_mask", "token_type_ids") if paligemma else ("attention_mask",)  # a suffix
    more = torch.tensor([answer])
    longer["input_ids"] = torch.cat([sample["input_ids"], more], dim=1)
    for name in ("attention_mask", "token_type_ids", "mm_token_type_ids"):
        if name in sample:
            value = 1 if name in ones else 0
            longer[name] = torch.cat([sample[name], torch.full_like(more, value)], dim=1)
    return longer


def _double(inputs: Inputs) -> Inputs:
    return {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}


@torch.no_grad()
def _given(
    model: PreTrainedModel, layers: nn.Module, inputs: Inputs
) -> tuple[Tensor, list[dict[str, Any]], list[Tensor]]:
    states: list[Tensor] = []
    left: list[Tensor] = []
    given: list[dict[str, Any]] = []

    def writing_down(layer: nn.Module) -> Callable[..., Any]:
        original = layer.forward

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            states.append(hidden_states.clone())
            given.append(kwargs | dict(zip(("per_layer_input",), args, strict=False)))
            output = original(hidden_states, *args, **kwargs)
            left.append((output[0] if isinstance(output, tuple) else output).clone())
            return output

        return forward

    with ExitStack() as stack:
        for layer in layers.children():
            stack.enter_context(patch.object(layer, "forward", writing_down(layer)))
        model(**inputs, use_cache=False)
    between = [x - h for x, h in zip(states[1:], left, strict=False)]
    return states[0], given, [*between, torch.zeros_like(left[-1])]


def entered_with(batch: Batch, inputs: Inputs) -> Tensor:
    """What enters layer 1 of other inputs of the same shape."""
    return asked_with(batch, inputs).entered


def asked_with(batch: Batch, inputs: Inputs) -> Batch:
    """A batch with other inputs of the same shape."""
    layers: nn.Module = decoder_of(batch.model).layers
    entered, given, between = _given(batch.model, layers, _double(inputs))
    return replace(batch, entered=entered, given=given, between=between)


# --- the layers, written out ---------------------------------------------------------------------


def updates(layer: Any, x: Tensor, given: dict[str, Any]) -> Iterator[Tensor]:
    """What the branches of a layer add to the residual stream, one after the other.

    The state that the next one reads is sent back.
    """

    def attend(read: Tensor) -> Tensor:
        attended: Tensor = layer.self_attn(hidden_states=read, **given)[0]
        return attended

    kind = type(layer).__name__
    if kind.startswith("Cohere"):  # side by side
        read = layer.input_layernorm(x)
        yield attend(read)
        yield layer.mlp(read)
    elif kind.startswith("Olmo2"):
        x = yield layer.post_attention_layernorm(attend(x))
        yield layer.post_feedforward_layernorm(layer.mlp(x))
    elif kind.startswith("Gemma3"):
        x = yield layer.post_attention_layernorm(attend(layer.input_layernorm(x)))
        written = layer.mlp(layer.pre_feedforward_layernorm(x))
        yield layer.post_feedforward_layernorm(written)
    elif kind.startswith("Glm4"):
        x = yield layer.post_self_attn_layernorm(attend(layer.input_layernorm(x)))
        yield layer.post_mlp_layernorm(layer.mlp(layer.post_attention_layernorm(x)))
    elif kind.startswith("Gemma4"):
        assert layer.layer_scalar == 1
        own = given.pop("per_layer_input")
        x = yield layer.post_attention_layernorm(attend(layer.input_layernorm(x)))
        written = layer.mlp(layer.pre_feedforward_layernorm(x))
        x = yield layer.post_feedforward_layernorm(written)
        gated = layer.act_fn(layer.per_layer_input_gate(x)) * own
        yield layer.post_per_layer_input_norm(layer.per_layer_projection(gated))
    else:
        times = getattr(layer, "residual_multiplier", 1.0)
        x = yield times * attend(layer.input_layernorm(x))
        yield times * layer.mlp(layer.post_attention_layernorm(x))


#: What becomes of an update: the first of a layer is that of attention, others are of MLPs.
Change = Callable[[Tensor, int], Tensor]


def layer_output(layer: Any, x: Tensor, given: dict[str, Any], change: Change) -> Tensor:
    """What leaves a layer whose updates are changed."""
    writing = updates(layer, x, dict(given))
    update, place = next(writing), 0
    while True:
        x = x + change(update, place)
        place += 1
        try:
            update = writing.send(x)
        except StopIteration:
            return x


@dataclass
class Forward:
    """``states[l]`` leaves layer l; ``states[0]`` enters the decoder. ``logits``: in float64.

    ``pairs``: what enters each layer, and what leaves it.
    """

    states: list[Tensor]
    logits: Tensor
    pairs: list[tuple[Tensor, Tensor]]

    def log_probabilities(self, batch: Batch) -> list[Tensor]:
        """Of each sample ``[answer tokens, vocabulary]``: what was predicted of its answer."""
        found = []
        for row, is_answer in enumerate(batch.rows("answer")):
            places = is_answer.nonzero().flatten() - 1
            found.append(self.logits[row, places].log_softmax(-1))
        return found


def decoder_of(model: Any) -> Any:
    """Layers and the last norm."""
    return getattr(model.model, "language_model", None) or model.model.text_model


@torch.no_grad()
def forward(
    batch: Batch,
    entered: Tensor | None = None,
    gain: float | Tensor = 1.0,
    layers: Sequence[int] | None = None,
    rows: Tensor | None = None,
    hidden: Sequence[int] = (),
    change: Change | None = None,
    patched: tuple[int, Tensor] = (0, torch.zeros(())),
) -> Forward:
    """Run the decoder.

    Args:
        batch: as it was given.
        entered: what enters layer 1; None: untouched.
        gain: of the updates of some rows.
        layers: in which (from 1); None: in all.
        rows: which ones; None: visual ones.
        hidden: layers in which visual rows alone read visual rows.
        change: of the updates of some rows, in place of a gain.
        patched: a layer, and the states that enter it in some rows.
    """
    model, decoder = batch.model, decoder_of(batch.model)
    x = batch.entered if entered is None else entered
    states, pairs = [x], []
    changed = (batch.rows("visual") if rows is None else rows)[..., None]
    for number, (layer, given) in enumerate(zip(decoder.layers, batch.given, strict=True), start=1):
        chosen = layers is None or number in layers
        if number == patched[0]:
            x = torch.where(changed, patched[1], x)
        if number in hidden:
            given = given | {"attention_mask": _without_visual(batch, given["attention_mask"])}

        def changing(update: Tensor, place: int, chosen: bool = chosen) -> Tensor:
            if not chosen:
                return update
            new = gain * update if change is None else change(update, place)
            return torch.where(changed, new, update)

        h = layer_output(layer, x, given, changing)
        states.append(h)
        pairs.append((x, h))
        x = h + batch.between[number - 1]
    return Forward(states, model.lm_head(decoder.norm(x)), pairs)


def _without_visual(batch: Batch, mask: Tensor | None) -> Tensor:
    """A mask, 0 or far below it, in which no other row reads a visual one."""
    visual = batch.rows("visual")
    count = visual.shape[1]
    made = torch.zeros(len(visual), 1, count, count, dtype=torch.float64)
    for sample, reads, read in np.ndindex(len(visual), count, count):
        if mask is None:
            seen = read <= reads
        else:
            at = mask[min(sample, len(mask) - 1), 0, reads, read]
            seen = bool(at) if mask.dtype == torch.bool else float(at) > -1e30
        if not seen or (visual[sample, read] and not visual[sample, reads]):
            made[sample, 0, reads, read] = torch.finfo(torch.float64).min
    return made


def random_updates(batch: Batch, seeds: Sequence[int]) -> Change:
    """Visual rows get random updates of the norms of their own, one after the other."""
    visual = batch.rows("visual")
    drawn = [torch.Generator().manual_seed(seed) for seed in seeds]

    def change(update: Tensor, _: int) -> Tensor:
        made = torch.zeros_like(update)
        for sample, rows in enumerate(visual):
            noise = torch.randn(int(rows.sum()), update.shape[-1], generator=drawn[sample]).double()
            noise /= noise.norm(dim=-1, keepdim=True)
            made[sample, rows] = noise * update[sample, rows].norm(dim=-1, keepdim=True)
        return made

    return change


# --- the interventions, as edits of what enters layer 1 -------------------------------------------


def times(x: Tensor, rows: Tensor, by: float | Tensor) -> Tensor:
    """Some rows times a number, or ``[batch]`` numbers."""
    return torch.where(rows[..., None], x * torch.as_tensor(by, dtype=x.dtype).reshape(-1, 1, 1), x)


def loudness(x: Tensor, rows: Tensor) -> Tensor:
    """``[batch]`` geometric mean of the norms of some rows."""
    return torch.stack([x[i, rows[i]].norm(dim=-1).log().mean().exp() for i in range(len(x))])


def like_text(batch: Batch, x: Tensor) -> Tensor:
    """A state whose visual rows are as loud as its text, sample by sample."""
    visual = batch.rows("visual")
    return times(x, visual, loudness(x, batch.rows("text")) / loudness(x, visual))


def shuffled(x: Tensor, rows: Tensor, orders: Sequence[Tensor]) -> Tensor:
    """The rows of each sample in another order."""
    x = x.clone()
    for sample, order in enumerate(orders):
        x[sample, rows[sample]] = x[sample, rows[sample]][order]
    return x


def mixed(norms: Tensor, directions: Tensor, rows: Tensor) -> Tensor:
    """The norms of one state and the directions of another, in some rows; else the first."""
    made = directions / directions.norm(dim=-1, keepdim=True) * norms.norm(dim=-1, keepdim=True)
    return torch.where(rows[..., None], made, norms)


@torch.no_grad()
def entered_like_text(batch: Batch, untouched: Forward) -> list[tuple[Tensor, Tensor]]:
    """What each layer takes and returns where it alone reads visual rows as loud as text."""
    decoder: Any = decoder_of(batch.model)
    forward(batch)  # which leaves its own keys to later layers
    found = []
    for layer, (x, _), given in zip(decoder.layers, untouched.pairs, batch.given, strict=True):
        read = like_text(batch, x)
        keys = given.get("shared_kv_states")
        own = given | {"shared_kv_states": dict(keys)} if keys is not None else given
        found.append((read, layer_output(layer, read, own, lambda update, _: update)))
    return found


#: All numbers of fp8 (e4m3) from 0 on; the last one would be 480, and is NaN.
_NORMAL = (2.0 ** (e - 10) * (8 + m) for e in range(1, 16) for m in range(8))
E4M3 = np.array([*(2.0**-9 * m for m in range(8)), *_NORMAL][:-1])


def rounded_by_hand(x: NDArray[np.float64], how: str) -> NDArray[np.float64]:
    """What the largest magnitude of a row, or of all, is the largest int8 or fp8 number of."""
    largest = np.abs(x).max(axis=-1 if how.endswith("token") else None, keepdims=True)
    scale = np.where(largest > 0, largest, 1.0) / (127 if how.startswith("int8") else 448)
    scaled = x / scale
    if how.startswith("int8"):
        return np.rint(scaled) * scale
    scaled = np.float64(np.float32(scaled))  # of which torch makes fp8
    above = np.searchsorted(E4M3, np.abs(scaled)).clip(1, len(E4M3) - 1)
    low, high = (np.abs(np.abs(scaled) - E4M3[place]) for place in (above - 1, above))
    nearest = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    return np.sign(scaled) * E4M3[nearest] * scale


@contextmanager
def linear_by_hand(
    layers: Sequence[nn.Module], how: str, rows: Any = None
) -> Iterator[dict[nn.Module, list[Any]]]:
    """Linear layers compute in NumPy, on what ``rounded_by_hand`` makes of some rows or all.

    Yields what each read, and what it was rounded to.
    """
    seen: dict[nn.Module, list[Any]] = {}

    def run(module: Any, x: Tensor) -> Tensor:
        read = x.numpy()
        rounded = rounded_by_hand(read, how)
        seen.setdefault(module, []).append((read, rounded))
        if rows is not None:
            rounded = np.where(np.asarray(rows).reshape(*read.shape[:-1], 1), rounded, read)
        made = rounded @ module.weight.numpy().T
        return torch.from_numpy(made if module.bias is None else made + module.bias.numpy())

    with ExitStack() as stack:
        for module in (m for layer in layers for m in layer.modules()):
            if isinstance(module, nn.Linear):
                stack.enter_context(patch.object(module, "forward", partial(run, module)))
        yield seen
