"""``normprobe inputs MODEL --write FILE``: begin an inputs file, and try it on one sample."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from itertools import groupby
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError, first_line, visible
from normprobe.extensions.families.package_code import (
    loads_later,
    makes_pixels,
    modules_of,
    turn_of,
)
from normprobe.failures import PREPARED
from normprobe.inputs.chat import image_token
from normprobe.inputs.inputs_file import read_inputs_file
from normprobe.inputs.on_device import pixel_inputs
from normprobe.inputs.processor import load_processor, tokenizer_of
from normprobe.inputs.standard import REFUSALS, build_documented
from normprobe.model.checkpoint import auto_class, cached
from normprobe.model.config import UnknownCode, fields, read_config_file
from normprobe.model.find.parts import candidates, guesses, size_of
from normprobe.model.find.structure import find_parts
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.provenance import text_ids
from normprobe.options import MODULE_ROLES, Loading
from normprobe.probe import Probe
from normprobe.runs.model_source import CheckpointSource
from normprobe.schema import NON_VISUAL, VISUAL, VISUAL_MASK
from normprobe.tidy import wide

#: Modules that are listed, the largest first.
_LISTED = 16

#: Inputs of a forward: pixels, and a mask of the prompt that says where rows of a picture go.
_PIXELS = re.compile(
    r"^(?!.*(mask|size|crop|flag|grid|token|embed|index|position|feature))"
    r".*(pixel|image|picture|patch)"
)
_SEEN = re.compile(r"image|img|pixel|patch|vision|visual")
#: Those of a language model, and of what is asked of it.
_OF_TEXT = re.compile(
    r"^(input_ids|inputs_embeds|attention_mask|position_ids|cache_position|labels?|kwargs|args"
    r"|token_type_ids)$|^(past|use_|output_|return_|logits_|num_logits|head_mask|decoder_|encoder_|is_)"
)
_MASK = re.compile(rf"({_SEEN.pattern}).*mask")

#: Fields of a checkpoint's files and constants of its code: the id that stands for a picture, how
#: often it does, the side of a picture in pixels. And words of a vocabulary that stand for one.
_ID = re.compile(
    r"^((image|img|visual)_(token|pad|patch|context|placeholder)\w*(id|index)"
    r"|(im|image|img)_(pad|patch|context)_token)$",
    re.I,
)
_ROWS = re.compile(r"^(num_(image|img|visual)_tokens?|\w*image_(token|seq)_len\w*)$")
_SIDE = re.compile(r"^(\w+_)?(image|img)_size$")
#: Fields that name a vision encoder, and a side in such a name: openai/clip-vit-large-patch14-336.
_TOWER = re.compile(r"vision|visual|tower|image_(processor|encoder)")
_SIDE_IN_NAME = re.compile(r"patch\d+[-_](\d{3})(?!\d)")
_ENDS = [
    re.compile(rf"^((im|img|image)_{end}_token(_id)?|{oi}_token_id)$", re.I)
    for end, oi in (("start", "boi"), ("end", "eoi"))
]
_WORD = re.compile(
    r"<[^\w/]*((image|img)(_?(pad|patch|context|placeholder|token))?|im_patch)\W*>", re.I
)

#: Words around a picture in LLaVA's kin, where the config says that there are some.
_AROUND = ("<im_start>", "<im_end>")

#: Parameters that an input can be given for by its name.
_OPEN = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

_OFFERED = ("input_ids", "attention_mask", "pixel_values")  # what `build_by_hand` makes
#: What the chat layout of InternVL makes.
_OF_SQUARES = (*_OFFERED, "image_flags", VISUAL_MASK)
_USUAL = ("input_ids", "attention_mask", "images")  # of a forward that is not known yet
_REPEATED = 3  # more of one token in a row are written once
_GUESS = "a guess"  # in each line that nothing told

#: What a file that is begun anew has of its own; the rest of the file before it is kept.
_BEGUN = {"TAKES", "build", "parts", "TURN", "IMAGE", "IMAGE_IDS", "SIDE", "MEAN", "STD", "PADDED"}
#: What stands in a file whose ``setup`` imports a class that was found.
_FOUND = re.compile(rf"^    import .*# {_GUESS}: ", re.MULTILINE)
_NOTHING_PREPARED = "def prepare(model, processor):\n    pass"
_TURN = "USER: {images}{prompt} ASSISTANT:"
_IMAGES = ("<image>\n", "<image>".join(_AROUND) + "\n")

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
{before}
TAKES = {{  # by its name in forward, which of what is made
    {taken}
}}


def build(model, processor, samples, system):
    """One batch. A sample has `prompt`, `images`, and `pieces`: its texts and images in order."""
    {made}{filled}
    return {given}


parts = {{  # what is not found: remove the mark before a line, and name the module
    {parts}
}}
'''

#: What some forwards take that neither a picture nor a prompt says, and what will do.
_FILLED = {
    "labels": 'made["labels"] = made["input_ids"] * 0 - 100  # no word is to be foretold',
    "modalities": 'made["modalities"] = ["image"] * sum(len(sample.images) for sample in samples)',
}
_GIVEN = "{theirs: made[ours] for theirs, ours in TAKES.items() if ours in made}"

#: How inputs are made without a file; and where that fails, to begin with.
_AS_EVER = """from normprobe.inputs.standard import build_documented

    made = build_documented(processor, samples, system)  # as without this file{turnless}"""
