"""The cells of a word and of the box around what it means, checked against prompt and picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import BadRow, Place
from normprobe.data.cells import quoted, text_cell
from normprobe.data.region import Box, Referent, is_region, spans_of_word
from normprobe.data.sample import IMAGE_MARK

if TYPE_CHECKING:
    from PIL import Image

WORD, BOX = "word", "box"


def read_referent(
    row: dict[str, Any], prompt: str, images: Sequence[Image.Image], place: Place
) -> Referent | None:
    """What a word of the prompt means in the picture; None where the row has neither cell."""
    word, box = row.get(WORD), row.get(BOX)
    if word is None and box is None:
        return None
    if word is None or box is None:
        raise BadRow(
            place.at(WORD if word is None else BOX),
            f"expected {WORD} and {BOX}, received one of them",
            "write both, or neither",
        )
    if len(images) != 1:
        raise BadRow(
            place.at(BOX),
            f"expected one image to lie in, received {len(images)}",
            f"leave {WORD} and {BOX} out, or write one image",
        )
    return referent_in(
        prompt, images[0], text_cell(word, place.at(WORD)), edges(box, place.at(BOX)), place
    )


def referent_in(prompt: str, image: Image.Image, word: str, box: Box, place: Place) -> Referent:
    """A word and its box, which are there."""
    if not spans_of_word(word, prompt.split(IMAGE_MARK)[-1]):
        raise BadRow(
            place.at(WORD),
            f"{quoted(word)} is not in the prompt after the image: {quoted(prompt)}",
            "write a whole word or phrase of the prompt",
        )
    if not is_region(box, image.size):
        width, height = image.size
        raise BadRow(
            place.at(BOX),
            f"{','.join(f'{edge:g}' for edge in box)} is no region of the image, which has "
            f"{width} x {height} pixels",
            "write left, top, right and bottom in pixels of the image",
        )
    return Referent(word.strip(), box)


def edges(cell: Any, place: Place) -> Box:
    """The four numbers of a box."""
    is_box = isinstance(cell, list) and len(cell) == 4
    if not is_box or not all(type(edge) in (int, float) for edge in cell):
        raise BadRow(
            place, f"expected a list of four numbers, received {quoted(cell)}", "correct the box"
        )
    first, second, third, fourth = map(float, cell)
    return first, second, third, fourth
