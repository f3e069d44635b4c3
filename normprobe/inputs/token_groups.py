"""The group of every token of a prompt, by its id: visual, video, audio, special, text, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normprobe.schema import AUDIO, PADDING, SPECIAL, TEXT, TOKEN_GROUPS, VIDEO, VISUAL

if TYPE_CHECKING:
    import torch


def token_groups(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    image_token_ids: Sequence[int],
    special_token_ids: Sequence[int],
    video_token_ids: Sequence[int] = (),
    audio_token_ids: Sequence[int] = (),
) -> torch.Tensor:
    """Name the group of every token.

    Every image placeholder counts as visual here. Ids do not tell the structural tokens, which are
    placeholders that pixels do not change: those are found in the model.

    Args:
        input_ids: [batch, seq]. A negative id has no row in an embedding table: it is the
            placeholder of a model whose code says so (Phi-3.5-vision, Ovis2.5), and never text.
        attention_mask: [batch, seq], 0 at padding; ``None`` means that nothing is padding.
        image_token_ids: ids of image placeholders; visual even where the tokenizer calls them
            special.
        special_token_ids: as ``InputBuilder.special_token_ids``.
        video_token_ids: ids of placeholders of a video, likewise whatever the tokenizer calls them.
        audio_token_ids: ids of placeholders of a sound.

    Returns:
        int8 [batch, seq] on the device of ``input_ids``: indices into ``schema.TOKEN_GROUPS``, or
        ``schema.PADDING``.
    """
    import torch

    def is_one_of(ids: Sequence[int]) -> torch.Tensor:
        return torch.isin(input_ids, torch.tensor(ids, dtype=torch.long, device=input_ids.device))

    groups = torch.full_like(input_ids, TOKEN_GROUPS.index(TEXT), dtype=torch.int8)
    groups[is_one_of(special_token_ids)] = TOKEN_GROUPS.index(SPECIAL)
    groups[is_one_of(image_token_ids) | (input_ids < 0)] = TOKEN_GROUPS.index(VISUAL)
    groups[is_one_of(video_token_ids)] = TOKEN_GROUPS.index(VIDEO)
    groups[is_one_of(audio_token_ids)] = TOKEN_GROUPS.index(AUDIO)
    if attention_mask is not None:
        groups[attention_mask == 0] = PADDING
    return groups