#: Of a processor that writes no turn.
_TURNLESS = "; {guess}: no turn is written around the prompt, though the tokenizer has a template"
_BY_HAND = """from normprobe.inputs.by_hand import build_by_hand

    how = {"turn": TURN, "image": IMAGE, "image_ids": IMAGE_IDS, "pixels": (SIDE, MEAN, STD)}
    made = build_by_hand(model, processor, samples, system, padded=PADDED, **how)"""
#: Of a package that makes pixels by a function of LLaVA's kin.
_TILES = """

    pictures = [picture for sample in samples for picture in sample.images]
    if pictures:  # {guess}: as its package makes pixels; tiles where its config asks for them
        from {module} import process_images

        look = model.get_vision_tower().image_processor
        if hasattr(look.size, "get"):
            look.size = dict(look.size)  # older code asks whether it is one
        made["pixel_values"] = process_images({arguments})
        made["image_sizes"] = [picture.size for picture in pictures]"""
#: Of a copy of InternVL's chat layout, as Mini-Monkey is.
_SQUARES = """# {guess}: cut as InternVL cuts
    made = INTERNVL_CHAT.build(model, processor, samples, system)"""
_LAYOUT = """
from normprobe.extensions.families.internvl_chat import INTERNVL_CHAT

load_processor, prepare = INTERNVL_CHAT.load_processor, INTERNVL_CHAT.prepare
"""
_CONSTANTS = """
TURN = {turn}
IMAGE = "{image}\\n"  # {guess}: in a prompt, until ids take its place
IMAGE_IDS = {ids}  # {how}
SIDE, MEAN, STD = {pixels}  # of a picture, {unless}{unknown}{aspect}
PADDED = {padded}  # pictures, to squares first{why_padded}
{loader}
"""
_LOADER = """

def load_processor(path):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code={trust})
    {look}return tokenizer
"""
_LOOK = """look = transformers.AutoImageProcessor
    tokenizer.look = look.from_pretrained({place}, trust_remote_code={trust})
    """
_SETUP = """
def setup():
    {what}  # a guess{others}

"""
_UNPREPARED = """
def prepare(model, processor):
    pass  # a guess; what its code loads later, such as model.get_vision_tower().load_model()

"""
_PREPARED_LATER = """
def prepare(model, processor):
    for part in [*model.modules()]:  # a guess: all that its code loads later
        if getattr(part, "is_loaded", True) is False:
            part.load_model()

"""


def begin_inputs_file(model: str, path: Path, loading: Loading) -> str:
    """Write an inputs file and measure one sample with it.

    What an inputs file holds that is passed, such as its ``setup``, is kept.

    Returns:
        What came of the sample, in words: it is measured, or why not; and which lines are guesses.

    Raises:
        NormprobeError: the file exists or cannot be written, or the model cannot be opened.
    """
    if path.exists():
        raise NormprobeError(f"{path} exists", "write to another file, or remove it")
    told, text = _begun(model, path, loading)
    if loading.trust_remote_code and _FOUND.search(text):
        try:
            told, text = _begun(model, path, replace(loading, inputs=path))
        except NormprobeError as failure:  # what it imports may need another transformers
            told = f"not measured with it yet: {failure.problem}\n{failure.remedy}"
    guesses = [str(n) for n, line in enumerate(text.splitlines(), 1) if _GUESS in line]
    return told + f"\nguessed, so look at lines {', '.join(guesses)}" * bool(guesses)


