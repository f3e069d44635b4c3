"""What stands for a prompt and its pictures where no processor makes inputs: constants of a file.

Config, vocabulary and code tell them; a line that nothing told is marked as a guess.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from normprobe.errors import NormprobeError
from normprobe.extensions.families.package_code import turn_of
from normprobe.inputs.inputs_file import GUESS
from normprobe.inputs.processor import load_processor, tokenizer_of
from normprobe.model.checkpoint_place import cached
from normprobe.model.config import fields, read_config_file
from normprobe.options import Loading

#: Fields of a checkpoint's files and constants of its code: the id that stands for a picture, how
#: often it does, the side of a picture in pixels. And words of a vocabulary that stand for one.
_ID = re.compile(
    r"^((image|img|visual)_(token|pad|patch|context|placeholder)\w*(id|index)"
    r"|(im|image|img)_(pad|patch|context)_token)$",
    re.I,
)
_ROWS = re.compile(
    r"^(num_(image|img|visual)_tokens?|\w*image_(token|seq)_len\w*|(num|n)_quer(y|ies)|proj_out_num)$"
)
_SIDE = re.compile(r"^(\w+_)?(image|img)_size$")
#: Fields that name a vision encoder, and a side in such a name: openai/clip-vit-large-patch14-336.
_TOWER = re.compile(r"vision|visual|tower|image_(processor|encoder)")
_SIDE_IN_NAME = re.compile(r"patch\d+[-_](\d{3})(?!\d)")
_PATCH_IN_NAME = re.compile(r"patch(\d+)")
_ENDS = [
    re.compile(rf"^((im|img|image)_{end}_token(_id)?|{oi}_token_id)$", re.I)
    for end, oi in (("start", "boi"), ("end", "eoi"))
]
_WORD = re.compile(
    r"<[^\w/]*((image|img)(_?(pad|patch|context|placeholder|token))?|im_patch)\W*>", re.I
)

#: Words around a picture in LLaVA's kin, where the config says that there are some.
AROUND = ("<im_start>", "<im_end>")

USUAL_TURN = "USER: {images}{prompt} ASSISTANT:"
USUAL_IMAGES = ("<image>\n", "<image>".join(AROUND) + "\n")

#: What stands at the top of a file, line by line; and of one that cuts squares as InternVL does.
CONSTANTS = ("TURN", "IMAGE", "IMAGE_IDS", "SIDE, MEAN, STD", "PADDED")
OF_SQUARES = ("MEAN, STD", "SQUARES")

_TEXT = """
TURN = {turn}
IMAGE = "{image}\\n"  # {guess}: in a prompt, until ids take its place
IMAGE_IDS = {ids}  # {how}
SIDE, MEAN, STD = {pixels}  # of a picture, {unless}{unknown}{aspect}
PADDED = {padded}  # pictures, to squares first{why_padded}
{loader}
"""
LOADER = """

def load_processor(path):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code={trust})
    {look}return tokenizer
