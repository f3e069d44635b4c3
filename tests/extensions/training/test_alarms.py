"""Alarms: planted faults are found, healthy trainings raise none."""

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image, ImageDraw
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch import nn
from transformers import AutoModelForImageTextToText, AutoProcessor

from normprobe import align_norms, find_parts, watch
from normprobe.extensions.training.alarms import Alarm, Judge
from normprobe.extensions.training.processed import Processed, misplaced, processed_by
from normprobe.specimen import SPECIMEN_DIR

STEPS = 12
Change = Callable[[nn.Module], object]


def batches(model: nn.Module, size: int = 3, first: int = 0) -> Iterator[dict[str, Any]]:
    """Other prompts and pictures each step."""
    for seed in range(STEPS * first, STEPS * (first + 1)):
        inputs = dict(tiny_inputs(model, size, seed=seed))
        yield inputs | {"labels": inputs["input_ids"].clone()}


def alarms_of(
    model_type: str,
    *,
    prepare: Change = lambda model: None,
    feed: Callable[[dict[str, Any], int], dict[str, Any]] = lambda inputs, step: inputs,
    at: Callable[[nn.Module, int], object] = lambda model, step: None,
    after_backward: Callable[[nn.Module, int], object] = lambda model, step: None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    rate: float = 1e-3,
    warmup: bool = False,
    rates: Callable[[int], float] | None = None,
    trained: Callable[[nn.Module], Any] = lambda model: model.parameters(),
    size: int = 3,
    every: int = 1,
    seed: int = 0,
    given: Callable[[], tuple[nn.Module, Any, list[dict[str, Any]]]] | None = None,
) -> set[tuple[str, str]]:
    """Names and places of the alarms of one training."""
    torch.manual_seed(seed)
    if given is None:
        model, processor = tiny_model(model_type).train(), None
        fed = list(batches(model, size, seed))
    else:
        model, processor, fed = given()
    prepare(model)
    made = optimizer(trained(model), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        made, rates or (lambda step: step / STEPS if warmup else 1 - step / (STEPS + 1))
    )
    special = () if processor is not None else SPECIAL_IDS
    with watch(model, every, output=None, special_token_ids=special, processor=processor) as seen:
        for step, inputs in enumerate(fed):
            at(model, step)
            loss = model(**feed(inputs, step)).loss
            loss.backward()
            after_backward(model, step)
            made.step()
            schedule.step()
            made.zero_grad()
    assert not seen.gave_up
    return {(alarm.name, alarm.where) for alarm in seen.alarms}


def part(model: nn.Module, role: str) -> nn.Module:
    found = getattr(find_parts(model), role)
    return found.module


def freeze(model: nn.Module, *roles: str) -> None:
    for role in roles:
        part(model, role).requires_grad_(False)


def with_lora(model: nn.Module) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(target_modules=["q_proj", "v_proj"], r=4), model)
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora" in name)


def zero_output(model: nn.Module) -> None:
    """A projector whose last layer begins at zero: visual tokens are all zero, once."""
    last = [each for each in part(model, "projector").modules() if isinstance(each, nn.Linear)][-1]
    with torch.no_grad():
        for weight in last.parameters():
            weight.zero_()


def with_specimen() -> tuple[nn.Module, Any, list[dict[str, Any]]]:
    """The specimen, its processor, and a batch of drawn pictures a step."""
    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(SPECIMEN_DIR)
    fed = []
    for step in range(STEPS):
        pictures = []
        for number in range(3):
            picture = Image.new("RGB", (64 + 10 * number, 64), ("white", "black", "grey")[number])
            place = 4 + 3 * step, 6 + 2 * step, 30 + 3 * step, 40
            ImageDraw.Draw(picture).ellipse(place, fill=("red", "green", "blue")[step % 3])
            pictures.append(picture)
        text = [f"USER: {processor.image_token} what is drawn in {step}?"] * 3
        made = dict(processor(text=text, images=pictures, return_tensors="pt"))
        fed.append(made | {"labels": made["input_ids"].clone()})
    return model.train(), processor, fed


