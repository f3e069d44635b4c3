"""Which of what is made a model's forward takes, under which name: ``TAKES`` of an inputs file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from normprobe.errors import NormprobeError
from normprobe.extensions.families.drafted_known import BY_NAME, Known
from normprobe.inputs.inputs_file import GUESS
from normprobe.inputs.on_device import pixel_inputs
from normprobe.inputs.processor import load_processor
from normprobe.options import Loading
from normprobe.schema import VISUAL_MASK

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

_OFFERED = ("input_ids", "attention_mask", "pixel_values")  # what `build_by_hand` makes
#: What the chat layout of InternVL makes.
_OF_SQUARES = (*_OFFERED, "image_flags", VISUAL_MASK)
#: What some forwards take that neither a picture nor a prompt says, and what will do.
FILLED = {
    "cache_position": (
        'made["cache_position"] = (made["input_ids"][0] * 0 + 1).cumsum(0) - 1  # as generate()'
    ),
    "labels": 'made["labels"] = made["input_ids"] * 0 - 100  # no word is to be foretold',
    "modalities": 'made["modalities"] = ["image"] * sum(len(s.images) for s in samples)  # a guess',
    "image_flags": 'made["image_flags"] = made["pixel_values"][:, :1, 0, 0] * 0 + 1  # all tiles',
    "modals": 'made["modals"] = ["image"] * sum(len(s.images) for s in samples)  # a guess',
}
GIVEN = "{theirs: made[ours] for theirs, ours in TAKES.items() if ours in made}"


class Takes(NamedTuple):
    """What ``build`` hands on."""

    taken: list[str]  # lines of TAKES: by its name in forward, which of what is made
    filled: list[str]  # of FILLED
    given: str  # what build returns


def inputs_taken(
    known: Known, loading: Loading, said: Mapping[str, str], asked: Sequence[str], by_package: str
) -> Takes:
    """By the names of forward; ``by_package``: the module whose function makes pixels.

    ``said``: what of what is made was taken, for a forward that does not name its inputs.
    ``asked``: of ``FILLED``, what forward was seen not to do without.
    """
    parameters, takes, made = known.parameters, known.names, known.made
    looked: tuple[str, ...] = ("image_sizes",) if by_package else ()
    if not made:  # `build_by_hand` hands on what an image processor returns (Hulu-Med)
        with suppress(NormprobeError):
            load = partial(load_processor, trust_remote_code=loading.trust_remote_code)
            look = load(known.place, revision=loading.revision, auto_class="AutoImageProcessor")
            looked += tuple(getattr(look, "model_input_names", ()))
    taken = [*_taken(takes, made, looked)]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in BY_NAME]
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and not needed:
        named = "".join(taken)
        if made:  # all of it, as without a file (VoRA)
            taken += [f'"{each}": "{each}",' for each in made if f'"{each}",' not in named]
        else:  # ids may be passed on unnamed (mPLUG-Owl3)
            ids = [each for each in _OFFERED[:2] if each not in takes]
            taken += [f'"{each}": "{each}",  # {GUESS}' for each in ids]
    if said and not any(p.kind in BY_NAME for p in parameters):
        taken = [f'"{theirs}": {ours!r},' for theirs, ours in said.items()]  # nothing else knows
    filled = [e for e in ("modalities", "modals", *asked) if e in takes and e not in made]
    taken = [line for line in taken if not line.startswith(tuple(f'# "{e}"' for e in filled))]
    taken += [f'"{each}": "{each}",' for each in filled]
    if needed and not any(line.startswith('"') for line in taken):  # one mapping that holds all
        taken = [f"{line}  # {GUESS}" for line in _taken([*made] or _OFFERED, made)]
        return Takes(taken, filled, f'{{"{needed[0]}": {GIVEN}}}')
    return Takes(taken, filled, GIVEN)


def inputs_of_squares(known: Known) -> Takes:
    """Of what the chat layout of InternVL makes."""
    names = [each for each in (*known.names, VISUAL_MASK) if each in _OF_SQUARES]
    return Takes([f'"{each}": "{each}",' for each in names], [], GIVEN)


def _taken(
    takes: Sequence[str], made: Mapping[str, Any], more: Sequence[str] = ()
) -> Iterator[str]:
    """What forward takes of what was made, or will be; pixels under its own name for them."""
    offered = [*(made or _OFFERED), *more]
    pixels = [name for name in pixel_inputs(made) or ["pixel_values"] if name not in takes]
    waiting = [name for name in takes if _PIXELS.search(name) and name not in offered]
    renamed = dict(zip(waiting, pixels, strict=False))
    for name in takes:  # of one, or of all of a batch: image_grid_thws
        near = name.removesuffix("s") if name.endswith("s") else f"{name}s"
        if name not in offered and near in offered and near not in takes:
            renamed.setdefault(name, near)
    for name in takes:
        if name in offered or name in renamed:
            yield f'"{name}": "{renamed.get(name, name)}",'
        elif _MASK.search(name) and not made:
            yield f'"{name}": "image_mask",  # {GUESS}'
        elif not made and (_SEEN.search(name) or not _OF_TEXT.search(name)):
            yield f'# "{name}": NAME,  # {GUESS} that it does without'
