"""The text of an inputs file that is begun: what a model's forward takes, and how it is made."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn

from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError, first_line, visible
from normprobe.extensions.families.drafted_ask import answering, ask_text, once_text
from normprobe.extensions.families.drafted_constants import (
    LOOKS,
    constants_by_hand,
    mean_and_deviation,
    otherwise_cut,
)
from normprobe.extensions.families.internvl_chat import IMAGENET
from normprobe.extensions.families.package_code import (
    GUESS,
    PREPARED_LATER,
    UNPREPARED,
    loading_text,
    loads_later,
    makes_pixels,
    processors_of,
    registering_text,
    setup_text,
)
from normprobe.inputs.chat import image_token
from normprobe.inputs.inputs_file import read_inputs_file
from normprobe.inputs.on_device import pixel_inputs
from normprobe.inputs.processor import load_processor, tokenizer_of
from normprobe.inputs.standard import REFUSALS, build_documented
from normprobe.model.checkpoint import cached
from normprobe.model.config import fields, read_config_file
from normprobe.model.find.parts import candidates, guesses, size_of
from normprobe.model.find.structure import find_parts
from normprobe.model.load.partial_load import build_on_meta
from normprobe.options import MODULE_ROLES, Loading
from normprobe.runs.model_source import CheckpointSource
from normprobe.schema import VISUAL_MASK

#: Modules that are listed, the largest first.
_LISTED = 16

#: Inputs of a forward: pixels, and a mask of the prompt that says where rows of a picture go.
_PIXELS = re.compile(
    r"^(?!.*(mask|size|crop|flag|grid|token|embed|index|indices|position|feature))"
    r".*(pixel|image|picture|patch|^frames$)"
)
_SEEN = re.compile(r"image|img|pixel|patch|vision|visual")
#: Those of a language model, and of what is asked of it.
_OF_TEXT = re.compile(
    r"^(input_ids|inputs_embeds|attention_mask|position_ids|cache_position|labels?|kwargs|args"
    r"|token_type_ids)$|^(past|use_|output_|return_|logits_|num_logits|head_mask|decoder_|encoder_|is_)"
)
_MASK = re.compile(rf"({_SEEN.pattern}).*mask")

#: Parameters that an input can be given for by its name.
_OPEN = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

_OFFERED = ("input_ids", "attention_mask", "pixel_values")  # what `build_by_hand` makes
#: What the chat layout of InternVL makes.
_OF_SQUARES = (*_OFFERED, "image_flags", VISUAL_MASK)
_USUAL = ("input_ids", "attention_mask", "images")  # of a forward that is not known yet

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

#: What some forwards take that neither a picture nor a prompt says, and what will do.
_FILLED = {
    "labels": 'made["labels"] = made["input_ids"] * 0 - 100  # no word is to be foretold',
    "modalities": 'made["modalities"] = ["image"] * sum(len(s.images) for s in samples)  # a guess',
    "image_flags": 'made["image_flags"] = made["pixel_values"][:, :1, 0, 0] * 0 + 1  # all tiles',
    "modals": 'made["modals"] = ["image"] * sum(len(s.images) for s in samples)  # a guess',
}
_GIVEN = "{theirs: made[ours] for theirs, ours in TAKES.items() if ours in made}"

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

    # {guess}: cut as InternVL cuts
    how = {{"mean": MEAN, "std": STD, "most": SQUARES}}
    made = build_squares(model, processor, samples, system, **how)"""
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
    ``_FILLED``, what forward was seen not to do without. ``by_hand``: pixels are not its package's.
    ``asking``: where the model's own code answers, it is asked, and its forward is caught.
    """
    place = name if source is None else source.checkpoint.source  # of `specimen`, its folder
    settings: dict[str, Any] = {}
    for each in ("processor_config.json", "preprocessor_config.json", "config.json"):
        settings |= read_config_file(cached(place, each, loading.revision))
    # Of a type that nothing here knows: a model without any module.
    model, keywords = _built(source, settings)
    parameters = [] if source is None else list(signature(model.forward).parameters.values())
    if source is not None and loading.inputs and (own := read_inputs_file(loading.inputs).forward):
        parameters = list(signature(own).parameters.values())[1:]  # its user's runs the model
    processor, made, refused = None, {}, "nothing"
    sample = [*open_data("sample", limit=1)]
    try:
        if source is not None and loading.inputs and "def load_processor(" not in kept:
            # Not by what was begun before its code was known.
            load = partial(load_processor, revision=loading.revision)
            with suppress(NormprobeError):
                processor = load(place, trust_remote_code=loading.trust_remote_code)
        if source is not None and processor is None:
            processor = source.builder.processor
        made = dict(build_documented(processor, sample, None))
    except NormprobeError as failure:
        refused = failure.problem
    except (*REFUSALS, ImportError) as error:
        refused = first_line(error)
    by_package = ""
    if not made and source is not None and "def load_processor(" not in kept:
        for its_own in processors_of(model):
            with suppress(NormprobeError, OSError, ImportError, *REFUSALS):
                trust = loading.trust_remote_code
                own_processor: Any = its_own.from_pretrained(place, trust_remote_code=trust)
                made = dict(build_documented(own_processor, sample, None))
                if word := _placeholder(settings, own_processor, made):
                    own_processor.image_token = word
                    made = dict(build_documented(own_processor, sample, None))
                processor, by_package = own_processor, loading_text(its_own, word)
                break
    cutting, count = ("", 0) if made or by_hand else makes_pixels(model)
    squares = not made and _is_internvl_chat(model, tokenizer_of(processor), kept)
    asks_itself = asking and not made and not squares and answering(model) != ""
    before = kept + by_package
    if squares:
        before += "" if _LAYOUT.strip() in kept else _LAYOUT
        known, most = [*fields(settings)], settings.get("max_dynamic_patch")
        mean, std = mean_and_deviation(settings, known, usual=IMAGENET)
        of_picture = _OF_PICTURE.format(
            mean=mean, std=std, most=most if isinstance(most, int) else None, guess=GUESS
        )
        before += of_picture if "SQUARES = " not in kept else ""
    elif not made:
        asks = "" if cutting else otherwise_cut(settings)
        text = constants_by_hand(place, loading, settings, processor, model, kept, asks, cutting)
        if asks_itself:
            text = "".join(text.partition("\n\ndef load_processor(")[1:])
            trusted = loading.trust_remote_code
            readme = cached(place, "README.md", loading.revision) if trusted else None
            looks = LOOKS in kept + text
            text += "" if "def ask(" in kept else ask_text(model, looks, readme)
        before += text
    if "def setup(" not in kept and (source is not None or "def forward(" not in kept):
        before += setup_text(settings) if source is None else registering_text(settings, source)
    if keywords:  # over those that are kept
        before += (
            f"\nkeywords = {keywords!r}  # {GUESS}: what its README passes to from_pretrained\n"
        )
    prepared = PREPARED_LATER if loads_later(model) else ""
    prepared = UNPREPARED if source is None else prepared
    prepared = once_text(model, prepared) if asks_itself else prepared
    before += "" if "def prepare(" in before else prepared
    names = {id(module): each for each, module in model.named_modules()}
    takes = [p.name for p in parameters if p.kind in _OPEN] if parameters else [*_USUAL]
    looked: tuple[str, ...] = ("image_sizes",) if cutting else ()
    if not made:  # `build_by_hand` hands on what an image processor returns (Hulu-Med)
        with suppress(NormprobeError):
            load = partial(load_processor, trust_remote_code=loading.trust_remote_code)
            look = load(place, revision=loading.revision, auto_class="AutoImageProcessor")
            looked += tuple(getattr(look, "model_input_names", ()))
    taken = [*_taken(takes, made, looked)]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in _OPEN]
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and not needed:
        named = "".join(taken)
        if made:  # all of it, as without a file (VoRA)
            taken += [f'"{each}": "{each}",' for each in made if f'"{each}",' not in named]
        else:  # ids may be passed on unnamed (mPLUG-Owl3)
            ids = [each for each in _OFFERED[:2] if each not in takes]
            taken += [f'"{each}": "{each}",  # {GUESS}' for each in ids]
    if said and not any(p.kind in _OPEN for p in parameters):
        taken = [f'"{theirs}": {ours!r},' for theirs, ours in said.items()]  # nothing else knows
    if squares:
        taken = [f'"{each}": "{each}",' for each in (*takes, VISUAL_MASK) if each in _OF_SQUARES]
    lacking = [
        each for each in ("modalities", "modals", *asked) if each in takes and each not in made
    ]
    filled = [] if squares else lacking
    taken = [line for line in taken if not line.startswith(tuple(f'# "{e}"' for e in filled))]
    taken += [f'"{each}": "{each}",' for each in filled]
    given = _GIVEN
    if needed and not any(line.startswith('"') for line in taken):  # one mapping that holds all
        taken = [f"{line}  # {GUESS}" for line in _taken([*made] or _OFFERED, made)]
        given = f'{{"{needed[0]}": {_GIVEN}}}'
    tokenizer = tokenizer_of(processor)
    writes = getattr(processor, "chat_template", None)
    turnless = _TURNLESS.format(guess=GUESS) if made and not writes else ""
    turnless += _IN_TOKENIZER if turnless and getattr(tokenizer, "chat_template", None) else ""
    as_ever = _AS_EVER.format(turnless=turnless)
    steers = count > 2 and settings.get("image_aspect_ratio") == "pad"
    asked_of = ("pictures", "look", "asked" if steers else "model.config")[:count]
    pixels = _TILES.format(
        copied="from copy import copy\n\n        " if steers else "",
        module=cutting,
        asked=_ASKED if steers else "",
        arguments=", ".join(asked_of),
        guess=GUESS,
    )
    pixels = pixels if cutting else ""
    how = as_ever if made else _BY_HAND + pixels
    if squares:
        how = _SQUARES.format(guess=GUESS)
    if asks_itself:
        how, given = _ASKED_ITSELF, "made"
        filled = [each for each in ("image_flags", *asked) if each in takes]
    facts = _FACTS.format(
        model_class=type(model).__name__,
        takes=_lines(map(str, parameters)),
        processor="none that loads"
        if processor is None
        else f"{type(processor).__name__} with the placeholder {image_token(processor)!r}",
        offers=_lines([f"{key}: {_shape(value)}" for key, value in made.items()] or [refused]),
        modules=_lines(_modules(model)),
        lists=candidates(model, names),
    )
    return _FILE.format(
        name=name,
        file=file,
        # A stranger's names are in it, and the file is run.
        facts=facts.replace('"""', "'''") if source else "Its code is not known yet.\n",
        before=before,
        takes=""
        if asks_itself
        else _TAKES.format(taken=_lines(taken or ["# nothing that is known here"])),
        made=how,
        filled="".join(f"\n    {_FILLED[each]}" for each in filled),
        given=given,
        parts=_lines(_parts(model, names, loading.parts)),
    )


