"""Which rows of the text table stand for images: Chameleon and Emu3 tokenize images."""

from torch import nn


def image_token_rows(model: nn.Module) -> list[int]:
    """The ids in the vocabulary that the codes of the image tokenizer are mapped to."""
    mappings = (getattr(module, "vocabulary_mapping", None) for module in model.modules())
    ids = (getattr(mapping, "image_tokens", ()) for mapping in mappings if mapping is not None)
    return sorted({int(id_) for found in ids for id_ in found})
