"""A tokenizer of bytes: any prompt, no training."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(
    special_tokens: Sequence[str], chat_template: str | None
) -> PreTrainedTokenizerFast:
    """One token a byte, and the special ones; ``<pad>`` and ``<unk>`` are always among them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<unk>", "<eos>", *special_tokens]
    vocabulary = {token: index for index, token in enumerate([*names, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=list(special_tokens),
    )
    built.chat_template = chat_template
    return built