def _built(
    source: CheckpointSource | None, settings: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """The model without weights; and what its class takes beside its config, guessed, if it does.

    A value is what the config holds by that name, or by LLaVA's for it; else 0.
    """
    if source is None:
        return nn.Module(), {}
    checkpoint, guessed = source.checkpoint, dict[str, Any]()
    while True:
        try:
            return build_on_meta(checkpoint), {**checkpoint.keywords, **guessed} if guessed else {}
        except NormprobeError as failure:
            lacking = re.search(r"takes '(\w+)' beside its config", failure.problem)
            if lacking is None or lacking[1] in guessed:
                raise
            name = lacking[1]
            guessed[name] = settings.get(name, settings.get(f"mm_{name}", 0))
            checkpoint = replace(checkpoint, keywords={**checkpoint.keywords, **guessed})


def _placeholder(settings: Mapping[str, Any], processor: Any, made: Mapping[str, Any]) -> str:
    """The word of the config's id of a picture, where a processor wrote none; or "" (URSA)."""
    ids, tokenizer = made.get("input_ids"), tokenizer_of(processor)
    numbers = [settings.get(name) for name in ("image_token_index", "image_token_id")]
    number = next((each for each in numbers if isinstance(each, int) and each >= 0), -1)
    if number < 0 or tokenizer is None or not isinstance(ids, Tensor) or image_token(processor):
        return ""
    word = "" if number in ids else tokenizer.convert_ids_to_tokens(number)
    return word if isinstance(word, str) else ""


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


def _taken(
    takes: Sequence[str], made: Mapping[str, Any], more: Sequence[str] = ()
) -> Iterator[str]:
    """What forward takes of what was made, or will be; pixels under its own name for them."""
    offered = [*(made or _OFFERED), *more]
    pixels = [name for name in pixel_inputs(made) or ["pixel_values"] if name not in takes]
    waiting = [name for name in takes if _PIXELS.search(name) and name not in offered]
    renamed = dict(zip(waiting, pixels, strict=False))
    for name in takes:
        if name in offered or name in renamed:
            yield f'"{name}": "{renamed.get(name, name)}",'
        elif _MASK.search(name) and not made:
            yield f'"{name}": "image_mask",  # {GUESS}'
        elif not made and (_SEEN.search(name) or not _OF_TEXT.search(name)):
            yield f'# "{name}": NAME,  # {GUESS} that it does without'


def _parts(model: nn.Module, names: dict[int, str], given: Mapping[str, Any]) -> Iterator[str]:
    """What was given by hand, what structure tells, and a guess where it does not."""
    guessed = guesses(model, names)
    with suppress(NormprobeError):
        guessed |= {role: part.name for role, part in find_parts(model) if role in MODULE_ROLES}
    for role, guess in {**guessed, **given}.items():
        yield f'"{role}": {guess!r},' if role in given else f'# "{role}": "{guess}",'
    if "image_token_ids" not in given:
        yield '# "image_token_ids": (ID,),  # none: the rows that other pixels change are visual'