#: Trainings as people do them.
HEALTHY: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("llava", {}),
    "llava next": ("llava_next", {}),
    "qwen2.5-vl": ("qwen2_5_vl", {}),
    "qwen3-vl": ("qwen3_vl", {}),
    "internvl": ("internvl", {}),
    "gemma3": ("gemma3", {}),
    "idefics3": ("idefics3", {}),
    "smolvlm": ("smolvlm", {}),
    "paligemma": ("paligemma", {}),
    "pixtral through llava": ("mistral3", {}),
    "one sample a batch": ("llava", {"size": 1}),
    "warm-up from zero": ("qwen2_5_vl", {"warmup": True}),
    "SGD": ("llava", {"optimizer": torch.optim.SGD, "rate": 1e-1}),
    "small learning rate": ("llava", {"rate": 1e-5}),
    "projector alone, at a large rate": (
        "llava",
        {"prepare": lambda m: freeze(m, "vision_encoder", "decoder_layers"), "rate": 2e-3},
    ),
    "frozen vision": ("qwen3_vl", {"prepare": lambda m: freeze(m, "vision_encoder", "projector")}),
    "LoRA": ("llava", {"prepare": with_lora}),
    "aligned": ("llava", {"prepare": align_norms}),
    "bfloat16": ("llava", {"prepare": lambda m: m.to(torch.bfloat16)}),
    "every third step": ("llava_next", {"every": 3}),
    "zero-initialised projector": ("llava", {"prepare": zero_output}),
    "zero-initialised projector, other type": ("internvl", {"prepare": zero_output}),
    "zero-initialised projector in a warm-up from zero": (
        "llava",
        {"prepare": zero_output, "warmup": True},
    ),
    "with its processor": ("", {"given": with_specimen}),
    "with its processor, at a small rate": ("", {"given": with_specimen, "rate": 1e-5}),
    "a rate that ends at zero": ("llava", {"rates": lambda step: 1 - step / (STEPS - 1)}),
    **{
        f"{model_type}, seed {seed}": (model_type, {"seed": seed})
        for model_type in ("llava", "qwen2_5_vl", "internvl", "paligemma", "llava_next", "qwen3_vl")
        for seed in (1, 2)
    },
    "LoRA, every third step": ("qwen2_5_vl", {"prepare": with_lora, "every": 3, "seed": 3}),
    "SGD, warm-up": ("qwen3_vl", {"optimizer": torch.optim.SGD, "rate": 1e-1, "warmup": True}),
}


def dead(model: nn.Module) -> None:
    """Its output no longer depends on its weights."""
    part(model, "projector").register_forward_hook(
        lambda module, args, out: out.detach() if isinstance(out, torch.Tensor) else out
    )


def detached(model: nn.Module) -> None:
    def cut(module: nn.Module, args: Any, out: Any) -> Any:
        for name, value in list(out.items()):
            if isinstance(value, torch.Tensor):
                out[name] = value.detach()
            elif isinstance(value, tuple):
                out[name] = tuple(state if state is None else state.detach() for state in value)
        return out

    part(model, "vision_encoder").register_forward_hook(cut)


def constant(model: nn.Module) -> None:
    """Whatever comes in, the same goes out."""
    with torch.no_grad():
        for weight in part(model, "projector").parameters():
            if weight.dim() > 1:
                weight.zero_()


def blank(inputs: dict[str, Any], step: int) -> dict[str, Any]:
    return inputs | {"pixel_values": torch.full_like(inputs["pixel_values"], 0.5)}


def same_pictures(inputs: dict[str, Any], step: int) -> dict[str, Any]:
    torch.manual_seed(0)
    return inputs | {"pixel_values": torch.randn_like(inputs["pixel_values"])}


def broken_pixels(inputs: dict[str, Any], step: int) -> dict[str, Any]:
    pixels = inputs["pixel_values"].clone()
    pixels[..., 0] = torch.nan
    return inputs | {"pixel_values": pixels}


def scaled(role: str, layer: int | None, factor: float) -> Callable[[nn.Module, int], None]:
    def at(model: nn.Module, step: int) -> None:
        if step != 5:
            return
        module = part(model, role)
        module = module if layer is None else list(module.children())[layer]
        with torch.no_grad():
            for weight in module.parameters():
                if weight.dim() > 1:
                    weight.mul_(factor)

    return at


