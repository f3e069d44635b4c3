"""Inputs of a model that no processor makes: ids by a tokenizer, pixels by what the model holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import refuse_placeholder, render_chat, render_plain, takes_parts
from normprobe.inputs.processor import padding_of, tokenizer_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


def build_by_hand(
    model: Any,
    processor: Any,
    samples: Sequence[Sample],
    system: str | None,
    *,
    turn: str | None,
    image: str,
    image_ids: Sequence[int],
    pixels: tuple[int, Sequence[float], Sequence[float]],
    padded: bool = False,
) -> dict[str, Any]:
    """One batch, padded on the right.

    Args:
        model: a module of it may hold an image processor.
        processor: a tokenizer, or what holds one; it may hold an image processor.
        samples: with the same number of pictures or not.
        system: a system prompt, as ``--system`` gives it.
        turn: the text of a turn, without the begin and end tokens that the tokenizer adds:
            ``{images}``, unless the prompt itself says where they stand, and
            ``{prompt}``; None: both as the chat template writes them.
        image: the text that stands for a picture, and white space behind it.
        image_ids: the ids in its place.
        pixels: side, and mean and deviation of each channel, where nothing holds an image
            processor.
        padded: whether pictures are padded to squares first, in the mean colour of the image
            processor, or that of ``pixels`` (``image_aspect_ratio: pad`` of LLaVA's code).

    Returns:
        ``input_ids``, ``attention_mask`` and ``image_mask``, [batch, seq]: the last is True at
        ``image_ids``. With pictures all that an image processor returns, or ``pixel_values``,
        [pictures, channels, side, side].

    Raises:
        NormprobeError: there is no tokenizer, ``turn`` lacks one of the two, or ``image`` holds
            several marks that ``image_ids`` lacks.
    """
    import torch

    tokenizer = tokenizer_of(processor)
    if tokenizer is None:
        raise NormprobeError(
            "no tokenizer of this model loads, so no prompt becomes ids",
            "load it in load_processor(path) of the --inputs file",
        )
    turn_text = "{images}{prompt}" if turn is None else turn
    if lacking := [name for name in ("{images}", "{prompt}") if name not in turn_text]:
        raise NormprobeError(
            f"the text of a turn, {turn_text!r}, lacks {' and '.join(lacking)}",
            'write it as "USER: {images}{prompt} ASSISTANT:" in the --inputs file',
        )
    mark = image.rstrip()
    if not mark:
        raise NormprobeError(
            "the text of a picture, IMAGE, is empty: nothing says where its ids stand",
            'write a text that no prompt holds, such as IMAGE = "<image>", in the --inputs file',
        )
    refuse_placeholder(samples, mark)
    added = {number: token for token, number in tokenizer.get_added_vocab().items()}
    of_mark = tokenizer(mark, add_special_tokens=False).input_ids
    lost = [added[number] for number in of_mark if number in added and number not in image_ids]
    if len(lost) < 2 and len(said := re.findall(r"<[^<>]+>", mark)) > len(set(image_ids)):
        lost = said  # marks that are words to the tokenizer (LongLLaVA)
    if len(lost) > 1:
        raise NormprobeError(
            f"of the text of a picture, {mark!r}, {' and '.join(lost)} are no IMAGE_IDS, and these "
            "take the place of all of it",
            "write the ids of those around the picture in IMAGE_IDS, too, or their text around "
            "{images} in TURN",
        )
    turns = []
    for sample in samples:
        sample.require_one_turn()
        before, prompt = image * len(sample.images), sample.prompt
        if sample.is_marked:
            before, prompt = "", sample.text_with(lambda _: mark)
        text = turn_text.replace("{images}", before).replace("{prompt}", prompt)
        turns.append(replace(sample, prompt=text, images=()))
    opening, closing = list[int](), list[int]()
    by_template = turn is None and bool(getattr(tokenizer, "chat_template", None))
    render = render_chat if by_template else render_plain
    texts = render(tokenizer, turns, system)
    # A template of parts is a processor's, which asks the tokenizer for the rest (VARGPT); another
    # writes all that there is.
    begun = texts[0].startswith(str(tokenizer.bos_token))
    if not by_template or (not begun and takes_parts(tokenizer)):
        added = tokenizer("").input_ids
        opening = added[:1] if added[:1] == [tokenizer.bos_token_id] else []
        ends = len(added) > len(opening) and added[-1] == tokenizer.eos_token_id  # T5's (MMICL)
        closing = added[-1:] if ends else []
    rows, marks = [], []
    for text in texts:
        words, places = _tokenized(tokenizer, text.split(mark), image_ids)
        ids, mask = [*opening, *words], [*[False] * len(opening), *places]
        if ids[-1:] != closing:
            ids, mask = ids + closing, mask + [False] * len(closing)
        rows.append(torch.tensor(ids))
        marks.append(torch.tensor(mask))

    def filled(values: list[Tensor], fill: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)

    pictures = [picture for sample in samples for picture in sample.images]
    return {
        "input_ids": filled(rows, padding_of(tokenizer)),
        "attention_mask": filled([torch.ones_like(row) for row in rows], 0),
        "image_mask": filled(marks, 0),
        **(_looked_at(model, processor, pictures, pixels, padded) if pictures else {}),
    }


def _tokenized(
    tokenizer: Any, pieces: Sequence[str], image_ids: Sequence[int]
) -> tuple[list[int], list[bool]]:
    """The ids of a text with a picture between each two pieces, and which are a picture's.

    Words of the vocabulary are written into the text, as code does that has them: SentencePiece
    reads the piece behind one otherwise than alone. Ids of no word stand between pieces read alone.
    """
    added = {number: token for token, number in tokenizer.get_added_vocab().items()}
    if len(pieces) > 1 and all(number in added for number in image_ids):
        whole = "".join(added[number] for number in image_ids).join(pieces)
        ids, run = [*tokenizer(whole, add_special_tokens=False).input_ids], [*image_ids]
        starts, place = list[int](), 0
        while place < len(ids):
            is_start = ids[place : place + len(run)] == run
            starts += [place] * is_start
            place += len(run) if is_start else 1
        if len(starts) == len(pieces) - 1:
            held = {place for start in starts for place in range(start, start + len(run))}
            return ids, [place in held for place in range(len(ids))]
    ids, mask = list[int](), list[bool]()
    for number, piece in enumerate(pieces):
        words = tokenizer(piece, add_special_tokens=False).input_ids
        ids += [*(image_ids if number else ()), *words]
        mask += [True] * (len(image_ids) if number else 0) + [False] * len(words)
    return ids, mask


def _looked_at(
    model: Any,
    processor: Any,
    pictures: Sequence[Image],
    pixels: tuple[int, Any, Any],
    padded: bool,
) -> dict[str, Any]:
    """What the image processor returns that a module holds, or else a processor, by any name.

    That of a module is what its code uses: it may resize otherwise than its files say (Victor).
    """
    import torch
    from transformers.image_processing_base import ImageProcessingMixin

    side, mean, std = pixels

    def shaped(middle: Sequence[float]) -> list[Image]:
        return [_square(each, middle) for each in pictures] if padded else [*pictures]

    for holder in (*model.modules(), processor):
        for look in vars(holder).values():
            if isinstance(look, ImageProcessingMixin):
                call: Any = look
                return dict(call(shaped(_told(look, "image_mean") or mean), return_tensors="pt"))
            own_mean = _told(look, "image_mean")
            if own_mean is not None and callable(_told(look, "preprocess")):
                # TinyLLaVA's SigLIP; of several pictures it may take the first (OLA-VLM).
                made = [look.preprocess([p], return_tensors="pt") for p in shaped(own_mean)]
                return {key: torch.cat([_batched(each[key]) for each in made]) for key in made[0]}
    resized = [normalised(each.resize((side, side)), mean, std) for each in shaped(mean)]
    return {"pixel_values": torch.stack(resized)}


def _told(holder: Any, name: str) -> Any:
    """An attribute of anything; code of anyone may raise what it likes where there is none."""
    try:
        return getattr(holder, name, None)
    except Exception:  # WeMM's settings: KeyError
        return None


def _batched(made: Any) -> Tensor:
    """Of one picture: a tensor, an array, or a list that holds one."""
    import torch

    if isinstance(made, list | tuple):
        made = torch.stack([torch.as_tensor(each) for each in made])
    batched: Tensor = torch.as_tensor(made)
    return batched if batched.dim() else batched[None]


def _square(picture: Image, mean: Sequence[float]) -> Image:
    """The picture in the middle of a square of the mean colour."""
    from PIL import Image as Pictures

    side = max(picture.size)
    square = Pictures.new("RGB", (side, side), tuple(int(255 * each) for each in mean))
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square


def normalised(picture: Image, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The pixels of an RGB picture, ``[3, height, width]``."""
    import numpy as np
    import torch

    values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    middle, spread = (torch.tensor(of_channel)[:, None, None] for of_channel in (mean, std))
    return (values - middle) / spread
