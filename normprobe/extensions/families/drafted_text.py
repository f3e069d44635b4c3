"""The text of an inputs file that is begun: what a model's forward takes, and how it is made."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

from torch import Tensor, nn

from normprobe.errors import NormprobeError, visible
from normprobe.extensions.families.drafted_ask import (
    answering,
    ask_text,
    called_by_names,
    compares,
    once_text,
)
from normprobe.extensions.families.drafted_constants import (
    LOOKS,
    constants_by_hand,
    mean_and_deviation,
    otherwise_cut,
)
from normprobe.extensions.families.drafted_known import Known, known_before
from normprobe.extensions.families.drafted_takes import FILLED, inputs_of_squares, inputs_taken
from normprobe.extensions.families.internvl_chat import IMAGENET
from normprobe.extensions.families.package_code import (
    PREPARED_LATER,
    UNPREPARED,
    loads_later,
    makes_pixels,
    registering_text,
    setup_text,
)
from normprobe.inputs.chat import image_token
from normprobe.inputs.inputs_file import GUESS
from normprobe.inputs.processor import tokenizer_of
from normprobe.model.checkpoint_place import cached
from normprobe.model.config import fields
from normprobe.model.find.parts import candidates, guesses, size_of
from normprobe.model.find.structure import find_parts
from normprobe.options import MODULE_ROLES, Loading
from normprobe.runs.model_source import CheckpointSource

#: Modules that are listed, the largest first.
_LISTED = 16

_FACTS = """forward of {model_class} takes
    {takes}
the processor, {processor}, made of one sample
    {offers}
modules with their parameters, candidates for `parts`
    {modules}
lists of layers: {lists}
"""
_FILE = '''r"""How {name} takes its inputs: for `normprobe layers {name} --inputs {file}`.

{facts}"""
{before}{takes}

def build(model, processor, samples, system):
    """One batch. A sample has `prompt`, `images`, and `pieces`: its texts and images in order."""
    {made}{filled}
    return {given}


parts = {{  # what is not found: remove the mark before a line, and name the module
    {parts}
}}
'''

_TAKES = """
TAKES = {{  # by its name in forward, which of what is made
    {taken}
}}
"""


#: How inputs are made without a file; and where that fails, to begin with.
_AS_EVER = """from normprobe.inputs.standard import build_documented

    made = build_documented(processor, samples, system)  # as without this file{turnless}"""
#: Of a processor that writes no turn.
_TURNLESS = "; {guess}: no turn is written around the prompt"
_IN_TOKENIZER = ", though the tokenizer has a template"
_BY_HAND = """from normprobe.inputs.by_hand import build_by_hand

    how = {"turn": TURN, "image": IMAGE, "image_ids": IMAGE_IDS, "pixels": (SIDE, MEAN, STD)}
    made = build_by_hand(model, processor, samples, system, padded=PADDED, **how)"""
#: Of code that answers: what its forward gets is caught.
_ASKED_ITSELF = """from normprobe.extensions.families.asked import inputs_as_asked

    made = inputs_as_asked(model, processor, ask, samples, system)"""
#: Of a processor of its own that makes nothing as processors are called.
_BY_PROCESSOR = """(sample,) = samples
    made = processor(  # {guess}: what it is given
        {arguments},
    )"""
#: Of a package that makes pixels by a function of LLaVA's kin.
_TILES = """

    pictures = [picture for sample in samples for picture in sample.images]
    if pictures:  # {guess}: as its package makes pixels; tiles where its config asks for them
        {copied}from {module} import process_images

        look = model.get_vision_tower().image_processor
        if hasattr(look.size, "get"):
            look.size = dict(look.size)  # older code asks whether it is one
{asked}        looks = process_images({arguments})
        made["image_sizes"] = [picture.size for picture in pictures]
        if isinstance(looks, tuple):
            looks, made["image_sizes"] = looks[:2]
        made["pixel_values"] = looks"""
#: So that it pads as the file says.
_ASKED = """        asked = copy(model.config)
        asked.image_aspect_ratio = "pad" if PADDED else None
"""
#: Of a copy of InternVL's chat layout, as Mini-Monkey is.
_SQUARES = """from normprobe.extensions.families.internvl_chat import build_squares

    how = {{"mean": MEAN, "std": STD, "most": SQUARES}}
    # Squares and prompt are those of InternVL: its code may ask otherwise.
    made = build_squares(model, processor, samples, system, **how)  # {guess}"""