def in_half(model: nn.Module) -> None:
    """Large states in float16, which overflow inside the second layer."""
    model.half()
    layer = list(part(model, "decoder_layers").children())[1]
    with torch.no_grad():
        layer.mlp.down_proj.weight.mul_(1e6)


def near_half(model: nn.Module) -> None:
    model.half()
    layer = list(part(model, "decoder_layers").children())[1]
    layer.register_forward_hook(
        lambda module, args, out: (
            out * (40000.0 / out.norm(dim=-1).max().item())
            if isinstance(out, torch.Tensor)
            else out
        )
    )


def frozen_at(role: str) -> Callable[[nn.Module, int], None]:
    return lambda model, step: freeze(model, role) if step == 4 else None


def without(role: str) -> Callable[[nn.Module], Any]:
    def trained(model: nn.Module) -> list[nn.Parameter]:
        out = {id(weight) for weight in part(model, role).parameters()}
        return [weight for weight in model.parameters() if id(weight) not in out]

    return trained


def with_two_adapters(model: nn.Module) -> None:
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name in ("one", "two"):
        config = LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
        inject_adapter_in_model(config, model, adapter_name=name)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.set_adapter(["one", "two"])


def pixels(change: Callable[[torch.Tensor], torch.Tensor], normalised: bool = True) -> Any:
    """Pixels from 0 to 1, changed; then normalised as CLIP does."""

    def feed(inputs: dict[str, Any], step: int) -> dict[str, Any]:
        changed = change(inputs["pixel_values"] * _STD + _MEAN)
        return inputs | {"pixel_values": (changed - _MEAN) / _STD if normalised else changed}

    return feed


_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


def scattered(inputs: dict[str, Any], step: int) -> dict[str, Any]:
    """The tokens of each prompt in another order."""
    order = torch.randperm(inputs["input_ids"].shape[1], generator=torch.Generator().manual_seed(0))
    return inputs | {name: inputs[name][:, order] for name in ("input_ids", "labels")}


def one_short(inputs: dict[str, Any], step: int) -> dict[str, Any]:
    """A placeholder of the first sample stands in the second."""
    ids = inputs["input_ids"].clone()
    marks = (ids[0] == ids[0].mode().values).nonzero()[:, 0]
    ids[0, marks[-1]], ids[1, marks[-1] + 1] = 5, ids[0, marks[0]].item()
    return inputs | {"input_ids": ids, "labels": ids.clone()}


def spoilt(factor: float) -> Callable[[nn.Module, int], None]:
    def change(model: nn.Module, step: int) -> None:
        for weight in model.parameters():
            if step >= 6 and weight.grad is not None:
                weight.grad.mul_(factor)

    return change