def _begun(model: str, path: Path, loading: Loading) -> tuple[str, str]:
    """Write the file; what came of a sample, and the text that is written."""
    source: Any = None
    try:
        source = Probe(model, **vars(loading)).source
    except UnknownCode as failure:
        again = f"normprobe inputs {model} --inputs {path} --write OTHER.py"
        told = (
            f"not measured with it yet: {failure.problem}\n{failure.remedy}\n"
            f"then begin again with what it tells: {again}"
        )
    kept, said = "", dict[str, str]()
    if loading.inputs:
        kept, said = _kept(loading.inputs), _said(loading.inputs)
        named = read_inputs_file(loading.inputs).parts
        loading = replace(loading, named=[*named.items(), *(loading.named or ())])
    text = _written(path, _text(model, path.name, loading, source, kept, said))
    if source is not None:
        left_out = re.findall(rf'# "(\w+)": NAME,  # {_GUESS}', text)
        told = _tried(model, path, loading, left_out)
        asked = ["labels"] if re.search(r"where [\w ]*\blabels\b[\w ]* (is|are) None", told) else []
        if by_hand := "process_images" in text and f"build() of {path} fails" in told:
            asked = []
        if asked or by_hand:  # its package's pixels may be of use to others alone (PAVE)
            again = _text(model, path.name, loading, source, kept, said, asked, by_hand)
            text = _written(path, again)
            told = _tried(model, path, loading, left_out)
    return told, text


def _written(path: Path, text: str) -> str:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NormprobeError(
            f"{path} cannot be written: {first_line(error)}", "choose another file"
        ) from error
    return text


def _tried(model: str, path: Path, loading: Loading, left_out: Sequence[str]) -> str:
    """What comes of one sample, in words; ``left_out``: what forward takes beside."""
    try:
        probe = Probe(model, **{**vars(loading), "inputs": path})
        table = wide(probe.layers("sample", limit=1, intervals=False, workers=0).table)
    except NormprobeError as failure:
        if lacks := re.search(r"where ([\w ]+) (is|are) None", failure.problem):
            left_out = [each for each in left_out if each in lacks[1].split(" and ")]
        may = f"forward may ask for {', '.join(left_out)}, which TAKES leaves out"
        ways = [may] * bool(left_out and "inputs" in failure.problem) + [failure.remedy]
        if PREPARED in failure.remedy:  # that comes first
            ways.reverse()
        return f"not measured with it yet: {failure.problem}\n{'; else '.join(ways)}"
    held = table[(table["layer"] == 0) & (table["group"] != NON_VISUAL)]
    told = ", ".join(f"{n} {group}" for group, n in zip(held["group"], held["tokens"], strict=True))
    if VISUAL not in set(held["group"]):
        return f"one sample is measured with it, and has no visual tokens ({told}): add its pixels"
    return f"one sample is measured with it: {told} tokens{_as_read(probe)}"


def _as_read(probe: Probe) -> str:
    """The prompt of that sample as its ids say it, with what stands for pictures in brackets."""
    builder, parts = probe.source.builder, probe.parts
    ids, mask = text_ids(builder.build([*open_data("sample", limit=1)]), parts)
    if ids is None or builder.tokenizer is None:
        return ""
    told, held = "", ids[0] if mask is None else ids[0][mask[0].bool()]
    for stands, run in groupby(held.tolist(), lambda n: n < 0 or n in parts.image_token_ids):
        numbers = [*run]
        words = f"[{len(numbers)} x {numbers[0]}]"
        told += words if stands else _in_words(builder.tokenizer, numbers)
    return f"\nits prompt: {visible(repr(told))}"


def _in_words(tokenizer: Any, numbers: Sequence[int]) -> str:
    """Ids as text; many of one in a row, as of a placeholder that no field names, once."""
    told, plain = "", list[int]()
    for number, again in groupby(numbers):
        if len(run := [*again]) <= _REPEATED:
            plain += run
            continue
        told += tokenizer.decode(plain) + f"[{len(run)} x {tokenizer.decode([number])}]"
        plain = []
    return told + str(tokenizer.decode(plain))


