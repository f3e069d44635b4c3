"""Words and the boxes of what they mean: cells of a row, and files of referring expressions.

RefCOCO and its kin, as JSON: COCO's form with captions, or a list of references beside the
``instances.json`` that holds their pictures and boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.formats import read_json
from normprobe.data.images import read_image_file
from normprobe.data.question import QuestionSource, Recipe
from normprobe.data.rows import BadRow, BadRows, Place, Row, key_cell, printable, text_cell
from normprobe.data.sample import IMAGE_MARK, Box, Referent, is_region, spans_of_word
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from PIL import Image

REFERRING = "referring"
TEMPLATE = "Where is {expression}?"
INSTANCES = "instances.json"
WORD, BOX = "word", "box"

_FOLDERS = (".", "images", "train2014")  # where pictures are looked for, beside the file
_ROUNDING = 1.0  # pixels by which a published box may reach beyond its picture

_FROM_PICKLE = (
    "convert a pickle that you trust: json.dump(pickle.load(open('refs(unc).p', 'rb')), "
    "open('refs(unc).json', 'w'))"
)


def read_referent(row: Row, prompt: str, images: Sequence[Image.Image]) -> Referent | None:
    """What a word of the prompt means in the picture; None where the row has neither cell."""
    place, word, box = row.place, row.cells.get(WORD), row.cells.get(BOX)
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
    return _referent_in(prompt, images[0], row.text(WORD), _edges(box, place.at(BOX)), place)


def _referent_in(prompt: str, image: Image.Image, word: str, box: Box, place: Place) -> Referent:
    """A word and its box, which are there."""
    if not spans_of_word(word, prompt.split(IMAGE_MARK)[-1]):
        raise BadRow(
            place.at(WORD),
            f"{printable(word)} is not in the prompt after the image: {printable(prompt)}",
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


def _edges(cell: Any, place: Place) -> Box:
    """The four numbers of a box."""
    is_box = isinstance(cell, list) and len(cell) == 4
    if not is_box or not all(type(edge) in (int, float) for edge in cell):
        raise BadRow(
            place, f"expected a list of four numbers, received {printable(cell)}", "correct the box"
        )
    first, second, third, fourth = map(float, cell)
    return first, second, third, fourth


def is_referring(whole: Any) -> bool:
    """Whether a JSON file has one of the two forms."""
    if isinstance(whole, dict):
        return isinstance(whole.get("images"), list) and isinstance(whole.get("annotations"), list)
    entries = whole if isinstance(whole, list) else []
    named = (entry.keys() for entry in entries if isinstance(entry, dict))
    return any({"sentences", "ann_id"} <= names for names in named)


def read_referring(path: Path, whole: Any, where: dict[str, Any], bad: BadRows) -> QuestionSource:
    """Read the expressions of a file."""
    instances: Mapping[str, Any] = whole if isinstance(whole, dict) else _instances(path)
    if instances is whole:
        expressions = list(_of_captions(path, whole))
    else:
        expressions = list(_of_references(path, whole, _by_id(instances, "annotations")))
    if not expressions:
        raise NormprobeError(
            f"{path}: boxes without expressions: no image has a caption",
            f"pass the list of references beside it, as JSON; {_FROM_PICKLE}",
        )
    recipe = Recipe(
        REFERRING,
        TEMPLATE,
        key=lambda row: key_cell(row.cells["id"], row.place),
        prompt=lambda row: TEMPLATE.format(expression=row.text("expression")),
        images=partial(_pictures, _by_id(instances, "images"), path.parent),
        referent=_referent,
        key_column="id",
    )
    return recipe.source(expressions, path.name, where, bad)


def _of_captions(path: Path, whole: Mapping[str, Any]) -> Iterator[Row]:
    images = _by_id(whole, "images")
    for number, annotation in enumerate(whole["annotations"], start=1):
        named = annotation if isinstance(annotation, dict) else {}
        caption = _of_id(images, named.get("image_id")).get("caption")
        if caption is None:
            continue
        spans = named.get("tokens_positive")
        span = spans[0] if isinstance(spans, list) and spans else None
        place = Place(str(path), number, unit="annotation")
        yield _expression(place, named.get("id"), caption, named, span)


def _of_references(
    path: Path, references: Iterable[Any], annotations: Mapping[Any, Mapping[str, Any]]
) -> Iterator[Row]:
    for number, reference in enumerate(references, start=1):
        named = reference if isinstance(reference, dict) else {}
        place = Place(str(path), number, unit="entry")
        told = named.get("ann_id")
        one = told[0] if isinstance(told, list) and len(told) == 1 else told
        found = _of_id(annotations, one) or None
        sentences = named.get("sentences")
        for sentence in sentences if isinstance(sentences, list) else [None]:
            of = sentence if isinstance(sentence, dict) else {}
            yield _expression(place, of.get("sent_id"), of.get("sent"), found)


def _expression(place: Place, key: Any, text: Any, annotation: Any, span: Any = None) -> Row:
    """A row of an expression; ``span``: which of its characters mean the box, None: all."""
    return Row(place, {"id": key, "expression": text, "annotation": annotation, "span": span})


def _instances(path: Path) -> Mapping[str, Any]:
    beside = path.with_name(INSTANCES)
    whole = read_json(beside) if beside.is_file() else None
    if not isinstance(whole, dict) or not is_referring(whole):
        raise NormprobeError(
            f"{path}: expected its boxes and pictures in {beside}",
            f"put the {INSTANCES} of the same data set there",
        )
    return whole


def _by_id(whole: Mapping[str, Any], name: str) -> dict[Any, Mapping[str, Any]]:
    entries = whole[name]
    return {
        entry["id"]: entry
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), int | str)
    }


def _of_id(entries: Mapping[Any, Mapping[str, Any]], key: Any) -> Mapping[str, Any]:
    """The entry of this id; nothing where there is none, or it is no id."""
    return entries.get(key, {}) if isinstance(key, int | str) else {}


def _pictures(
    images: Mapping[Any, Mapping[str, Any]], folder: Path, row: Row, rows: Mapping[str, Row]
) -> tuple[Image.Image, ...]:
    annotation = row.cells["annotation"]
    if annotation is None:
        raise BadRow(
            row.place.at("ann_id"),
            f"expected the id of one annotation of {INSTANCES}",
            "leave out expressions of no box or of several",
        )
    where = row.place.at("file_name")
    name = text_cell(_of_id(images, annotation.get("image_id")).get("file_name"), where)
    roots = [folder / below for below in _FOLDERS]
    root = next((root for root in roots if _is_file(root / name)), folder)
    return (read_image_file(name, root, where),)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no file has so long a name
        return False


def _referent(row: Row, prompt: str, images: Sequence[Image.Image]) -> Referent:
    (image,) = images
    bbox = row.cells["annotation"].get("bbox")
    left, top, width, height = _edges(bbox, row.place.at("bbox"))
    right, bottom = _within(left + width, image.width), _within(top + height, image.height)
    box = left, top, right, bottom
    return _referent_in(prompt, image, _expression_of(row), box, row.place)


def _expression_of(row: Row) -> str:
    """The words that mean the box."""
    text, span = row.text("expression"), row.cells["span"]
    if span is None:
        return text
    if not (isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)):
        raise BadRow(
            row.place.at("tokens_positive"),
            f"expected begin and end of the characters, received {printable(span)}",
            "correct the numbers",
        )
    return text[slice(*span)]


def _within(end: float, size: int) -> float:
    """An end of a box, without what rounding put beyond the picture."""
    return float(size) if size < end <= size + _ROUNDING else end
