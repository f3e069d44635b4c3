"""Where a model keeps its parts, told by its interfaces, its module tree and its config."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from torch import nn

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.failures import is_native, runs_own_code
from normprobe.hooks import refuse_hidden_weights
from normprobe.inputs.on_device import transformers_config
from normprobe.model.config import vision_fields, vision_modules
from normprobe.model.find.overrides import (
    ADDED,
    DISCRETE,
    IN_SEQUENCE,
    OVERRIDE_KEYS,
    PERTURBATION,
    overrides_of,
)
from normprobe.model.find.parts import (
    PROJECTS_SOUND,
    STREAMS,
    Part,
    Parts,
    by_hand,
    candidates,
    check_name,
    children_of,
    class_rows_of,
    cuts_patches,
    guesses,
    holders_of,
    holds_blocks,
    size_of,
)
from normprobe.versions import decoder, encoder_of

#: Config fields that name placeholder ids. Visual indicators are looked up in the visual embedding
#: table (Ovis).
IMAGE_TOKEN_FIELDS = ("image_token_id", "image_token_index", "visual_indicator_token_ids")
_VIDEO_TOKEN_FIELDS = ("video_token_id", "video_token_index")
_AUDIO_TOKEN_FIELDS = ("audio_token_id", "audio_token_index")

#: Sub-configs that hold them in some types.
_HOLDERS = ("vlm_config", "thinker_config", "vision_config", "audio_config")

#: What code of a repository calls the sub-config of its language model.
_TEXT = ("llm_config", "language_config")

#: The family of a model of which ``find_tables`` found no more than its table.
UNKNOWN = "unknown"
_ROLES = {
    *("vision_encoder", "projector", "text_embedding", "decoder_layers"),
    *("audio_encoder", "audio_projector"),
}
_NEED_IDS = (IN_SEQUENCE, ADDED, DISCRETE)

#: Children of the encoder's parent that are no projector.
_NO_PROJECTOR = re.compile(
    r"audio|speech|sound|video|tower|router|lm_head|norm$|embed_tokens$|vqmodel|^gen_"
)

#: Children of the audio encoder's parent that project what it hands over.
_OF_SOUND = re.compile(r"(audio|speech|sound)(?!.*(tower|encoder|model)$)")

#: Children of the encoder that project: the merger of Qwen-VL and its kin.
_IN_TOWER_PROJECTOR = re.compile(r"merger|projector|projection|connector|adapter|aligner")


#: How much larger a list of layers outside the decoder is where that one is of something else.
_MANY_TIMES = 10


def find_parts(model: nn.Module, *, named: Mapping[str, Any] | None = None) -> Parts:
    """Name the parts of a transformers model.

    Args:
        model: a vision-language model, a bare vision encoder or a bare language model, on any
            device, meta included.
        named: parts named by hand, which are not looked for: dotted names by the keys of
            ``overrides.OVERRIDES``.

    Returns:
        The parts; a bare encoder has ``vision_encoder`` alone, a bare language model
        ``text_embedding`` and ``decoder_layers``.

    Raises:
        NormprobeError: when the model has neither side, or both but no image token id or no
            decoder layers; it names what was looked for and the candidates. Also when a name
            given by hand is no module, or when a model with code of its own speaks of images and
            no vision side is found.
    """
    refuse_hidden_weights(model)
    named = named or {}
    names = {id(module): name for name, module in model.named_modules()}
    if unknown := sorted(named.keys() - set(OVERRIDE_KEYS)):
        raise NormprobeError(
            f"parts named by hand: there is no part {unknown[0]!r}",
            did_you_mean(unknown[0], OVERRIDE_KEYS, f"expected some of {', '.join(OVERRIDE_KEYS)}"),
        )
    override = _override(model, named)
    for role in _ROLES & named.keys():
        if named[role] is not None:
            check_name(model, role, named[role])
    part = partial(_part, model, override)
    encoder = part("vision_encoder", lambda: _vision_encoder(model, names))
    config = getattr(model, "config", None)
    if encoder is not None and encoder.name == "" and not is_native(model):
        # One whose decoder attends to the picture (Nemotron-Parse), or around a whole model (GAR),
        # or whose first input is one (OneCAT).
        speaks = bool(getattr(config, "is_encoder_decoder", False)) or any(
            hasattr(each, "text_config") and hasattr(each, "vision_config")
            for each in vars(config or object).values()
        )
        of_words = isinstance(_text_embedding(model), nn.Embedding)
        scores = any(map(_is_contrastive, model.modules()))
        encoder = None if speaks or (of_words and not scores) else encoder
    bare_encoder = encoder is not None and (encoder.name == "" or _is_contrastive(model))
    table = partial(_text_embedding, model, str(named.get("decoder_layers") or ""))
    embedding = None if bare_encoder else part("text_embedding", table)
    if encoder is None and embedding is None:
        raise NormprobeError(
            f"{type(model).__name__} has neither a vision encoder (get_encoder(modality='image')) "
            f"nor a text embedding (get_input_embeddings()); children: {children_of(model)}",
            by_hand(model, **_lacking(model, names, named)),
        )
    around = model if "vision_encoder" in named else None  # of what was found, it is the whole
    class_rows = override.get("class_rows", class_rows_of(encoder, around))
    if embedding is None:
        return Parts(encoder, None, None, None, None, (), class_rows=class_rows)
    decoder = _decoder(model, encoder)
    layers = part("decoder_layers", lambda: _decoder_layers(model, decoder, encoder))
    if layers is None:
        raise NormprobeError(
            f"no decoder layers found in {type(model).__name__}: looked for a list of "
            f"{_layers_in_words(model)}; candidates: {candidates(model, names)}",
            by_hand(
                model, **_lacking(model, names, {"text_embedding": embedding, **named}, encoder)
            ),
        )
    language = [decoder, layers.module, embedding.module]
    projector = part("projector", lambda: next(iter(_projectors(model, encoder, language)), None))
    _refuse_language_inside(
        model, [("vision_encoder", encoder), ("projector", projector)], language
    )
    if encoder is None and projector is None:
        _refuse_unseen_images(model)
        if named.get("image_token_ids"):  # a picture's codes may be words of one table (SEED-LLaMA)
            raise NormprobeError(
                f"image_token_ids are named, and no part of {type(model).__name__} is found that "
                "reads pixels",
                "leave them out; where pictures come as ids, return their positions as "
                "visual_mask, bool [batch, seq], from build(...) of an --inputs file",
            )
    fusion = override.get("fusion", IN_SEQUENCE)
    ids: tuple[int, ...] = ()
    if encoder or projector:
        ids = _image_token_ids(model, override)
    video_ids, audio_ids = video_and_audio_ids(model, override, ids)
    listener = part("audio_encoder", lambda: _vision_encoder(model, names, "audio"))
    others = [*language, encoder.module] if encoder else language
    if listener and any(_holds(listener.module, other) for other in others):
        listener = None
    of_sound = _OF_SOUND if encoder or projector else _IN_TOWER_PROJECTOR  # of sounds alone
    hears = partial(_projectors, model, listener, language, listener or encoder or projector)
    return Parts(
        vision_encoder=encoder,
        projector=projector,
        text_embedding=embedding,
        decoder_layers=layers,
        visual_embedding=projector if projector and _is_table(projector.module) else None,
        image_token_ids=ids,
        fusion=fusion,
        stream=STREAMS[override.get("stream", "single")],
        class_rows=class_rows,
        family=override.get("family", ""),
        channels_first=override.get("channels_first", False),
        video_token_ids=video_ids,
        audio_token_ids=audio_ids,
        behind=override.get("behind", ""),
        audio_encoder=listener,
        audio_projector=part("audio_projector", lambda: next(iter(hears(of_sound)), None)),
        named=frozenset(named),
    )


def find_tables(model: nn.Module, *, named: Mapping[str, Any] | None = None) -> Parts:
    """The parts of a model; where they are not all found, its text embedding table alone.

    Arguments are those of ``find_parts``.
    """
    try:
        return find_parts(model, named=named)
    except NormprobeError as failure:
        override = _override(model, named or {})
        table = _part(model, override, "text_embedding", lambda: _text_embedding(model))
        if table is None:
            raise failure
        return Parts(None, None, table, None, None, (), family=UNKNOWN)


def _lacking(
    model: nn.Module,
    names: dict[int, str],
    known: Mapping[str, Any],
    encoder: Part | None = None,
) -> dict[str, str]:
    """Guesses of all parts that are not known: who names one at a time is refused four times."""
    sides = () if encoder is None and vision_modules(model) else ("vision_encoder", "projector")
    return {
        role: guess
        for role, guess in guesses(model, names).items()
        if role not in known and role not in sides
    }


def _override(model: nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the model's type, and said by hand."""
    known = overrides_of(transformers_config(model))
    if not runs_own_code(model):
        return {**known, **named}
    # What a family's file names may not be there, in a fork: then structure has to tell it.
    modules = {name for name, _ in model.named_modules()}
    there = {role: part for role, part in known.items() if role not in _ROLES or part in modules}
    return {**(known if there == known else {}), **named}


