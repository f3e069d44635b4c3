"""Samples to the text that a model reads: through its chat template, or plain for base models.

Chat templates are programs of their own and disagree on the shape of a message: most multimodal
ones want a list of parts, text-only ones a string, and some accept either but drop what they do not
know. None of them reports it, so the rendered text is checked for what has to be in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from PIL import Image

from normprobe.data.media import Audio
from normprobe.data.sample import IMAGE_MARK, Sample, kind_of
from normprobe.errors import NormprobeError
from normprobe.schema import AUDIO, VIDEO

NO_SYSTEM = "none"  # as a system prompt: suppress the one that the template would insert

# Processors that write their image token before every text by themselves.
_PLACE_THE_IMAGE = {
    "Blip2Processor",
    "Florence2Processor",
    "FuyuProcessor",
    "InstructBlipProcessor",
    "InstructBlipVideoProcessor",
    "Kosmos2_5Processor",
}
#: What published prompts put around a turn, by model type, where there is no chat template.
PLAIN_LAYOUTS = {
    "kosmos-2": "<grounding> {turn}",
    "kosmos-2.5": "<ocr>{turn}",
    "vipllava": "###Human: {turn}###Assistant:",
}

_WORD = "normprobe"  # any word would do: it is looked for in rendered text
_TEXT = Sample("", _WORD)
_WITH_IMAGE = replace(_TEXT, images=(Image.new("RGB", (1, 1)),))
_WITH_AUDIO = replace(_TEXT, audios=(Audio(np.zeros(1, np.float32), 1),))
_IMAGE_BETWEEN = replace(_WITH_IMAGE, prompt=f"{_WORD}{IMAGE_MARK}{_WORD}")
_Message = dict[str, Any]


def render_chat(
    processor: Any,
    samples: Sequence[Sample],
    system: str | None,
    answers: Sequence[str] | None = None,
) -> list[str]:
    """Render each sample: its turns, and the opening of the model's turn, or its answer."""
    parts = takes_parts(processor)
    opening = _system_messages(processor, system, parts)
    hoists = parts and _hoists_images(processor)
    texts = []
    for number, sample in enumerate(samples):
        users = []
        for turn in sample.turns:
            user = _user(processor, turn, parts)
            if (hoists and not turn.starts_with_images) or (
                parts and _drops_others(processor, [*opening, user], turn)
            ):
                user["content"] = [{"type": "text", "text": _written(processor, turn)}]
            users.append(user)
        answer = [] if answers is None else [answers[number]]
        messages = [*opening, *_with_replies(users, sample, answer, parts=parts)]
        text = _render(processor, messages, opens=answers is None)
        if text is None:
            raise _unusable(processor, f"fails on {sample.id}")
        texts.append(text)
    return texts


def conversations(
    processor: Any, samples: Sequence[Sample], system: str | None
) -> list[list[_Message]]:
    """Each sample as messages in parts, its image among them, for a template that tokenises."""
    if not takes_parts(processor):
        raise ValueError("the chat template takes no image parts")
    if any(sample.videos or sample.audios for sample in samples):
        raise ValueError("clips and sounds are not handed over inside messages")
    opening = _system_messages(processor, system, parts=True)
    found = []
    for sample in samples:
        users = [{"role": "user", "content": content_of(turn)} for turn in sample.turns]
        found.append([*opening, *_with_replies(users, sample)])
    return found


def _with_replies(
    users: Iterable[_Message], sample: Sample, answer: Sequence[str] = (), *, parts: bool = True
) -> Iterator[_Message]:
    """What the user says in each turn of a sample, and what the model said to it."""
    said = [*(turn.reply for turn in sample.earlier), *answer]
    for user, reply in zip_longest(users, said):
        yield user
        if reply is not None:
            content = [{"type": "text", "text": reply}] if parts else reply
            yield {"role": "assistant", "content": content}


def content_of(sample: Sample) -> list[_Message]:
    """The user turn of a sample in parts, each image, video and sound among them as it is."""
    types = ["text" if isinstance(p, str) else kind_of(p) for p in sample.pieces]
    return [{"type": kind, kind: piece} for kind, piece in zip(types, sample.pieces, strict=True)]


