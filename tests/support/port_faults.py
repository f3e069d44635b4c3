"""Faults of ports, planted in tiny models: what a port gets wrong, and where it first shows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.activations import ACT2FN

Model = Any


class Fault(NamedTuple):
    """One thing that a port gets wrong."""

    model_type: str
    plant: Callable[[Model], object]
    stage: str  # where it first shows
    hint: str  # what the sentence has to say of it


def _decoder(model: Model, layer: int = 0) -> Any:
    return model.model.language_model.layers[layer]


def _mirrored(weight: nn.Parameter) -> None:
    weight.data = weight.data.T.clone()


def _mirrored_patches(weight: nn.Parameter) -> None:
    weight.data = weight.data.transpose(-1, -2).clone()


def _swap_norm_and_linear(model: Model) -> None:
    projector = model.model.multi_modal_projector

    def forward(features: Any, sizes: Any) -> Any:
        merged = projector.norm(projector.patch_merger(features, sizes))
        return projector.linear_2(projector.act(projector.linear_1(merged)))

    projector.forward = forward


def _hand_on(model: Model, change: Callable[[Any, Any], Any]) -> None:
    """Let the projector read something else: ``change(what it read, all rows of the encoder)``."""
    seen: list[Any] = []
    model.model.vision_tower.register_forward_hook(
        lambda *args: seen.append(args[-1].hidden_states[-2])
    )
    model.model.multi_modal_projector.register_forward_pre_hook(
        lambda _, args: (change(args[0], seen[-1]), *args[1:])
    )


def _columns_first(rows: Any, _: Any = None) -> Any:
    side = round(rows.shape[1] ** 0.5)
    return rows.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)


def _behind(module: nn.Module, change: Callable[[Any], Any]) -> None:
    module.register_forward_hook(lambda _, args, output: change(output))


def _exchange(model: Model) -> None:
    layers = model.model.language_model.layers
    layers[0], layers[1] = layers[1], layers[0]


def _leave_out(model: Model, layer: int) -> None:
    _decoder(model, layer).register_forward_hook(
        lambda _, args, kwargs, output: kwargs.get("hidden_states", args[0] if args else None),
        with_kwargs=True,
    )


def _interleave_heads(model: Model) -> None:
    keys = _decoder(model).self_attn.k_proj.weight
    keys.data = keys.data.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1).clone()


def _rope_halves(model: Model) -> None:
    """Rotary weights for pairs of neighbours, run with code for halves."""
    weight = _decoder(model).self_attn.q_proj.weight
    weight.data = weight.data.unflatten(0, (-1, 8, 2)).transpose(1, 2).flatten(0, 2).clone()


def _in_all_layers(change: Callable[[Any], object]) -> Callable[[Model], object]:
    return lambda model: [change(layer) for layer in model.model.language_model.layers]


def _with_eps(eps: float) -> Callable[[Model], object]:
    return _in_all_layers(lambda layer: setattr(layer.input_layernorm, "variance_epsilon", eps))


def _exchange_weights(one: str, other: str) -> Callable[[Model], object]:
    def plant(model: Model) -> None:
        first, second = (model.get_parameter(name) for name in (one, other))
        first.data, second.data = second.data.clone(), first.data.clone()

    return plant


def _drop_last(model: Model) -> None:
    del model.model.language_model.layers[-1]
    model.config.text_config.num_hidden_layers -= 1


def _set(name: str, value: Any) -> Callable[[Model], object]:
    def plant(model: Model) -> None:
        holder, _, last = name.rpartition(".")
        setattr(model.get_submodule(holder), last, value)

    return plant


def _scaled(name: str, factor: float) -> Callable[[Model], object]:
    return lambda model: model.get_parameter(name).data.mul_(factor)


PROJECTOR, TOWER = "model.multi_modal_projector", "model.vision_tower"
TEXT = "model.language_model"

FAULTS: dict[str, Fault] = {
    "norm and linear swapped": Fault(
        "mistral3", _swap_norm_and_linear, "projector_output", "order"
    ),
    "layer off by one": Fault(
        "llava",
        lambda m: setattr(m.config, "vision_feature_layer", -1),
        "projector_input",
        "another of its layers",
    ),
    "missing scale of the embedding": Fault(
        "gemma3",
        lambda m: m.model.language_model.embed_tokens.embed_scale.fill_(1.0),
        "decoder_input",
        "1 / the square root of a hidden size, 64",
    ),
    "scale behind the projector applied twice": Fault(
        "llava",
        lambda m: _behind(m.model.multi_modal_projector, lambda rows: 2 * rows),
        "projector_output",
        "applied twice",
    ),
    "rope theta": Fault(
        "llava",
        lambda m: m.model.language_model.rotary_emb.inv_freq.pow_(1.2),
        "layer 1",
        "rotary positions",
    ),
    "rope of another layout": Fault("llava", _rope_halves, "layer 1", "rotary positions"),
    "kept CLS, last patch dropped": Fault(
        "llava",
        lambda m: _hand_on(m, lambda read, seen: torch.cat([seen[:, :1], read[:, :-1]], 1)),
        "projector_input",
        "other rows",
    ),
    "wrong activation of the projector": Fault(
        "llava", _set(f"{PROJECTOR}.act", ACT2FN["relu"]), "projector_output", "activation"
    ),
    "tanh for erf in the projector": Fault(
        "llava",
        _set(f"{PROJECTOR}.act", ACT2FN["gelu_pytorch_tanh"]),
        "projector_output",
        "activation",
    ),
    "quick gelu": Fault(
        "internvl",
        _set(f"{TOWER}.encoder.layer.0.mlp.activation_fn", ACT2FN["quick_gelu"]),
        "vision_encoder",
        "vision encoder",
    ),
    "wrong activation of the decoder": Fault(
        "llava", _set(f"{TEXT}.layers.0.mlp.act_fn", ACT2FN["gelu"]), "layer 1", "activation"
    ),
    "transposed weight of the projector": Fault(
        "llava",
        lambda m: _mirrored(m.model.multi_modal_projector.linear_2.weight),
        "projector_output",
        "weights",
    ),
    "transposed weight of the decoder": Fault(
        "qwen2_5_vl",
        lambda m: _mirrored(_decoder(m, 1).self_attn.o_proj.weight),
        "layer 2",
        "weights",
    ),
    "wrong eps": Fault(
        "qwen2_5_vl",
        _set(f"{TEXT}.layers.0.input_layernorm.variance_epsilon", 1e-2),
        "layer 1",
        "eps",
    ),
    "dropped bias": Fault(
        "llava", _scaled(f"{PROJECTOR}.linear_1.bias", 0.0), "projector_output", "biases"
    ),
    "dropped bias of the queries": Fault(
        "qwen2_5_vl", _scaled(f"{TEXT}.layers.0.self_attn.q_proj.bias", 0.0), "layer 1", "biases"
    ),
    "patches column by column": Fault(
        "llava", lambda m: _hand_on(m, _columns_first), "projector_input", "another order"
    ),
    "rows in another order behind the projector": Fault(
        "llava",
        lambda m: _behind(m.model.multi_modal_projector, lambda rows: rows.flip(-2)),
        "projector_output",
        "another order",
    ),
    "no position embedding": Fault(
        "gemma3",
        _scaled(f"{TOWER}.embeddings.position_embedding.weight", 0.0),
        "vision_encoder",
        "position embeddings",
    ),
    "gain of a norm plus one": Fault(
        "internvl",
        lambda m: _decoder(m).input_layernorm.weight.data.add_(1.0),
        "layer 1",
        "norms",
    ),
    "no norm of the queries": Fault(
        "qwen3_vl", _set(f"{TEXT}.layers.0.self_attn.q_norm", nn.Identity()), "layer 1", "its norms"
    ),
    "heads interleaved": Fault("llava", _interleave_heads, "layer 1", "their layout"),
    "a layer left out": Fault(
        "llava", lambda m: _leave_out(m, 1), "layer 2", "the state of layer 1"
    ),
    # That they are another layer's no state tells: on what enters layer 1, layer 2 never ran.
    "two layers exchanged": Fault("llava", _exchange, "layer 1", "weights"),
    "line break of tiles": Fault(
        "llava_next", _scaled("model.image_newline", 0.0), "decoder_input", "newline"
    ),
    "deepstack left out": Fault(
        "qwen3_vl",
        lambda m: [_behind(x, lambda rows: 0 * rows) for x in m.model.visual.deepstack_merger_list],
        "layer 2",
        "Mostly visual tokens: look at what is added to them",
    ),
    "no final norm": Fault("llava", _set(f"{TEXT}.norm", nn.Identity()), "logits", "final norm"),
    "wrong eps in all layers": Fault("llava", _with_eps(1e-1), "layer 1", "eps"),
    "last layer left out": Fault("llava", _drop_last, "layer 3", "no layer 3, which is the last"),
    "last layer an identity": Fault(
        "llava", lambda m: _leave_out(m, 2), "layer 3", "the state of layer 2"
    ),
    "gate and up exchanged": Fault(
        "llava",
        _exchange_weights(
            f"{TEXT}.layers.0.mlp.gate_proj.weight", f"{TEXT}.layers.0.mlp.up_proj.weight"
        ),
        "layer 1",
        "weights",
    ),
    "keys and values exchanged": Fault(
        "llava",
        _exchange_weights(
            f"{TEXT}.layers.1.self_attn.k_proj.weight", f"{TEXT}.layers.1.self_attn.v_proj.weight"
        ),
        "layer 2",
        "weights",
    ),
    "scale of attention": Fault(
        "internvl",
        _in_all_layers(lambda layer: setattr(layer.self_attn, "scaling", 0.1)),
        "layer 1",
        "look at what follows",
    ),
    "tanh for erf in the decoder": Fault(
        "gemma3", _set(f"{TEXT}.layers.0.mlp.act_fn", ACT2FN["gelu"]), "layer 1", "activation"
    ),
    "rope theta, of Qwen": Fault(
        "qwen2_5_vl",
        lambda m: m.model.language_model.rotary_emb.inv_freq.pow_(1.1),
        "layer 1",
        "rotary positions",
    ),
    "a dropped head": Fault(
        "llava",
        lambda m: m.get_parameter(f"{TEXT}.layers.0.self_attn.o_proj.weight").data[:, :16].zero_(),
        "layer 1",
        "weights",
    ),
    "embedding scaled twice": Fault(
        "gemma3",
        lambda m: m.model.language_model.embed_tokens.embed_scale.mul_(8.0),
        "decoder_input",
        "applied twice",
    ),
    "residual halved": Fault(
        "llava",
        lambda m: _behind(_decoder(m, 0), lambda state: 0.5 * state),
        "layer 1",
        "Usually a scale",
    ),
    "final norm without its weight": Fault(
        "llava", _scaled(f"{TEXT}.norm.weight", 0.7), "logits", "Usually a scale"
    ),
    "logits twice": Fault("llava", _scaled("lm_head.weight", 2.0), "logits", "Usually a scale"),
    "wrong eps of the final norm": Fault(
        "llava", _set(f"{TEXT}.norm.variance_epsilon", 10.0), "logits", "eps of the final norm"
    ),
    "no class token": Fault(
        "llava",
        _scaled(f"{TOWER}.embeddings.class_embedding", 0.0),
        "vision_encoder",
        "vision encoder",
    ),
    "patch embedding mirrored": Fault(
        "llava",
        lambda m: _mirrored_patches(m.get_parameter(f"{TOWER}.embeddings.patch_embedding.weight")),
        "vision_encoder",
        "vision encoder",
    ),
    "visual rows shifted by one": Fault(
        "llava",
        lambda m: _behind(m.model.multi_modal_projector, lambda rows: rows.roll(1, -2)),
        "projector_output",
        "another order",
    ),
    "visual tokens / sqrt of the hidden size": Fault(
        "llava",
        lambda m: _behind(m.model.multi_modal_projector, lambda rows: rows / 8),
        "projector_output",
        "1 / the square root of a hidden size, 64",
    ),
    "projector without its second layer": Fault(
        "llava", _set(f"{PROJECTOR}.linear_2", nn.Identity()), "projector_output", "linear layers"
    ),
    "norms of keys left out": Fault(
        "qwen3_vl",
        _in_all_layers(lambda layer: setattr(layer.self_attn, "k_norm", nn.Identity())),
        "layer 1",
        "norms",
    ),
    "another head": Fault(
        "llava",
        lambda m: m.lm_head.weight.data.copy_(m.lm_head.weight.data.roll(1, 0)),
        "logits",
        "the head",
    ),
}


def _image_setting(**change: Any) -> Callable[[Any], object]:
    def plant(processor: Any) -> None:
        for name, value in change.items():
            assert hasattr(processor.image_processor, name)
            setattr(processor.image_processor, name, value)

    return plant


def _channels_reversed(processor: Any) -> None:
    images = processor.image_processor
    preprocess = images.preprocess
    blue_first = {"image_mean": images.image_mean[::-1], "image_std": images.image_std[::-1]}

    def reversed_(pictures: Any, *args: Any, **kwargs: Any) -> Any:
        made = preprocess(pictures, *args, **kwargs | blue_first)
        made["pixel_values"] = made["pixel_values"].flip(1)
        return made

    images.preprocess = reversed_


def _other_template(processor: Any) -> None:
    processor.chat_template = processor.chat_template.replace("user", "User") + " "


#: What the processor of a port gets wrong; all of it shows in the inputs.
OF_PROCESSORS: dict[str, Fault] = {
    "channel order": Fault("llava", _channels_reversed, "inputs", "channel order"),
    "mean and std": Fault(
        "llava", _image_setting(image_mean=[0.5] * 3, image_std=[0.5] * 3), "inputs", "mean and std"
    ),
    "no rescaling": Fault("llava", _image_setting(do_rescale=False), "inputs", "mean and std"),
    "resampling": Fault("llava", _image_setting(resample=2), "inputs", "resampling"),
    "image size": Fault(
        "idefics3", _image_setting(size={"longest_edge": 16}), "inputs", "size, crop or tiles"
    ),
    "tiles": Fault("idefics3", _image_setting(do_image_splitting=False), "inputs", "tiles"),
    "chat template": Fault("llava", _other_template, "inputs", "chat template"),
}