def _kept(path: Path) -> str:
    """The text of an inputs file without what is begun anew."""
    text, kept, last = path.read_text(encoding="utf-8"), "", 0
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        named = {getattr(node, "name", None)}  # of a function
        for target in node.targets if isinstance(node, ast.Assign) else ():
            named |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
        of_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        unedited = isinstance(node, ast.FunctionDef) and _is_begun(node)
        own = named & {"TURN", "IMAGE"} and _value(node) not in (_TURN, *_IMAGES, None)
        # No docstring; a call such as sys.path.insert stays.
        if own or not (named & _BEGUN or of_text or unedited):
            kept += "".join(lines[last : node.end_lineno])  # with the comments before it
        last = node.end_lineno or last
    return kept and kept.rstrip() + "\n"


def _is_begun(node: ast.FunctionDef) -> bool:
    """Whether a function is as it was begun, so that what is known by now may take its place."""
    with_look, _, end = ast.unparse(ast.parse(_LOADER.format(trust=True, look=""))).rpartition("\n")
    text = re.sub(r"trust_remote_code=(True|False)", "trust_remote_code=True", ast.unparse(node))
    loads = text.startswith(with_look) and text.endswith(end) and len(node.body) in (3, 5)
    return text == _NOTHING_PREPARED or loads


def _value(node: ast.stmt) -> Any:
    """What an assignment says, where that is written out."""
    with suppress(ValueError):
        return ast.literal_eval(node.value) if isinstance(node, ast.Assign) else None
    return None