def render_plain(
    processor: Any, samples: Sequence[Sample], system: str | None, layout: str = "{turn}"
) -> list[str]:
    """Render each sample without a chat template.

    Without marks in the prompt: an image placeholder and a line break each, then the prompt.
    """
    refuse_system(processor, system)
    for sample in samples:
        sample.require_one_turn()
    return [layout.replace("{turn}", _written(processor, sample)) for sample in samples]


def refuse_system(processor: Any, system: str | None) -> None:
    """Refuse a system prompt where there is no chat template."""
    if system not in (None, NO_SYSTEM):
        raise NormprobeError(
            f"--system: {type(processor).__name__} has no chat template, so no system prompt",
            "leave --system out",
        )


def is_multimodal(processor: Any) -> bool:
    """Tell a processor, which holds a tokenizer, from a bare tokenizer."""
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

    if isinstance(processor, PreTrainedTokenizerBase):
        return False  # some, too, have a `tokenizer`
    holds = all(hasattr(processor, name) for name in ("tokenizer", "image_processor"))
    return isinstance(processor, ProcessorMixin) or holds  # a class of its own (LLaVA-OneVision-2)


def image_token(processor: Any) -> str | None:
    """Return the placeholder that stands for the image in a text.

    ``None`` for a bare tokenizer, which takes no images, and for processors without placeholders.
    """
    token = getattr(processor, "image_token", None) if is_multimodal(processor) else None
    return None if token is None else str(token)  # some keep an AddedToken


def other_tokens(processor: Any) -> dict[str, str]:
    """The placeholders of a video and of a sound, where a processor has them."""
    tokens = {kind: getattr(processor, f"{kind}_token", None) for kind in (VIDEO, AUDIO)}
    named = is_multimodal(processor)
    return {kind: str(token) for kind, token in tokens.items() if token is not None and named}


def _drops_others(processor: Any, messages: list[_Message], sample: Sample) -> bool:
    """Whether the template leaves out a video or a sound, which has a placeholder."""
    held = {kind: token for kind, token in other_tokens(processor).items() if kind in sample.media}
    rendered = (_render(processor, messages) or "") if held else ""
    return any(rendered.count(token) < len(sample.media[kind]) for kind, token in held.items())


def reads_one_image(processor: Any) -> bool:
    """Whether a processor takes one image with every text, for which a text has no placeholder."""
    return is_multimodal(processor) and _written_token(processor) is None


def _written_token(processor: Any) -> str | None:
    """The placeholder that a text needs for an image; None where the processor writes it itself."""
    places_it = type(processor).__name__ in _PLACE_THE_IMAGE
    return None if places_it else image_token(processor)


def takes_parts(processor: Any) -> bool:
    """Tell whether the template takes a user message as parts (True) or as a string (False)."""
    if is_multimodal(processor):
        without = _render(processor, [_user(processor, _TEXT, parts=True)])
        for sample in (_WITH_IMAGE, _WITH_AUDIO):
            with_one = _render(processor, [_user(processor, sample, parts=True)])
            if _shows(_WORD, with_one) and with_one != without:
                return True
    if _shows(_WORD, _render(processor, [_user(processor, _WITH_IMAGE, parts=False)])):
        return False
    alone = not is_multimodal(processor)  # a tokenizer, of a template of parts (VARGPT)
    if alone and _shows(_WORD, _render(processor, [_user(processor, _TEXT, parts=True)])):
        return True
    raise _unusable(processor, "does not show the prompt")


def adopt_template(processor: Any) -> None:
    """Use a template that a tokenizer holds alone, where it writes the processor's placeholder.

    So does code whose own script calls that of the tokenizer, and no other (MiniMax-VL).
    """
    own = not type(processor).__module__.startswith("transformers.")
    if not own or not is_multimodal(processor) or getattr(processor, "chat_template", None):
        return
    tokenizer: Any = getattr(processor, "tokenizer", None)
    placeholder = image_token(processor)
    if placeholder and getattr(tokenizer, "chat_template", None):
        for parts in (True, False):
            rendered = _render(tokenizer, [_user(processor, _WITH_IMAGE, parts=parts)])
            if _shows(_WORD, rendered) and placeholder in str(rendered):
                processor.chat_template = tokenizer.chat_template
                return


