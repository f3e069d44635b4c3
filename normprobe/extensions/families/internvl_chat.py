"""InternVL in its chat layout (1.5, 2, 2.5, 3), which has no processor.

Its README cuts the image by hand: resized to the grid of squares whose shape is closest to its own,
of at most ``max_dynamic_patch`` squares, and once more as a whole where it is cut. Its ``chat``
writes ``<img>``, as many ``<IMG_CONTEXT>`` as the squares have visual tokens, and ``</img>`` into
the conversation of the repository's own template.

- The id of ``<IMG_CONTEXT>`` stands in no config; the model is told of it by an attribute.
- ``forward`` wants pixels always. Of text alone it gets a blank square with the flag 0, as in
  training: the square is encoded, and no position takes it.
- Every ``<IMG_CONTEXT>`` holds pixels: no row is structural.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.by_hand import normalised
from normprobe.inputs.chat import NO_SYSTEM, refuse_placeholder, with_placeholder
from normprobe.inputs.inputs_file import InputsFile
from normprobe.inputs.standard import ensure_pad_token
from normprobe.schema import VISUAL_MASK

if TYPE_CHECKING:
    from PIL.Image import Image

_CONTEXT = "<IMG_CONTEXT>"
_IMAGE = "<image>"

#: Mean and deviation of each channel in ImageNet, as in the README.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _tokenizer(path: str) -> Any:
    """The tokenizer: what else the folder may hold makes inputs of another shape."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=True, use_fast=False)


def _tell_context(model: Any, processor: Any) -> list[str]:
    """Tell the model which token stands for a visual one."""
    before = getattr(model, "img_context_token_id", None)
    model.img_context_token_id = processor.convert_tokens_to_ids(_CONTEXT)
    if before == model.img_context_token_id:
        return []
    return [f"img_context_token_id {model.img_context_token_id}, as InternVL's README sets it"]


def _build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> dict[str, Any]:
    """One batch, padded on the right; the squares of all images follow each other."""
    return build_squares(model, processor, samples, system, mean=IMAGENET[0], std=IMAGENET[1])


def build_squares(
    model: Any,
    processor: Any,
    samples: Sequence[Sample],
    system: str | None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    most: int | None = None,
) -> dict[str, Any]:
    """One batch of a model whose code writes and cuts as InternVL's, under another name.

    Args:
        model: holds ``num_image_token`` and its template.
        processor: a tokenizer with ``<IMG_CONTEXT>``.
        samples: with pictures or without.
        system: a system prompt, as ``--system`` gives it.
        mean: of each channel of a picture.
        std: the deviation of each.
        most: squares of a picture, without that of all of it; by default its config's
            ``max_dynamic_patch``.

    Returns:
        ``input_ids`` and ``attention_mask``, [batch, seq], padded on the right, ``pixel_values``,
        [squares, 3, side, side], ``image_flags``, [squares, 1], and ``visual_mask``, [batch, seq].

    Raises:
        NormprobeError: a prompt holds ``<IMG_CONTEXT>``, or the model has no template.
    """
    import torch

    refuse_placeholder(samples, _CONTEXT)
    texts, squares = [], []
    for sample, placed in zip(samples, with_placeholder(samples, f"{_IMAGE}\n"), strict=True):
        text = _conversation(model, placed.prompt, system)
        for image in sample.images:
            of_image = [
                normalised(square, mean, std) for square in _squares(image, model.config, most)
            ]
            tokens = f"<img>{_CONTEXT * model.num_image_token * len(of_image)}</img>"
            text = text.replace(_IMAGE, tokens, 1)
            squares += of_image
        texts.append(text)
    flags = torch.ones(len(squares) or 1, 1, dtype=torch.long)
    if not squares:
        squares, flags = [torch.zeros(3, *[_side(model.config)] * 2)], flags * 0
    ensure_pad_token(processor)
    made = processor(texts, padding=True, padding_side="right", return_tensors="pt")
    return {
        "input_ids": made["input_ids"],
        "attention_mask": made["attention_mask"],
        "pixel_values": torch.stack(squares),
        "image_flags": flags,
        VISUAL_MASK: made["input_ids"] == processor.convert_tokens_to_ids(_CONTEXT),
    }


def _conversation(model: Any, question: str, system: str | None) -> str:
    """The prompt in the template of the repository."""
    template = _template_of(model)
    if system is not None:
        template.system_message = system
    if system == NO_SYSTEM:
        template.system_message = template.system_template = ""
    template.append_message(template.roles[0], question)
    template.append_message(template.roles[1], None)
    prompt: str = template.get_prompt()
    return prompt.removeprefix(template.sep) if system == NO_SYSTEM else prompt


def _template_of(model: Any) -> Any:
    """A copy of the model's template; else that of its name, in ``conversation`` beside its class.

    Mono-InternVL takes it there in each ``chat``.
    """
    if (held := getattr(model, "conv_template", None)) is not None:
        template = held.copy()
        template.system_message = model.system_message
        return template
    package = type(model).__module__.split(".")
    for length in range(len(package) - 1, 0, -1):
        with suppress(ModuleNotFoundError):
            beside = import_module(".".join([*package[:length], "conversation"]))
            return beside.get_conv_template(model.template)
    raise NormprobeError(
        f"{type(model).__name__} holds no conv_template, and no module `conversation` is beside it",
        "set model.conv_template and model.system_message in prepare(model, processor) of an "
        "--inputs file",
    )


def _squares(image: Image, config: Any, most: int | None) -> list[Image]:
    """Squares of an image in reading order, then all of it in one."""
    side = _side(config)
    columns, rows = 1, 1
    if config.dynamic_image_size:
        most = most or config.max_dynamic_patch
        columns, rows = _grid(image, side, config.min_dynamic_patch, most)
    resized = image.resize((columns * side, rows * side))
    corners = [(side * x, side * y) for y in range(rows) for x in range(columns)]
    pictures = [resized.crop((x, y, x + side, y + side)) for x, y in corners]
    if config.use_thumbnail and len(pictures) > 1:
        pictures.append(image.resize((side, side)))
    return pictures


def _grid(image: Image, side: int, fewest: int, most: int) -> tuple[int, int]:
    """Columns and rows: of the grids of the closest shape the largest that the image half fills."""
    counts = range(1, most + 1)
    grids = [(x, y) for x in counts for y in counts if fewest <= x * y <= most]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    distances = [abs(image.width / image.height - x / y) for x, y in grids]
    closest = [
        g for g, distance in zip(grids, distances, strict=True) if distance == min(distances)
    ]
    filled = [(x, y) for x, y in closest if 2 * image.width * image.height > side * side * x * y]
    return [*closest[:1], *filled][-1]


def _side(config: Any) -> int:
    side: int = config.force_image_size or config.vision_config.image_size
    return side


INTERNVL_CHAT = InputsFile(
    load_processor=_tokenizer,
    prepare=_tell_context,
    build=_build,
    parts={
        "vision_encoder": "vision_model",
        "projector": "mlp1",
        "decoder_layers": "language_model.model.layers",
        "positions": "perturbation",  # `build` marks them
    },
)