_LAYOUT = """
from normprobe.extensions.families.internvl_chat import INTERNVL_CHAT

load_processor, prepare = INTERNVL_CHAT.load_processor, INTERNVL_CHAT.prepare
"""
_OF_PICTURE = """
MEAN, STD = {mean}, {std}  # of a picture; {guess}
SQUARES = {most}  # of a picture at most; {guess}: its README may cut fewer than its config says
"""


def file_text(
    name: str,
    file: str,
    loading: Loading,
    source: CheckpointSource | None,
    kept: str,
    said: Mapping[str, str],
    asked: Sequence[str] = (),
    by_hand: bool = False,
    asking: bool = False,
) -> str:
    """Of a source, or of a type whose code only a package has; with what is kept of a file.

    ``said``: what of it was taken, for a forward that does not name its inputs. ``asked``: of
    ``FILLED``, what forward was seen not to do without. ``by_hand``: pixels are not its package's.
    ``asking``: where the model's own code answers, it is asked, and its forward is caught.
    """
    known = known_before(name, loading, source, kept)
    model, settings = known.model, known.settings
    by_package, count = ("", 0) if known.made or by_hand else makes_pixels(model)
    as_ever = bool(known.made) and not (asking and compares(model))
    squares = not as_ever and _is_internvl_chat(model, tokenizer_of(known.processor), kept)
    if squares:
        takes = inputs_of_squares(known)
    else:
        takes = inputs_taken(known, loading, said, asked, by_package)
    before, given, asks_itself = kept + known.loads_processor, takes.given, False
    if as_ever:
        how = _as_ever(known.processor, answering(model) if compares(model) else "")
    elif squares:
        before, how = before + _layout(settings, kept), _SQUARES.format(guess=GUESS)
    elif asks_itself := asking and answering(model) != "":
        before += _asking(known, loading, kept, by_package)
        takes = takes._replace(filled=[e for e in ("image_flags", *asked) if e in known.names])
        given, how = "made", _ASKED_ITSELF
    elif called := not by_hand and asking and called_by_names(known.processor):
        takes = takes._replace(filled=[])
        given, how = (
            "dict(made)",
            _BY_PROCESSOR.format(guess=GUESS, arguments=",\n        ".join(called)),
        )
    else:
        before += _constants(known, loading, kept, by_package)
        how = _BY_HAND + (_tiles(by_package, count, settings) if by_package else "")
    if "def setup(" not in kept and (source is not None or "def forward(" not in kept):
        before += setup_text(settings) if source is None else registering_text(settings, source)
    if known.keywords:  # over those that are kept
        theirs = "what its README passes to from_pretrained"
        before += f"\nkeywords = {known.keywords!r}  # {GUESS}: {theirs}\n"
    prepared = PREPARED_LATER if loads_later(model) else ""
    prepared = UNPREPARED if source is None else prepared
    prepared = once_text(model, prepared) if asks_itself else prepared
    before += "" if "def prepare(" in before else prepared
    taken = _lines(takes.taken or ["# nothing that is known here"])
    return _FILE.format(
        name=name,
        file=file,
        # A stranger's names are in it, and the file is run.
        facts=_facts(known).replace('"""', "'''") if source else "Its code is not known yet.\n",
        before=before,
        takes=_TAKES.format(taken=taken) if "TAKES" in given else "",
        made=how,
        filled="".join(f"\n    {FILLED[each]}" for each in takes.filled),
        given=given,
        parts=_lines(_parts(model, loading.parts)),
    )


def _facts(known: Known) -> str:
    """What forward takes, what the processor made, and which modules there are."""
    processor, model = known.processor, known.model
    makes = [f"{key}: {_shape(value)}" for key, value in known.made.items()]
    return _FACTS.format(
        model_class=type(model).__name__,
        takes=_lines(map(str, known.parameters)),
        processor="none that loads"
        if processor is None
        else f"{type(processor).__name__} with the placeholder {image_token(processor)!r}",
        offers=_lines(makes or [known.refused]),
        modules=_lines(_modules(model)),
        lists=candidates(model, _names(model)),
    )