def guessed_placeholder(processor: Any) -> str:
    """The placeholder that is put into a prompt where no template writes one (Cheers); or ""."""
    with suppress(NormprobeError, ValueError):
        if not getattr(processor, "chat_template", None) or not takes_parts(processor):
            return _written_token(processor) or ""
    return ""


def _hoists_images(processor: Any) -> bool:
    """Whether the template takes images out of the text and puts them before it."""
    rendered = _render(processor, [_user(processor, _IMAGE_BETWEEN, parts=True)]) or ""
    _, *between, _ = rendered.rsplit(_WORD, 2)
    return not "".join(between).strip()


def _system_messages(processor: Any, system: str | None, parts: bool) -> list[_Message]:
    """Choose the messages before the user turn."""
    if system is None:
        return []
    user = _user(processor, _TEXT, parts)
    asked = "" if system == NO_SYSTEM else system
    # Some templates take parts from the user but a string as system prompt.
    contents: list[Any] = [[{"type": "text", "text": asked}], asked] if parts else [asked]
    rendered = []
    for content in contents:
        messages = [{"role": "system", "content": content}]
        text = _render(processor, [*messages, user])
        if text is not None and _shows(_WORD, text):
            rendered.append((text, messages))
    if system == NO_SYSTEM:
        # An empty system prompt shortens the text where it replaces a default one, and only there;
        # elsewhere it would add an empty system turn.
        default = _render(processor, [user]) or ""
        return min([(default, []), *rendered], key=lambda pair: len(pair[0]))[1]
    for text, messages in rendered:
        if _shows(system, text):
            return messages
    raise NormprobeError(
        f"--system: the chat template of {type(processor).__name__} shows no system prompt",
        "leave --system out, or put the text into the prompts",
    )


def _user(processor: Any, sample: Sample, parts: bool) -> _Message:
    if parts:
        content = [{k: v for k, v in p.items() if isinstance(v, str)} for p in content_of(sample)]
        return {"role": "user", "content": content}
    return {"role": "user", "content": _written(processor, sample)}


def _written(processor: Any, sample: Sample) -> str:
    """The user turn as text, with a placeholder for each image where the processor has one."""
    others = other_tokens(processor)
    if (placeholder := _written_token(processor)) or (sample.media.keys() & others.keys()):
        return sample.text_with(lambda _: placeholder or "", separator="\n", **others)
    if reads_one_image(processor) and not (len(sample.images) < 2 and sample.starts_with_images):
        received = f"{len(sample.images)} images" if sample.starts_with_images else "text before it"
        raise ValueError(
            f"{type(processor).__name__} reads a single image, before the prompt; received "
            f"{received}"
        )
    return "".join(sample.texts)


def _shows(text: str, rendered: str | None) -> bool:
    """Tell whether a text survived rendering; templates may trim it."""
    return rendered is not None and text.strip() in rendered


def _render(processor: Any, messages: list[_Message], *, opens: bool = True) -> str | None:
    """Render a conversation; ``None`` where the template fails or prints a list of parts as is."""
    from jinja2 import TemplateError

    try:
        text: str = processor.apply_chat_template(
            messages, add_generation_prompt=opens, tokenize=False
        )
    except (TemplateError, TypeError, ValueError):
        return None
    leaked = any(
        isinstance(message["content"], list) and str(message["content"]) in text
        for message in messages
    )
    return None if leaked else text


def _unusable(processor: Any, how: str) -> NormprobeError:
    return NormprobeError(
        f"the chat template of {type(processor).__name__} {how}",
        "check the chat template (chat_template.jinja) of the checkpoint",
    )


def with_placeholder(samples: Sequence[Sample], placeholder: str) -> list[Sample]:
    """The samples as text alone, with an image placeholder where each image stands."""
    mark = placeholder.rstrip()
    separator = placeholder.removeprefix(mark)
    refuse_placeholder(samples, mark.format(1))
    return [
        replace(sample, prompt=sample.text_with(mark.format, separator), images=())
        for sample in samples
    ]


def refuse_placeholder(samples: Sequence[Sample], mark: str) -> None:
    """Refuse prompts with a text that the model would take for an image."""
    for sample in samples:
        if any(mark in text for text in sample.texts):
            raise NormprobeError(
                f"{sample.id}: the prompt contains this model's image placeholder {mark!r}",
                "remove it from the prompt; normprobe places the image itself",
            )