def _said(path: Path) -> dict[str, str]:
    """``TAKES`` of an inputs file, where it is written out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TAKES":
            said = _value(node)
            return {str(k): str(v) for k, v in said.items()} if isinstance(said, dict) else {}
    return {}


def _text(
    name: str,
    file: str,
    loading: Loading,
    source: CheckpointSource | None,
    kept: str,
    said: Mapping[str, str],
    asked: Sequence[str] = (),
    by_hand: bool = False,
) -> str:
    """Of a source, or of a type whose code only a package has; with what is kept of a file.

    ``said``: what of it was taken, for a forward that does not name its inputs. ``asked``: of
    ``_FILLED``, what forward was seen not to do without. ``by_hand``: pixels are not its package's.
    """
    settings: dict[str, Any] = {}
    for each in ("processor_config.json", "preprocessor_config.json", "config.json"):
        settings |= read_config_file(cached(name, each, loading.revision))
    # Of a type that nothing here knows: a model without any module.
    model, keywords = _built(source, settings)
    parameters = [] if source is None else list(signature(model.forward).parameters.values())
    processor, made, refused = None, {}, "nothing"
    try:
        if source is not None and loading.inputs and "def load_processor(" not in kept:
            # Not by what was begun before its code was known.
            load = partial(load_processor, revision=loading.revision)
            with suppress(NormprobeError):
                processor = load(name, trust_remote_code=loading.trust_remote_code)
        if source is not None and processor is None:
            processor = source.builder.processor
        made = dict(build_documented(processor, [*open_data("sample", limit=1)], None))
    except NormprobeError as failure:
        refused = failure.problem
    except (*REFUSALS, ImportError) as error:
        refused = first_line(error)
    cutting, count = ("", 0) if made or by_hand else makes_pixels(model)
    squares = not made and _is_internvl_chat(model, tokenizer_of(processor), kept)
    before = kept
    if squares:
        before += _LAYOUT
    elif not made:
        asks = "" if cutting else _otherwise_cut(settings)
        before += _by_hand(name, loading, settings, processor, model, kept, asks, cutting)
    if "def setup(" not in kept:
        before += _setup(settings) if source is None else _registering(settings, source)
    if keywords:  # over those that are kept
        before += (
            f"\nkeywords = {keywords!r}  # {_GUESS}: what its README passes to from_pretrained\n"
        )
    if "def prepare(" not in before and (source is None or loads_later(model)):
        before += _UNPREPARED if source is None else _PREPARED_LATER
    names = {id(module): each for each, module in model.named_modules()}
    takes = [p.name for p in parameters] or [*_USUAL]
    taken = [*_taken(takes, made, ("image_sizes",) if cutting else ())]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in _OPEN]
    more = any(p.kind is p.VAR_KEYWORD for p in parameters) and not (made or needed)
    if more:  # ids may be passed on unnamed (mPLUG-Owl3)
        ids = [each for each in _OFFERED[:2] if each not in takes]
        taken += [f'"{each}": "{each}",  # {_GUESS}' for each in ids]
    if said and ("def forward(" in kept or not any(p.kind in _OPEN for p in parameters)):
        taken = [f'"{theirs}": {ours!r},' for theirs, ours in said.items()]  # nothing else knows
    if squares:
        taken = [f'"{each}": "{each}",' for each in (*takes, VISUAL_MASK) if each in _OF_SQUARES]
    lacking = [each for each in ("modalities", *asked) if each in takes and each not in made]
    filled = [] if squares else lacking
    taken = [line for line in taken if not line.startswith(tuple(f'# "{e}"' for e in filled))]
    taken += [f'"{each}": "{each}",' for each in filled]
    given = _GIVEN
    if needed and not any(line.startswith('"') for line in taken):  # one mapping that holds all
        taken = [f"{line}  # {_GUESS}" for line in _taken([*made] or _OFFERED, made)]
        given = f'{{"{needed[0]}": {_GIVEN}}}'
    tokenizer = tokenizer_of(processor)
    writes = getattr(processor, "chat_template", None)
    silent = bool(made) and not writes and getattr(tokenizer, "chat_template", None)
    as_ever = _AS_EVER.format(turnless=_TURNLESS.format(guess=_GUESS) if silent else "")
    arguments = ", ".join(("pictures", "look", "model.config")[:count])
    pixels = _TILES.format(module=cutting, arguments=arguments, guess=_GUESS) if cutting else ""
    how = as_ever if made else _BY_HAND + pixels
    if squares:
        how = _SQUARES.format(guess=_GUESS)
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
        taken=_lines(taken or ["# nothing that is known here"]),
        made=how,
        filled="".join(f"\n    {_FILLED[each]}" for each in filled),
        given=given,
        parts=_lines(_parts(model, names, loading.parts)),
    )


def _setup(settings: Mapping[str, Any]) -> str:
    """A ``setup`` that imports the class that a config names, where a package has it."""
    its_class = (settings.get("architectures") or [settings.get("model_type")])[0]
    if hasattr(transformers, str(its_class)):  # an adapter's config names that of its base
        its_class, found = f"the class for the type {settings.get('model_type')}", []
    else:
        found = modules_of(settings)
    if not found:
        what = f"import the module of {its_class} here"
        return _SETUP.format(what=f"raise ImportError({what!r})", others="")
    more = f"; it is in {', '.join(found[1:4])}, too" * (len(found) > 1)
    return _SETUP.format(what=f"import {found[0]}", others=f": {its_class} is there{more}")


def _registering(settings: Mapping[str, Any], source: CheckpointSource) -> str:
    """A ``setup`` for a class of a package whose type transformers has; "" for any other."""
    its_class, model_type = (settings.get("architectures") or [""])[0], settings.get("model_type")
    known = hasattr(transformers, str(its_class)) or "auto_map" in settings
    reader = type(source.checkpoint.config).__module__
    if known or not reader.startswith("transformers.") or not (found := modules_of(settings)):
        return ""
    offers = auto_class(source.checkpoint.kind, source.checkpoint.config).__name__
    more = f"; it is in {', '.join(found[1:4])}, too" * (len(found) > 1)
    lines = (
        f"import {found[0]} as code  # {_GUESS}: {its_class} is there{more}",
        f"from transformers import {offers}  # which makes its own of the type {model_type}",
        "",
        f"{offers}.register(code.{its_class}.config_class, code.{its_class}, exist_ok=True)",
    )
    return "\ndef setup():\n" + "".join(f"    {line}".rstrip() + "\n" for line in lines) + "\n"


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


def _by_hand(
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
    from transformers.utils.constants import (
        IMAGENET_STANDARD_MEAN,
        OPENAI_CLIP_MEAN,
        OPENAI_CLIP_STD,
    )

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
    for place in _named_towers(name, settings) if side is None else ():
        of_tower = dict(fields(read_config_file(cached(place, "config.json", None))))
        side = next((v for v in (side, of_tower.get("image_size")) if type(v) is int), None)
    if side is None and (in_name := _SIDE_IN_NAME.search(str(settings))):
        side = int(in_name[1])
    siglip = "siglip" in str(settings).lower()
    middle = (IMAGENET_STANDARD_MEAN,) * 2 if siglip else (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD)
    numbers = [[v for n, v in known if n == f"image_{kind}"] for kind in ("mean", "std")]
    mean, std = (
        given if len(given) == 3 and {type(v) for v in given} <= {int, float} else list(usual)
        for given, usual in zip(numbers, middle, strict=True)
    )
    by_package, module = turn_of(model)
    if by_package:
        turn = f"{by_package!r}  # {_GUESS}: default_conversation of {module}"
    elif getattr(tokenizer, "chat_template", None):
        turn = f"None  # {_GUESS}: the chat template's, or a text as "
        turn += '"{images}Question: {prompt} Answer:"'
    else:
        turn = f'"{_TURN}"  # {_GUESS}'
    ends = [number(end) for end in _ENDS]
    its_own = read_config_file(cached(tower, "preprocessor_config.json", None)) if tower else {}
    crops = (settings | its_own).get("do_center_crop") and "image_aspect_ratio" not in settings
    padded = settings.get("image_aspect_ratio") == "pad"
    told_pixels = look or (side and (any(numbers) or re.search("clip|siglip", str(settings))))
    between = f"; between {ends[0]} and {ends[1]}, as the config says?" if None not in ends else ""
    told = token is not None and (token < 0 or rows is not None) and not between
    id_of = -200 if token is None else token
    rows = rows or 1 if id_of >= 0 else 1  # of an id of no word forward knows how many there are
    opened, closed = map(words.get, _AROUND)
    asked = settings.get("mm_use_im_start_end") is True and "\nIMAGE = " not in f"\n{kept}"
    around = _AROUND if asked and rows == 1 and None not in (opened, closed) else ("", "")
    text = _CONSTANTS.format(
        turn=turn,
        image="<image>".join(around),
        guess=_GUESS,
        ids=f"[{opened}, {id_of}, {closed}]" if any(around) else f"[{id_of}] * {rows}",
        how=f"{'' if told else _GUESS + ': '}what stands for a picture{between}",
        pixels=f"{side or 224}, {mean}, {std}",
        unless="unless a module holds an image processor, or else `look` of load_processor is one"
        if look
        else "where no image processor is found",
        unknown="" if told_pixels else f", {_GUESS}",
        aspect=asks,
        padded=padded,
        why_padded=f"; {_GUESS}: image_aspect_ratio asks for it, and an evaluation may not"
        if padded and not pixels_by
        else f"; {_GUESS}: a picture that is no square is cropped" * bool(crops and not pixels_by),
        loader=""
        if "def load_processor(" in kept
        else _LOADER.format(
            trust=loading.trust_remote_code,
            look=_LOOK.format(place=look, trust=loading.trust_remote_code) if look else "",
        ),
    )
    said = {each for each in ("TURN", "IMAGE") if f"\n{each} = " in f"\n{kept}"}
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.partition(" =")[0] not in said)


def _is_internvl_chat(model: nn.Module, tokenizer: Any, kept: str) -> bool:
    """Whether code under another name writes what InternVL's does around its squares."""
    held = ("num_image_token", "conv_template", "system_message", "img_context_token_id")
    return (
        all(hasattr(model, each) for each in held)
        and "image_flags" in signature(model.forward).parameters
        and "<IMG_CONTEXT>" in (tokenizer.get_vocab() if tokenizer else ())
        and "def load_processor(" not in kept
    )