def _as_ever(processor: Any, method: str = "") -> str:
    """Inputs as without a file; whether its processor writes no turn, or ``method`` others."""
    writes = getattr(processor, "chat_template", None)
    of_tokenizer = getattr(tokenizer_of(processor), "chat_template", None)
    turnless = "" if writes else _TURNLESS.format(guess=GUESS)
    turnless += _IN_TOKENIZER if turnless and of_tokenizer else ""
    others = f"; {GUESS}: {method}() may write another prompt" * bool(method)
    return _AS_EVER.format(turnless=turnless + others)


def _layout(settings: Mapping[str, Any], kept: str) -> str:
    """Of InternVL's chat layout: what makes it, and numbers of its pictures."""
    mean, std = mean_and_deviation(settings, [*fields(settings)], usual=IMAGENET)
    most = settings.get("max_dynamic_patch")
    most = most if isinstance(most, int) else None
    layout = "" if _LAYOUT.strip() in kept else _LAYOUT
    of_picture = _OF_PICTURE.format(mean=mean, std=std, most=most, guess=GUESS)
    return layout + ("" if "SQUARES = " in kept else of_picture)


def _constants(known: Known, loading: Loading, kept: str, by_package: str) -> str:
    """Of inputs made by hand."""
    asks = "" if by_package else otherwise_cut(known.settings)
    what = known.place, loading, known.settings, known.processor, known.model
    return constants_by_hand(*what, kept, asks, by_package)


def _asking(known: Known, loading: Loading, kept: str, by_package: str) -> str:
    """What loads its tokenizer, and the question; its README may say how pixels are made."""
    text = _constants(known, loading, kept, by_package)
    text = "".join(text.partition("\n\ndef load_processor(")[1:])
    trusted = loading.trust_remote_code
    readme = cached(known.place, "README.md", loading.revision) if trusted else None
    looks = LOOKS in kept + text
    return text + ("" if "def ask(" in kept else ask_text(known.model, looks, readme))


def _tiles(module: str, count: int, settings: Mapping[str, Any]) -> str:
    """Pixels as the function of its package makes them, which takes ``count`` arguments."""
    steers = count > 2 and settings.get("image_aspect_ratio") == "pad"
    return _TILES.format(
        copied="from copy import copy\n\n        " if steers else "",
        module=module,
        asked=_ASKED if steers else "",
        arguments=", ".join(("pictures", "look", "asked" if steers else "model.config")[:count]),
        guess=GUESS,
    )


def _is_internvl_chat(model: nn.Module, tokenizer: Any, kept: str) -> bool:
    """Whether code under another name writes what InternVL's does around its squares."""
    held = ("num_image_token", "img_context_token_id")
    return (
        all(hasattr(model, each) for each in held)
        and any(hasattr(model, each) for each in ("conv_template", "template"))
        and "image_flags" in signature(model.forward).parameters
        and "<IMG_CONTEXT>" in (tokenizer.get_vocab() if tokenizer else ())
        and "def load_processor(" not in kept
    )


def _lines(items: Any) -> str:
    return "\n    ".join(map(visible, items)) or "nothing"


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _modules(model: nn.Module) -> list[str]:
    """The outer modules, the largest first."""
    found = [(n, m) for n, m in model.named_modules() if n and n.count(".") < 3 and size_of(m)]
    found = [(name, module) for name, module in found if not re.search(r"\.\d+(\.|$)", name)]
    found.sort(key=lambda pair: -size_of(pair[1]))
    return [f"{name}  {type(m).__name__}  {size_of(m):,}" for name, m in found[:_LISTED]]


def _names(model: nn.Module) -> dict[int, str]:
    return {id(module): name for name, module in model.named_modules()}


def _parts(model: nn.Module, given: Mapping[str, Any]) -> Iterator[str]:
    """What was given by hand, what structure tells, and a guess where it does not."""
    guessed = guesses(model, _names(model))
    with suppress(NormprobeError):
        guessed |= {role: part.name for role, part in find_parts(model) if role in MODULE_ROLES}
    for role, guess in {**guessed, **given}.items():
        yield f'"{role}": {guess!r},' if role in given else f'# "{role}": "{guess}",'
    if "image_token_ids" not in given:
        yield '# "image_token_ids": (ID,),  # none: the rows that other pixels change are visual'