def _part(
    model: nn.Module,
    override: Mapping[str, Any],
    role: str,
    find: Callable[[], nn.Module | None],
) -> Part | None:
    """The part that is known of a role; else what ``find`` finds."""
    if role in override:
        name = override[role]
        return _named(model, name(transformers_config(model)) if callable(name) else name)
    found = find()
    names = {id(module): name for name, module in model.named_modules()}
    return None if found is None else Part(names[id(found)], found)


def _named(model: nn.Module, name: str | None) -> Part | None:
    """The part of an override; None where this checkpoint's config switches it off."""
    try:
        return None if name is None else Part(name, model.get_submodule(name))
    except AttributeError:
        return None


def _vision_encoder(
    model: nn.Module, names: dict[int, str], modality: str = "image"
) -> nn.Module | None:
    """What ``get_encoder(modality="image")`` gives; the model itself when it is a bare encoder."""
    found = _ask(lambda: encoder_of(model, modality))
    if found is None or id(found) not in names:
        return None
    if found is not model:
        return found
    # The accessor answers with the model itself when it knows no encoder.
    return model if getattr(model, "main_input_name", "") == "pixel_values" else None


def _text_embedding(model: nn.Module, layers: str = "") -> nn.Module | None:
    """The token embedding table: a module with a two-dimensional weight.

    A class of one's own may leave the question to the language model inside: that around the
    decoder layers where these are named, for another one may read words, too (BLIVA's Q-Former).
    """
    own = not type(model).__module__.startswith("transformers.")
    around = [model.get_submodule(name) for name in holders_of(layers)] if own and layers else []
    for holder in (*around, model, *model.children()) if own else (model,):
        found = _ask(partial(methodcaller("get_input_embeddings"), holder))
        weight = getattr(found, "weight", None)
        if weight is not None and weight.dim() == 2:
            return found
    return None