"""
#: Of a tokenizer that holds an image processor.
LOOKS = "tokenizer.look = "
LOOK = """look = transformers.AutoImageProcessor
    tokenizer.look = look.from_pretrained({place}, trust_remote_code={trust})
    """


def constants_by_hand(
    name: str,
    loading: Loading,
    settings: dict[str, Any],
    processor: Any,
    model: nn.Module,
    kept: str,
    asks: str,
    pixels_by: str,
) -> str:
    """The constants of ``build_by_hand``; what loads the tokenizer, if none is kept."""
    load = partial(load_processor, trust_remote_code=loading.trust_remote_code)
    tokenizer = tokenizer_of(processor)
    with suppress(NormprobeError):
        tokenizer = tokenizer or load(name, revision=loading.revision, auto_class="AutoTokenizer")
    look = "path" if "image_processor_type" in settings else ""
    with suppress(NormprobeError):
        if not look and load(name, revision=loading.revision, auto_class="AutoImageProcessor"):
            look = "path"
    tower = next(_towers(name, settings), "")
    with suppress(NormprobeError):
        if not look and tower and load(tower, auto_class="AutoImageProcessor"):
            look = repr(tower)
    known: list[tuple[str, Any]] = [*fields(settings)]
    for of_model in type(model).__mro__:
        known += vars(sys.modules[of_model.__module__]).items()
    # Bytes, in tokenizers as that of Qwen-VL.
    words = (
        {w: i for w, i in tokenizer.get_vocab().items() if isinstance(w, str)} if tokenizer else {}
    )
    # <img> may open what <imgpad> stands in.
    meant = sorted(filter(_WORD.fullmatch, words), key=len, reverse=True)
    known += [("image_token_id", words[word]) for word in meant]

    def number(pattern: re.Pattern[str]) -> int | None:
        return next((v for n, v in known if pattern.match(n) and type(v) is int), None)

    token, rows = number(_ID), number(_ROWS)
    sides = [(n, v) for n, v in known if _SIDE.match(n) and type(v) is int]
    # Of several the side of a slice, beside their number (M3D-LaMed).
    side = max((v for n, v in sides if n == sides[0][0]), default=None)
    # A negative one is no word's: code that names it puts it for a picture, whatever else is said.
    token = next((v for n, v in known if _ID.match(n) and type(v) is int and v < 0), token)
    patch = number(re.compile("patch_size$"))
    for place in _named_towers(name, settings):
        of_tower = dict(fields(read_config_file(cached(place, "config.json", None))))
        side, patch = (
            next((v for v in (told, of_tower.get(field)) if type(v) is int), None)
            for told, field in ((side, "image_size"), (patch, "patch_size"))
        )
    if side is None and (in_name := _SIDE_IN_NAME.search(str(settings))):
        side = int(in_name[1])
    if patch is None and (in_name := _PATCH_IN_NAME.search(str(settings))):
        patch = int(in_name[1])
    mean, std = mean_and_deviation(settings, known)
    by_package, told_by = turn_of(model)
    if by_package:
        turn = f"{by_package!r}  # {GUESS}: {told_by}"
    elif getattr(tokenizer, "chat_template", None):
        turn = f"None  # {GUESS}: the chat template's, or a text as "
        turn += '"{images}Question: {prompt} Answer:"'
    else:
        turn = f'"{USUAL_TURN}"  # {GUESS}'
    ends = [number(end) for end in _ENDS]
    its_own = read_config_file(cached(tower, "preprocessor_config.json", None)) if tower else {}
    crops = (settings | its_own).get("do_center_crop") and "image_aspect_ratio" not in settings
    padded = settings.get("image_aspect_ratio") == "pad"
    between = f"; between {ends[0]} and {ends[1]}, as the config says?" if None not in ends else ""
    told = token is not None and (token < 0 or rows is not None) and not between
    id_of = -200 if token is None else token
    if rows is None and side and patch:
        rows = round((side // patch * _share(settings)) ** 2)
    rows = rows or 1 if id_of >= 0 else 1  # of an id of no word forward knows how many there are
    opened, closed = map(words.get, AROUND)
    asked = settings.get("mm_use_im_start_end") is True and "\nIMAGE = " not in f"\n{kept}"
    around = AROUND if asked and None not in (opened, closed) else ("", "")
    ids = f"[{id_of}] * {rows}"
    if any(around):
        ids = f"[{opened}] + {ids} + [{closed}]" if rows > 1 else f"[{opened}, {id_of}, {closed}]"
    text = _TEXT.format(
        turn=turn,
        image="<image>".join(around),
        guess=GUESS,
        ids=ids,
        how=f"{'' if told else GUESS + ': '}what stands for a picture{between}",
        pixels=f"{side or 224}, {mean}, {std}",
        unless="unless a module holds an image processor, or else `look` of load_processor is one"
        if look
        else "where no image processor is found",
        unknown="" if look else f"; {GUESS}, as that it is resized to it, bicubic",
        aspect=asks,
        padded=padded,
        why_padded=f"; {GUESS}: image_aspect_ratio asks for it, and an evaluation may not"
        if padded
        else f"; {GUESS}: a picture that is no square is cropped" * bool(crops and not pixels_by)
        or f"; {GUESS}" * (not pixels_by),
        loader=""
        if "def load_processor(" in kept
        else LOADER.format(
            trust=loading.trust_remote_code,
            look=LOOK.format(place=look, trust=loading.trust_remote_code) if look else "",
        ),
    )
    said = {each for each in CONSTANTS if f"\n{each} = " in f"\n{kept}"}
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.partition(" =")[0] not in said)


def _share(settings: Mapping[str, Any]) -> float:
    """How many patches of a side a row is left for, as InternVL's kin says it: 0.5 of two."""
    ratio = settings.get("downsample_ratio")
    return ratio if type(ratio) is float and 0 < ratio < 1 else 1


def mean_and_deviation(
    settings: Mapping[str, Any], known: Sequence[tuple[str, Any]], *, usual: Sequence[Any] = ()
) -> list[list[float]]:
    """Of the channels of a picture: what fields say, else what is usual of such an encoder."""
    from transformers.utils.constants import (
        IMAGENET_STANDARD_MEAN,
        OPENAI_CLIP_MEAN,
        OPENAI_CLIP_STD,
    )

    siglip = "siglip" in str(settings).lower()
    of_encoder = (IMAGENET_STANDARD_MEAN,) * 2 if siglip else (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD)
    numbers = [[v for n, v in known if n == f"image_{kind}"] for kind in ("mean", "std")]
    return [
        given if len(given) == 3 and {type(v) for v in given} <= {int, float} else [*otherwise]
        for given, otherwise in zip(
            numbers, of_encoder if siglip or not usual else usual, strict=True
        )
    ]


def otherwise_cut(settings: Mapping[str, Any]) -> str:
    """What the config asks for in place of one square a picture, as the end of a line."""
    aspect = str(settings.get("image_aspect_ratio"))
    if "anyres" in aspect:
        asks = f"tiles (image_aspect_ratio {aspect}), this makes one square"
    elif settings.get("dynamic_image_size") is True:
        asks = "tiles (dynamic_image_size), this makes one square"
    else:
        return ""
    return f"; {GUESS}: the config asks for {asks}"


def _towers(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Where an image processor of a vision encoder lies that the config names: folders, hub ids."""
    for place in _named_towers(name, settings):
        if cached(place, "preprocessor_config.json", None):
            yield place


def _named_towers(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Vision encoders that the config names: folders, also inside that of the model, or hub ids."""
    for field, value in fields(settings):
        if isinstance(value, str) and "/" in value and _TOWER.search(field):
            yield from (str(Path(name) / value), value)
