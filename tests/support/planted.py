"""LLaVA with weights set by hand: one layer's visual update decides the answer, or none does.

A picture says A or B by its red, and each patch carries noise, one number a layer, in pixels of
its own. The attention of layer 5 lets the text read one channel of the visual rows, and the head
makes ``A`` or ``B`` of it. In a planted model that channel is written by the MLP of one layer
before it, from the red; in the others by the projector. Every other layer adds its own noise.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import LlavaConfig, LlavaForConditionalGeneration

from support.processors import make_processor
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


@torch.no_grad()
def inert(
    seed: int, deciding: int | None = 2, louder: float = 100.0
) -> LlavaForConditionalGeneration:
    """A layer decides, but visual tokens enter so loud that what it writes hardly weighs."""
    model = planted(deciding, seed)
    out = model.model.multi_modal_projector.linear_2
    out.weight.mul_(louder)
    out.bias.mul_(louder)
    # What hardly weighs turns no answer.
    model.lm_head.weight[FIRST_TEXT + CHARACTERS.index("A"), TEXT] += 0.05
    return model


@torch.no_grad()
def bump(seed: int, high: float = 0.5) -> LlavaForConditionalGeneration:
    """Turning by as much as it does, or not at all, is right; half of it is wrong.

    ``READ`` enters as ``high`` and layer 1 turns it round. The text says what the picture says
    where ``READ`` is large, either way, and else its opposite.
    """
    model = planted(1, seed)
    layers = model.model.language_model.layers
    out = model.model.multi_modal_projector.linear_2
    out.bias[READ] = high
    x = out.bias[None, None]
    first, last = layers[0].mlp, layers[READING].mlp
    first.up_proj.weight[0].zero_()
    first.up_proj.weight[0, VISUAL] = 1.0
    first.down_proj.weight[READ, 0] = 1.0
    written = first(layers[0].post_attention_layernorm(x))[0, 0, READ]
    first.down_proj.weight[READ, 0] = -2 * high / written
    attention = layers[READING - 1].self_attn
    attention.v_proj.weight[1, SAID] = 1.0
    attention.o_proj.weight[ANSWER, 0] = 0.0
    attention.o_proj.weight[[READ, SAID], [0, 1]] = torch.tensor([4.0, 0.5])
    for unit, sign in enumerate((1.0, -1.0)):  # said x |read|
        last.gate_proj.weight[unit, READ] = 4.0 * sign
        last.up_proj.weight[unit, SAID] = 1.0
        last.down_proj.weight[ANSWER, unit] = 0.05
    last.gate_proj.weight[2, TEXT] = 1.0  # less than said
    last.up_proj.weight[2, SAID] = 1.0
    last.down_proj.weight[ANSWER, 2] = -0.5
    return model


@torch.no_grad()
def stacked(seed: int) -> LlavaForConditionalGeneration:
    """What decides is added to visual tokens in front of layer 3, as DeepStack adds features."""
    model = planted(None, seed)
    model.model.multi_modal_projector.linear_2.weight[READ] = 0.0

    def add(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x = args[0].clone()
        x[..., READ] += 0.15 * x[..., SAID] * x[..., VISUAL]
        return (x, *args[1:])

    model.model.language_model.layers[2].register_forward_pre_hook(add)
    return model


@torch.no_grad()
def overflowing(seed: int) -> LlavaForConditionalGeneration:
    """In float16 what says A is too loud for 8 times itself."""
    model = planted(None, seed)
    channel = 40
    model.model.multi_modal_projector.linear_2.bias[channel] = 5000.0
    _project(model, channel, 30, times=16000.0)
    return model.half()


#: The four answers to "does inertia cost?", each true of a model by its weights.
CASES = {
    "inert-and-harmful": lambda: inert(1),
    "inert-and-harmless": lambda: inert(1, deciding=None),
    "turning-and-used": lambda: planted(2, 1),
    "turning-and-unused": lambda: planted(None, 1),
}


def write_cases(folder: Path) -> None:
    """The four as checkpoints, and the pictures that they are asked about."""
    for name, make in CASES.items():
        make().save_pretrained(folder / name)
        make_processor("llava").save_pretrained(folder / name)
    write_pictures(folder, 48, 1)


if __name__ == "__main__":
    write_cases(Path(sys.argv[1]))