def _is_contrastive(model: nn.Module) -> bool:
    """Whether the model scores images against texts: then its text tower reads no visual tokens.

    CLIP and SigLIP do; they are measured as bare vision encoders.
    """
    return isinstance(getattr(model, "logit_scale", None), nn.Parameter)


def _decoder(model: nn.Module, encoder: Part | None) -> nn.Module:
    found = _ask(lambda: decoder(model))
    return model if found is None or (encoder and found is encoder.module) else found


def _decoder_layers(model: nn.Module, decoder: nn.Module, encoder: Part | None) -> nn.Module | None:
    """The largest list of ``num_hidden_layers`` modules in the decoder, outside the encoder.

    In code of its own what is called a decoder may be one of masks (PixelLM): then a list elsewhere
    is many times as large.
    """
    inside_encoder = {id(module) for module in encoder.module.modules()} if encoder else set()

    def largest(holder: nn.Module) -> nn.Module | None:
        lists = [
            module
            for module in holder.modules()
            if isinstance(module, nn.ModuleList)
            and 0 < len(module) == _number_of_layers(model)
            and next(module[0].children(), None) is not None  # no list of projections (INF-LLaVA)
            and id(module) not in inside_encoder
        ]
        # Those of a decoder of masks hold no norm (SAM's, in LISA and its kin).
        return max([*filter(holds_blocks, lists)] or lists, key=size_of, default=None)

    found = largest(decoder)
    elsewhere = None if is_native(model) else largest(model)
    if found and elsewhere and size_of(elsewhere) > _MANY_TIMES * size_of(found):
        return elsewhere
    return found


