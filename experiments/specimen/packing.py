"""Packed dialogues: one context, many independent questions about it, in one sequence.

Every question sees the context and itself, not the other questions, and starts at the position
right after the context. A packed question is therefore computed exactly as if it were asked alone,
but the context is computed only once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from experiments.specimen.chat import ANSWER_CUE, EOS_ID, PAD_ID
from experiments.specimen.questions import Question

NO_LABEL = -100
CAPTION_KIND = "caption"


class Form(NamedTuple):
    """How a question and its answer are written."""

    cue: str = ANSWER_CUE  # between them
    lead: str = " "  # before the answer
    end: int = EOS_ID  # the token behind it
    pad: int = PAD_ID


SPECIMEN_FORM = Form()


@dataclass(frozen=True)
class PackedBatch:
    """A batch of packed dialogues; B dialogues of at most T tokens.

    Attributes:
        input_ids: Token ids, shape (B, T).
        labels: The id that each position must predict, or -100, shape (B, T). Already shifted:
            ``labels[b, t]`` is the token after ``input_ids[b, t]``.
        groups: What each label belongs to, shape (B, T): 0 the context, else 1 plus the index of
            the question.
        attention_mask: True where a query (row) may look at a key (column), shape (B, 1, T, T).
        position_ids: Position of each token in its own dialogue, shape (B, T).
        kinds: Question kinds per dialogue.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    groups: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    kinds: list[list[str]]

    def to(self, device: torch.device) -> "PackedBatch":
        """The same batch on another device."""
        moved = {name: each.to(device) for name, each in vars(self).items() if name != "kinds"}
        return replace(self, **moved)


class Encoder:
    """Turns text into token ids and remembers short texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Wrap a tokenizer."""
        self._encode = tokenizer.backend_tokenizer.encode
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids = self._known.get(text)
        if ids is None:
            ids = self._encode(text, add_special_tokens=False).ids
            if len(self._known) < 100_000:
                self._known[text] = ids
        return ids


def pack(
    contexts: Sequence[str],
    questions: Sequence[Sequence[Question]],
    encode: Encoder,
    *,
    learn_context: bool = False,
    form: Form = SPECIMEN_FORM,
) -> PackedBatch:
    """Pack dialogues into one padded batch.

    Args:
        contexts: Opening of each dialogue, up to the first question.
        questions: Questions of each dialogue.
        encode: Text to token ids.
        learn_context: Whether context and question tokens are labels too (group 0).
        form: How questions and answers are written.

    Returns:
        The batch.
    """
    rows: list[tuple[list[int], list[int], list[int], list[int], list[int]]] = []
    for context, asked in zip(contexts, questions, strict=True):
        ids = list(encode(context))
        start = len(ids)
        labels = (ids[1:] if learn_context else [NO_LABEL] * (start - 1)) + [NO_LABEL]
        groups, segments, positions = [0] * start, [0] * start, list(range(start))
        for index, question in enumerate(asked, start=1):
            prompt = encode(question.text) + encode(form.cue)
            answer = [*encode(form.lead + question.answer), form.end]
            turn = prompt + answer[:-1]
            ids += turn
            labels += prompt[1:] if learn_context else [NO_LABEL] * (len(prompt) - 1)
            labels += answer
            groups += [0] * (len(prompt) - 1) + [index] * len(answer)
            segments += [index] * len(turn)
            positions += range(start, start + len(turn))
        rows.append((ids, labels, groups, segments, positions))
    columns = zip(*rows, strict=True)
    fills = (form.pad, NO_LABEL, 0, -1, 0)
    ids_, labels_, groups_, segments_, positions_ = (
        _pad(column, fill) for column, fill in zip(columns, fills, strict=True)
    )
    return PackedBatch(
        input_ids=ids_,
        labels=labels_,
        groups=groups_,
        attention_mask=_attention_mask(segments_),
        position_ids=positions_,
        kinds=[[question.kind for question in asked] for asked in questions],
    )


def hidden_states(model: Any, batch: PackedBatch, **pixels: torch.Tensor) -> torch.Tensor:
    """What the last layer and its norm leave of a packed batch, shape (B, T, hidden).

    Args:
        model: A language model, or one that takes ``pixels`` too, with its head beside ``model``.
        batch: The batch.
        **pixels: Of the images, if there are some.
    """
    states: torch.Tensor = model.model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
        **pixels,
    ).last_hidden_state
    return states


def answer_scores(
    correct: torch.Tensor, batch: PackedBatch, labelled: torch.Tensor
) -> dict[str, tuple[int, int]]:
    """Count right answers per question kind; an answer is right if all its tokens are.

    Args:
        correct: Whether the most likely token is the label, one bool per labelled position.
        batch: The batch.
        labelled: Where the labelled positions are, shape (B, T).

    Returns:
        Per kind: right answers and all answers.
    """
    scores: dict[str, tuple[int, int]] = {}
    grid = torch.ones_like(labelled)
    grid[labelled] = correct
    for row, kinds in enumerate(batch.kinds):
        for index, kind in enumerate(kinds, start=1):
            right = bool(grid[row][batch.groups[row] == index].all())
            hits, total = scores.get(kind, (0, 0))
            scores[kind] = (hits + right, total + 1)
    return scores


def _pad(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Stack rows of unequal length, filled on the right, shape (B, T)."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def _attention_mask(segments: torch.Tensor) -> torch.Tensor:
    """Let each token see the earlier tokens of its own segment and of the context (segment 0)."""
    query, key = segments[:, :, None], segments[:, None, :]
    causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool).tril()
    return ((key == query) | (key == 0))[:, None] & causal