#: Type, what is planted, and the alarm that has to be among those raised.
FAULTS: dict[str, tuple[str, dict[str, Any], tuple[str, str]]] = {
    "dead projector": ("llava", {"prepare": dead}, ("gradient", "projector")),
    "dead projector, other type": ("internvl", {"prepare": dead}, ("gradient", "projector")),
    "detached encoder": ("llava", {"prepare": detached}, ("gradient", "vision_encoder")),
    "blank images": ("llava", {"feed": blank}, ("pixels", "visual")),
    "blank patches": ("qwen2_5_vl", {"feed": blank}, ("pixels", "visual")),
    "the same pictures again": ("llava", {"feed": same_pictures}, ("pixels", "visual")),
    "constant projector": ("llava", {"prepare": constant}, ("pixels", "visual")),
    "learning rate x 100": ("llava", {"rate": 1e-1}, ("update", "projector")),
    "learning rate x 100, other type": ("qwen3_vl", {"rate": 1e-1}, ("update", "decoder_layers")),
    "learning rate / 10^5": ("llava", {"rate": 1e-8}, ("update", "decoder_layers")),
    "projector not in the optimizer": (
        "llava",
        {"trained": without("projector")},
        ("still", "projector"),
    ),
    "layers not in the optimizer": (
        "qwen3_vl",
        {"trained": without("decoder_layers")},
        ("still", "decoder_layers"),
    ),
    "projector frozen by mistake": (
        "llava",
        {"at": frozen_at("projector")},
        ("frozen", "projector"),
    ),
    "encoder frozen by mistake": (
        "qwen2_5_vl",
        {"at": frozen_at("vision_encoder")},
        ("frozen", "vision_encoder"),
    ),
    "float16 overflow": ("llava", {"prepare": in_half}, ("nonfinite", "states")),
    "float16 near overflow": ("llava", {"prepare": near_half}, ("overflow", "visual")),
    "NaN in the pixels": ("llava", {"feed": broken_pixels}, ("nonfinite", "states")),
    "projector explodes": ("llava", {"at": scaled("projector", None, 100.0)}, ("growth", "visual")),
    "a layer explodes": ("llava", {"at": scaled("decoder_layers", 1, 300.0)}, ("growth", "text")),
    "pixels x 255": (
        "",
        {
            "given": with_specimen,
            "feed": pixels(lambda x: 255 * x),
        },
        ("processor", "pixels"),
    ),
    "pixels / 255": (
        "",
        {
            "given": with_specimen,
            "feed": pixels(lambda x: x / 255),
        },
        ("processor", "pixels"),
    ),
    "pixels not normalised": (
        "",
        {"given": with_specimen, "feed": pixels(lambda x: x.clamp(0, 1), normalised=False)},
        ("processor", "pixels"),
    ),
    "placeholders among the text": (
        "",
        {"given": with_specimen, "feed": scattered},
        ("processor", "placeholders"),
    ),
    "a placeholder of another sample": (
        "",
        {"given": with_specimen, "feed": one_short},
        ("processor", "placeholders"),
    ),
    "a learning rate that stays 0": ("llava", {"rates": lambda step: 0.0}, ("rate", "optimizer")),
    "a learning rate of 0 behind the warm-up": (
        "llava",
        {"rates": lambda step: step / 4 * (step < 5)},
        ("rate", "optimizer"),
    ),
    "gradients x 1000": (
        "llava",
        {"after_backward": spoilt(1000.0)},
        ("growth", "projector"),
    ),
    "gradients that are not finite": (
        "llava",
        {"after_backward": spoilt(math.inf), "optimizer": torch.optim.SGD, "rate": 0.1},
        ("nonfinite", "gradient"),
    ),
    "two adapters": ("llava", {"prepare": with_two_adapters}, ("adapters", "layers")),
    "table explodes": ("llava", {"at": scaled("text_embedding", None, 50.0)}, ("growth", "text")),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_raises_none(name: str) -> None:
    model_type, options = HEALTHY[name]
    assert alarms_of(model_type, **options) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    model_type, options, expected = FAULTS[name]
    assert expected in alarms_of(model_type, **options)


#: A forward of prompts without pictures.
TEXT_ALONE = SimpleNamespace(varies=(-math.inf, math.nan), pixels=[])


def states(norm: float = 1.0, **nonfinite: int) -> pd.DataFrame:
    """Rows of text and special tokens by layer; ``text_2=3``: three are broken behind layer 2."""
    rows = [
        {
            "group": group, "layer": layer, "dtype": "float32", "norm_max": norm,
            "norm_geometric_mean": norm, "nonfinite": nonfinite.get(f"{group}_{layer}", 0),
        }
        for layer in range(4)
        for group in ("text", "special")
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(3.1, []), (3.2, ["the norm of text tokens after layer 0 grew 10 x from step 100 to 200"])],
)
def test_norms_may_grow_by_ten_over_more_than_a_hundred_steps(
    factor: float, expected: list[str]
) -> None:
    """Measured every 50 steps, from step 100 on."""
    judge = Judge()
    raised: list[Alarm] = []
    for number in range(8):
        raised += judge.states(100 + 50 * number, states(factor**number), TEXT_ALONE)
    assert [alarm.words for alarm in raised if alarm.where == "text"] == expected
    assert {alarm.name for alarm in raised} <= {"growth"}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"text_2": 3, "text_3": 5}, "3 states of text tokens are not finite after layer 2"),
        (
            {"text_1": 1, "special_1": 2, "text_2": 9},
            "3 states of text and special tokens are not finite after layer 1",
        ),
        ({"text_0": 4, "text_3": 6}, "4 states of text tokens are not finite at the decoder input"),
    ],
)
def test_states_are_broken_where_they_are_first(broken: dict[str, int], words: str) -> None:
    found = Judge().states(7, states(**broken), TEXT_ALONE)
    assert found == [Alarm(7, "nonfinite", "states", words)]