def _number_of_layers(model: nn.Module) -> int | None:
    config = transformers_config(model)
    if config is None:
        return None
    holders = (config.get_text_config(decoder=True), *(getattr(config, n, None) for n in _TEXT))
    names = ("num_hidden_layers", "n_layers", "n_layer")  # LLaDA's, GPT-2's
    told = (getattr(holder, name, None) for name in names for holder in holders)
    return next((number for number in told if isinstance(number, int)), None)


def _layers_in_words(model: nn.Module) -> str:
    number = _number_of_layers(model)
    return "num_hidden_layers, which its config lacks" if number is None else f"{number} layers"


def other_projectors(model: nn.Module, parts: Parts) -> list[Part]:
    """Modules beside the encoder that may be the projector as well as the one that was guessed."""
    encoder, known = parts.vision_encoder, (parts.decoder_layers, parts.text_embedding)
    decoder = _decoder(model, encoder)
    language = [decoder, *(part.module for part in known if part is not None)]
    names = {id(module): name for name, module in model.named_modules()}
    found = _projectors(model, encoder, language)
    found += [each for each in _in_tower(encoder) if each not in found]  # DexVLA's merger
    others = (Part(names[id(each)], each) for each in found)
    return [part for part in others if part != parts.projector]


def _projectors(
    model: nn.Module,
    encoder: Part | None,
    language: Sequence[nn.Module],
    near: Part | None = None,
    of_sound: re.Pattern[str] | None = None,
) -> list[nn.Module]:
    """The modules beside the encoder that are no language model; else mergers inside the encoder.

    ``get_decoder`` may answer with the wrapper that holds both sides: what holds the decoder layers
    or the text table is the language model, whatever it is called.

    The last one is first: where several follow each other, it makes the tokens the decoder reads.
    One that makes rows of another width makes none of these (Mini-Gemini).
    That of sounds stands beside ``near``, by its name, where there is no encoder of them.
    """
    near = near or encoder
    if near is None:
        return []
    parent = model.get_submodule(near.name.rpartition(".")[0])
    table = getattr(getattr(language[-1], "weight", None), "shape", None)
    beside = [
        child
        for name, child in parent.named_children()
        if not (encoder and _holds(child, encoder.module))
        and not isinstance(child, nn.ModuleList)
        and (of_sound.search(name) if of_sound else not _NO_PROJECTOR.search(name))
        and not any(_holds(child, part) for part in language)
        # A second table of words, such as names of objects (VCoder).
        and not (type(child) is nn.Embedding and child.weight.shape == table)
        and size_of(child)
    ]
    inside = _in_tower(encoder, PROJECTS_SOUND if of_sound else _IN_TOWER_PROJECTOR)
    width, fitting = getattr(language[-1], "embedding_dim", None), []
    for child in beside:
        linear = [each for each in child.modules() if isinstance(each, nn.Linear)]
        of_table = getattr(child, "embedding_dim", width) == width
        if of_table and (not linear or linear[-1].out_features == width):
            fitting.append(child)
    found = [*reversed(fitting or beside or inside)]
    outer = near.name.rpartition(".")[0]
    if not outer or of_sound or is_native(model):
        return found
    # An encoder that is named inside its tower has its projector further out (PPLLaVA): beside what
    # cuts its patches stands none that a linear layer does not tell (OmniLMM).
    in_tower = encoder is not None and not cuts_patches(encoder.module)
    told = [child for child in fitting if not cuts_patches(child)]
    if not found or (in_tower and any(map(cuts_patches, beside)) and not told):
        return _projectors(model, encoder, language, Part(outer, parent)) or found
    return found


def _in_tower(
    encoder: Part | None, called: re.Pattern[str] = _IN_TOWER_PROJECTOR
) -> list[nn.Module]:
    """Children of an encoder that project."""
    return [
        child
        for name, child in (encoder.module.named_children() if encoder else ())
        if called.search(name)
        # DeepStack mergers feed later layers, and no table makes rows of patches.
        and not isinstance(child, nn.ModuleList | nn.Embedding)
        and size_of(child)
    ]


