"""A tokenizer of characters, with its special tokens at the ids of the tiny models."""

import string
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast

from support.tiny_models import (
    BOS,
    EOS,
    FIRST_TEXT,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    PAD,
    VOCABULARY,
)

#: What checkpoints call these roles, unless they have names of their own.
ROLES = {
    "pad_token": PAD,
    "bos_token": BOS,
    "eos_token": EOS,
    "image_token": IMAGE,
    "boi_token": IMAGE_START,
    "eoi_token": IMAGE_END,
}
CHARACTERS = f"{string.digits}{string.ascii_letters}{string.punctuation} \n"
UNKNOWN = FIRST_TEXT + len(CHARACTERS)


def character_tokenizer(
    names: Mapping[int, str], roles: Mapping[str, int | None], more: Sequence[str]
) -> PreTrainedTokenizerFast:
    """One token a character, and a beginning of sequence before every text.

    Args:
        names: special tokens by their ids.
        roles: attributes of the tokenizer, such as ``image_token``, and the ids they stand for.
            ``None``: this tokenizer does not have the attribute.
        more: special tokens whose ids do not matter.
    """
    vocabulary = [f"<unused{index}>" for index in range(VOCABULARY)]
    vocabulary[FIRST_TEXT:UNKNOWN] = CHARACTERS
    for index, name in {UNKNOWN: "<unk>", **names, **dict(enumerate(more, UNKNOWN + 1))}.items():
        vocabulary[index] = name
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([*names.values(), *more])
    begin = vocabulary[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, BOS)]
    )
    special = {
        role: vocabulary[index] for role, index in {**ROLES, **roles}.items() if index is not None
    }
    basic = {role: special.pop(role) for role in ("pad_token", "bos_token", "eos_token")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        extra_special_tokens=special,
        **basic,
    )