def _otherwise_cut(settings: Mapping[str, Any]) -> str:
    """What the config asks for in place of one square a picture, as the end of a line."""
    aspect = str(settings.get("image_aspect_ratio"))
    if "anyres" in aspect:
        asks = f"tiles (image_aspect_ratio {aspect}), this makes one square"
    elif settings.get("dynamic_image_size") is True:
        asks = "tiles (dynamic_image_size), this makes one square"
    else:
        return ""
    return f"; {_GUESS}: the config asks for {asks}"


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
            yield f'"{name}": "image_mask",  # {_GUESS}'
        elif not made and (_SEEN.search(name) or not _OF_TEXT.search(name)):
            yield f'# "{name}": NAME,  # {_GUESS} that it does without'


def _parts(model: nn.Module, names: dict[int, str], given: Mapping[str, Any]) -> Iterator[str]:
    """What was given by hand, what structure tells, and a guess where it does not."""
    guessed = guesses(model, names)
    with suppress(NormprobeError):
        guessed |= {role: part.name for role, part in find_parts(model) if role in MODULE_ROLES}
    for role, guess in {**guessed, **given}.items():
        yield f'"{role}": {guess!r},' if role in given else f'# "{role}": "{guess}",'
    if "image_token_ids" not in given:
        yield '# "image_token_ids": (ID,),  # none: the rows that other pixels change are visual'