def of_projector(gradient: float, ratio: float = 1e-3, reached: bool = True) -> pd.DataFrame:
    row = {"stage": "projector", "gradient_norm": gradient, "update_ratio": ratio}
    return pd.DataFrame([{**row, "reached": reached}])


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([1.0, 2.0, 1.5, 199.0], []),
        ([1.0, 2.0, 1.5, 201.0], ["the gradient of the projector is 100 x the largest before"]),
        ([1e-6, 1.0], []),  # too early to tell
        ([1.0, math.nan], ["the gradient of the projector is not finite"]),
        ([0.0, 1.0], []),  # an output that began at zero
        ([0.0, 1.0, 0.0, 1.0], []),  # not in a row
        ([0.0, 0.0], ["the projector is to be trained and receives no gradient"]),
    ],
)
def test_gradients_are_judged_by_those_before(gradients: list[float], expected: list[str]) -> None:
    judge = Judge()
    found = [
        alarm
        for step, gradient in enumerate(gradients)
        for alarm in judge.weights(step, of_projector(gradient), True, 1.0)
    ]
    assert [alarm.words for alarm in found] == expected


def test_a_part_that_no_gradient_reaches_is_told_at_once() -> None:
    (alarm,) = Judge().weights(0, of_projector(0.0, reached=False), True, 1.0)
    assert alarm.words == "the projector is to be trained and receives no gradient"


#: Of a processor: 4 placeholders (9) a picture, between 7 and 8.
WRAPPED = Processed(-1.0, 1.0, frozenset([9]), 4, frozenset([7]), frozenset([8]))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 7, 9, 9, 9, 9, 8, 2], []),
        ([7, 9, 9, 9, 9, 8, 7, 9, 9, 9, 9, 8], []),
        ([1, 7, 9, 9, 9, 8], ["3 placeholders stand side by side, and a picture has 4"]),
        ([1, 1, 9, 9, 9, 9, 8], ["token 1 stands before", "where the processor puts 7"]),
        ([7, 9, 9, 9, 9], ["token -1 stands behind", "where the processor puts 8"]),
    ],
)
def test_placeholders_stand_as_the_processor_puts_them(ids: list[int], expected: list[str]) -> None:
    found = " ".join(misplaced(WRAPPED, [[1, 2], ids]))
    assert bool(found) == bool(expected) and all(words in found for words in expected)


def test_what_a_processor_makes_is_read_from_it() -> None:
    """By hand, of CLIP's mean and standard deviation."""
    processor = AutoProcessor.from_pretrained(SPECIMEN_DIR)
    made = processed_by(processor, [3])
    assert (made.tokens, made.before, made.after) == (64, frozenset(), frozenset())
    lowest, highest = -0.48145466 / 0.26862954, (1 - 0.40821073) / 0.27577711
    assert (made.lowest, made.highest) == pytest.approx((lowest, highest))
    assert processed_by(object(), []) == Processed(-math.inf, math.inf)


@pytest.mark.parametrize(
    ("ratios", "alarms"),
    [
        ([1e-7, 1e-3, 1e-7, 1e-3, 1e-7], 0),
        ([1e-7, 1e-3, 1e-7, 1e-7], 1),
    ],
)
def test_small_updates_are_told_where_they_follow_each_other(
    ratios: list[float], alarms: int
) -> None:
    judge = Judge()
    made = [(step, of_projector(1.0, ratio)) for step, ratio in enumerate(ratios)]
    found = [alarm for step, rows in made for alarm in judge.weights(step, rows, True, 1.0)]
    assert [alarm.name for alarm in found] == ["update"] * alarms


@pytest.mark.parametrize(
    ("ratio", "warmth", "alarms"), [(2e-6, 0.1, 0), (2e-6, 1.0, 1), (2e-7, 0.1, 1)]
)
def test_a_small_update_is_judged_by_the_warmth(ratio: float, warmth: float, alarms: int) -> None:
    judge = Judge()
    rows = of_projector(1.0, ratio)
    found = [alarm for step in range(2) for alarm in judge.weights(step, rows, True, warmth)]
    assert [alarm.name for alarm in found] == ["update"] * alarms
