"""LLaVA with weights set by hand: one layer's visual update decides the answer, or none does.

A picture says A or B by its red, and each patch carries noise, one number a layer, in pixels of
its own. The attention of layer 5 lets the text read one channel of the visual rows, and the head
makes ``A`` or ``B`` of it. In a planted model that channel is written by the MLP of one layer
before it, from the red; in the others by the projector. Every other layer adds its own noise.
"""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import LlavaConfig, LlavaForConditionalGeneration

from support.processors.tokenizer import CHARACTERS
from support.tiny.fragments import CLIP, EOS, FIRST_TEXT, IMAGE, LLAMA, PATCH, TILE

READING = 5  # the layer whose text reads
LAYERS = 6
#: Channels of the residual stream: of visual rows, of text rows, what the picture says, what is
#: read, the answer, that it stands there, and the noise of the layers.
VISUAL, TEXT, SAID, READ, ANSWER, ANSWERED, NOISE = range(7)
#: So little that it wins as much as it costs: its square lies far below chance.
NOISY = 0.0001
#: Where a patch holds the noise of a layer: (row, column) of a green pixel.
PIXELS = [divmod(place, PATCH) for place in range(READING - 1)]


def write_pictures(folder: Path, count: int, seed: int) -> Path:
    """A file of questions about pictures that say A or B, with noise."""
    random = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        answer = "AB"[random.integers(2)]
        patch = np.full((PATCH, PATCH, 3), 128, np.uint8)
        patch[..., 0] = {"A": 192, "B": 64}[answer]
        for row, column in PIXELS:
            patch[row, column, 1] = 117 + random.integers(-100, 101)  # 117 becomes 0
        patch[-1, -1, 2] = number  # no two pictures are alike
        pixels = np.tile(patch, (TILE // PATCH, TILE // PATCH, 1))
        Image.fromarray(pixels).save(folder / f"{number}.png")
        asked = {"prompt": "A or B?", "answer": answer, "options": ["A", "B"]}
        lines.append(json.dumps({"id": str(number), "image": f"{number}.png", **asked}))
    (folder / "pictures.jsonl").write_text("\n".join(lines))
    return folder / "pictures.jsonl"


@torch.no_grad()
def planted(deciding: int | None, seed: int) -> LlavaForConditionalGeneration:
    """A float32 model of six layers.

    Args:
        deciding: the layer whose visual update decides, 1 to 4; None: no visual update does.
        seed: of everything that decides nothing: what visual and text rows also hold, and what
            layers also write.
    """
    torch.manual_seed(seed)
    config = LlavaConfig(
        text_config=LLAMA | {"num_hidden_layers": LAYERS},
        vision_config=CLIP,
        image_token_index=IMAGE,
    )
    model = LlavaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.zero_()
    _see(model)
    table = model.get_input_embeddings().weight
    table[FIRST_TEXT:, 16:].normal_(0.0, 0.3)
    table[:, TEXT] = 1.0
    layers = model.model.language_model.layers
    for layer in layers:  # turning that nothing reads
        layer.mlp.gate_proj.weight[32:].normal_(0.0, 0.1)
        layer.mlp.up_proj.weight[32:].normal_(0.0, 0.1)
        layer.mlp.down_proj.weight[32:, 32:].normal_(0.0, 0.0003)
    for number, layer in enumerate(layers[: READING - 1], start=1):
        layer.mlp.gate_proj.weight[0, VISUAL] = 4.0  # open for visual rows alone
        layer.mlp.up_proj.weight[0, SAID if number == deciding else NOISE + number - 1] = 1.0
        layer.mlp.down_proj.weight[READ, 0] = 0.008 if number == deciding else NOISY
    attention = layers[READING - 1].self_attn
    attention.v_proj.weight[0, READ] = 1.0
    attention.o_proj.weight[ANSWER, 0] = 1.0
    attention.q_proj.weight[7, TEXT] = attention.k_proj.weight[7, VISUAL] = 4.0  # barely turned
    for character, sign in (("A", 1.0), ("B", -1.0)):
        token = FIRST_TEXT + CHARACTERS.index(character)
        model.lm_head.weight[token, [ANSWER, TEXT]] = torch.tensor([sign, 2.0])
        table[token, ANSWERED] = 4.0
    model.lm_head.weight[EOS, ANSWERED] = 4.0
    if deciding is None:
        _project(model, READ, SAID, times=0.15)
    return model


def _see(model: LlavaForConditionalGeneration) -> None:
    """Let the tower pass pixels on, and the projector write them where the decoder expects them."""
    vision = model.model.vision_tower
    vision = getattr(vision, "vision_model", vision)
    patches = vision.embeddings.patch_embedding.weight
    for channel, (color, row, column) in enumerate([(0, 0, 0), *((1, *at) for at in PIXELS)]):
        patches[2 * channel, color, row, column] = 1.0  # and its negative: their mean is 0
        patches[2 * channel + 1, color, row, column] = -1.0
    # Constants make up nearly all of the norm that the tower divides by.
    sign = torch.tensor([1.0, -1.0]).repeat(8)
    vision.embeddings.position_embedding.weight[:, 16:] = 8.0 * sign
    model.model.multi_modal_projector.linear_1.bias.zero_()
    model.model.multi_modal_projector.linear_2.bias.normal_(0.0, 0.3)
    model.model.multi_modal_projector.linear_2.bias[:16] = 0.0
    model.model.multi_modal_projector.linear_2.bias[VISUAL] = 1.0
    _project(model, SAID, SAID)
    for place in range(len(PIXELS)):
        _project(model, NOISE + place, NOISE + place, feature=1 + place)


def _project(
    model: LlavaForConditionalGeneration,
    channel: int,
    hidden: int,
    feature: int = 0,
    times: float = 1.0,
) -> None:
    """Write one thing that the tower saw into a channel: gelu(x) - gelu(-x) = x."""
    projector = model.model.multi_modal_projector
    for sign, unit in ((1.0, 2 * hidden), (-1.0, 2 * hidden + 1)):
        projector.linear_1.weight[unit, 2 * feature] = 4.0 * sign
        projector.linear_2.weight[channel, unit] = times * sign