def _refuse_unseen_images(model: nn.Module) -> None:
    """Refuse to take a model for a language model that speaks of images."""
    modules = vision_modules(model)
    fields = (
        vision_fields(transformers_config(model)) if transformers_config(model) is not None else []
    )
    if fields or modules:
        guessed = guesses(model, {id(module): name for name, module in model.named_modules()})
        raise NormprobeError(
            f"{type(model).__name__} speaks of images (config: {', '.join(fields[:3]) or 'nothing'}"
            f"; modules: {', '.join(modules[:3]) or 'none'}), but its structure tells neither a "
            "vision encoder nor a projector",
            by_hand(model, **{role: guessed[role] for role in ("vision_encoder", "projector")}),
        )


def _refuse_language_inside(
    model: nn.Module, sides: Iterable[tuple[str, Part | None]], language: Sequence[nn.Module]
) -> None:
    """Refuse a vision encoder or projector that holds decoder layers or the text table."""
    for role, part in sides:
        if part is not None and any(_holds(part.module, inner) for inner in language[1:]):
            words = role.replace("_", " ")
            raise NormprobeError(
                f"{part.name or 'the model itself'} of {type(model).__name__} is no {words}: it "
                "holds the decoder layers or the text embedding",
                by_hand(model, **{role: "NAME"}),
            )


def _is_table(projector: nn.Module) -> bool:
    """Whether visual tokens are probability-weighted means of the rows of a table (Ovis)."""
    return isinstance(projector, nn.Embedding)


def _image_token_ids(model: nn.Module, override: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that stand for visual tokens in the prompt; none where no id tells them."""
    given = override.get("image_token_ids")
    if isinstance(given, tuple | list):
        return tuple(given)
    ids = _ids_in_config(model, (given,) if given else IMAGE_TOKEN_FIELDS)
    needed = override.get("fusion", IN_SEQUENCE) in _NEED_IDS
    if not needed or override.get("positions") == PERTURBATION:
        return ()
    if not ids and is_native(model):
        raise NormprobeError(
            f"the config of {type(model).__name__} names no image token: expected one of "
            f"{', '.join(IMAGE_TOKEN_FIELDS)}",
            by_hand(model, image_token_ids="ID")
            + ", the id that stands for an image patch in the prompt",
        )
    return ids


def video_and_audio_ids(
    model: nn.Module, known: Mapping[str, Any], image_token_ids: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that stand for rows of a video in the prompt, and those for rows of a sound.

    An id that stands for rows of an image as well is left out: what the inputs hold tells which of
    its tokens are a video's.
    """
    videos = known.get("video_token_ids", _ids_in_config(model, _VIDEO_TOKEN_FIELDS))
    sounds = known.get("audio_token_ids", _ids_in_config(model, _AUDIO_TOKEN_FIELDS))
    images = set(image_token_ids)
    return tuple(i for i in videos if i not in images), tuple(i for i in sounds if i not in images)


def _ids_in_config(model: nn.Module, fields: Sequence[str]) -> tuple[int, ...]:
    """The ids that these fields of the config name, or of a sub-config that holds such fields."""
    config = transformers_config(model)
    ids: list[int] = []
    for holder in (config, *(getattr(config, name, None) for name in _HOLDERS)):
        for field in fields:
            value = getattr(holder, field, None)
            ids.extend([value] if isinstance(value, int) else value or [])
    # One below 0 stays in no prompt: code of its own inserts rows for it (TinyLLaVA-Video).
    return tuple(dict.fromkeys(each for each in ids if each >= 0 or is_native(model)))


def image_token_rows(model: nn.Module) -> list[int]:
    """The ids in the vocabulary that the codes of the image tokenizer are mapped to."""
    mappings = (getattr(module, "vocabulary_mapping", None) for module in model.modules())
    ids = (getattr(mapping, "image_tokens", ()) for mapping in mappings if mapping is not None)
    return sorted({int(id_) for found in ids for id_ in found})


def _ask(accessor: Callable[[], Any]) -> nn.Module | None:
    """The answer of an accessor, or None where the model has none or refuses it."""
    try:
        answer = accessor()
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return answer if isinstance(answer, nn.Module) else None


def _holds(module: nn.Module, other: nn.Module) -> bool:
    return any(inner is other for inner in module.modules())
