"""The tokens of an answer, and a batch with an answer behind each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.chat import render_chat, render_plain
from normprobe.inputs.standard import REFUSALS
from normprobe.tensors import find_named, flattened, unflattened

if TYPE_CHECKING:
    from normprobe.data.sample import Answer

#: What stands for tokens of text behind the prompt in an input of a whole number a position.
_OF_AN_ANSWER = {"attention_mask": 1}
#: For PaliGemma 0 is the prefix, whose tokens see each other.
_OF_A_SUFFIX = {"paligemma": {"token_type_ids": 1}}


@dataclass(frozen=True)
class AnswerTokens:
    """An answer as the chat template writes it."""

    # ids that the template writes before every answer: an empty block of thoughts
    given: tuple[int, ...] = ()
    scored: tuple[int, ...] = ()  # ids of the answer, and of the token that ends the turn
    # the id by which each option differs from the others; empty where none does
    options: tuple[int, ...] = ()
    right: int = 0  # which of them is the right one
    place: int = 0  # of that id among those that are scored

    @property
    def length(self) -> int:
        """How many tokens stand behind the prompt."""
        return len(self.given) + len(self.scored)

    def outcome(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        """The mean negative log-likelihood of its tokens, and whether it is what the model answers.

        ``logs``: logarithms of probabilities, ``[scored, vocabulary]``. Of several options the most
        probable one is what the model answers.
        """
        scored = torch.tensor(self.scored, device=logs.device)
        right = (logs.argmax(dim=-1) == scored).all()
        if self.options:
            first = logs[self.place, torch.tensor(self.options, device=logs.device)]
            right = first.argmax() == self.right
        return -logs.gather(-1, scored.unsqueeze(-1)).mean(), right


def answer_tokens(builder: InputBuilder, sample: Sample, answer: Answer) -> AnswerTokens:
    """The tokens of an answer behind the prompt of a sample.

    They are what the ids of prompt and answer together have behind those of the prompt alone: a
    leading space belongs to the answer.

    Raises:
        NormprobeError: it is none of several options, or no token.
    """
    if answer.options and (len(answer.options) < 2 or answer.text not in answer.options):
        raise NormprobeError(
            f"{sample.id}: the answer {answer.text!r} is none of several options: "
            f"{', '.join(answer.options)}",
            "name all options, the answer among them as it is written there, or none",
        )
    tokenizer = builder.tokenizer
    prompt, before, after = _written(builder, sample)
    start = _ids(tokenizer, prompt)

    def tokens(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is given, and the answer."""
        whole = _ids(tokenizer, prompt + before + text)
        for blanks in (" ", None):  # a token of the answer may hold the blanks before it
            opened = _ids(tokenizer, prompt + before.rstrip(blanks))
            if whole[: len(opened)] == opened and opened[: len(start)] == start:
                return tuple(opened[len(start) :]), tuple(whole[len(opened) :])
        return (), tuple(_ids(tokenizer, text))

    given, scored = tokens(answer.text)
    if not scored:
        raise NormprobeError(
            f"{sample.id}: the tokenizer makes no token of the answer {answer.text!r}",
            "correct the answer, or leave the sample out",
        )
    options = [tokens(option)[1] for option in answer.options]
    place = next((n for n, ids in enumerate(zip(*options, strict=False)) if len(set(ids)) > 1), 0)
    differing = tuple(ids[place] for ids in options if len(ids) > place)
    if len(set(differing)) < len(options):
        differing = ()
    right = answer.options.index(answer.text) if differing else 0
    ended = tokens(answer.text + after)[1]
    end = ended[len(scored) : len(scored) + 1] if ended[: len(scored)] == scored else ()
    scored += tuple(token for token in end if token in tokenizer.all_special_ids)
    return AnswerTokens(given, scored, differing, right, place)


_WORD = "normprobe"  # any would do: it is looked for in rendered text


def _written(builder: InputBuilder, sample: Sample) -> tuple[str, str, str]:
    """The prompt, what is written between it and any answer, and what behind the answer."""
    processor, system = builder.processor, builder.system
    prompt = sample.prompt
    if builder.inputs_file.build is None:
        with suppress(NormprobeError, *REFUSALS):
            if not getattr(processor, "chat_template", None):
                prompt = render_plain(processor, [sample], system)[0]
            else:
                prompt = render_chat(processor, [sample], system)[0]
                whole = render_chat(processor, [sample], system, [_WORD])[0]
                before, word, after = whole.removeprefix(prompt).partition(_WORD)
                if word and whole.startswith(prompt):
                    return prompt, before, after
    ends = ("\n", " ", *builder.tokenizer.all_special_tokens)
    return prompt, "" if prompt.endswith(ends) else " ", ""


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def with_tokens(
    inputs: Mapping[str, Any], rows: Sequence[Sequence[int]], model_type: str = ""
) -> tuple[dict[str, Any], list[int]]:
    """A batch with tokens of text behind each prompt.

    Args:
        inputs: what a processor returned, ``input_ids`` [batch, seq] padded on either side.
        rows: the ids to put behind each prompt.
        model_type: of the model.

    Returns:
        The batch, ``[batch, seq + the longest of rows]``, padding behind shorter ones masked, and
        the position of the first new token of each row.

    Raises:
        NormprobeError: prompts of several lengths, and no mask of their padding.
    """
    flat = flattened(inputs)
    ids, mask = find_named(inputs, "input_ids"), find_named(inputs, "attention_mask")
    masked = mask is not None and mask.shape == ids.shape
    if not masked and len({len(row) for row in rows}) > 1:
        raise NormprobeError(
            "answers of several lengths need an attention_mask beside input_ids",
            "use --batch-size 1",
        )
    last = [
        int(row.nonzero()[-1]) if masked else ids.shape[1] - 1 for row in (mask if masked else ids)
    ]
    starts = [place + 1 for place in last]
    longest = max(map(len, rows))
    kinds = {**_OF_AN_ANSWER, **_OF_A_SUFFIX.get(model_type, {})}

    def longer(name: str, tensor: Tensor) -> Tensor:
        made = tensor.new_zeros((tensor.shape[0], tensor.shape[1] + longest, *tensor.shape[2:]))
        for row, (start, new) in enumerate(zip(starts, rows, strict=True)):
            end = start + len(new)
            made[row, :start] = tensor[row, :start]
            made[row, end : end + tensor.shape[1] - start] = tensor[row, start:]
            if tensor is ids:
                made[row, start:end] = torch.tensor(new, dtype=ids.dtype, device=ids.device)
                made[row, end:] = new[-1] if new else 0  # any id of text: it is masked
            elif name == "position_ids":
                first = tensor[row, start - 1] + 1
                steps = torch.arange(len(new), device=tensor.device, dtype=tensor.dtype)
                made[row, start:end] = first + steps
            else:
                made[row, start:end] = kinds.get(name, 0)
        return made

    def per_token(value: Any) -> bool:
        whole = isinstance(value, Tensor) and not value.is_floating_point()
        return whole and value.shape[:2] == ids.shape

    made = {
        name: longer(name.rpartition(".")[2], value) if per_token(value) else value
        for name, value in flat.items()
    }
    return unflattened(made), starts
