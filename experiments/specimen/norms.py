"""Norms of the specimen's tokens on their way from the vision encoder to the last layer.

Norms are Euclidean. "Layer 0" is the input of the language model; "layer i" is the output of its
i-th decoder layer, before the final RMSNorm.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from experiments.specimen.accuracy import Item, conversation
from experiments.specimen.chat import IMAGE_ID


@dataclass(frozen=True)
class NormProfile:
    """Mean norms and cosines of a specimen.

    Attributes:
        encoder_output: Visual tokens entering the projector.
        projector_output: Visual tokens leaving the projector.
        prompt_embeddings: Text tokens of the prompts at layer 0.
        embedding_table: All rows of the token embedding table.
        visual_norms: Mean norm of visual tokens, layers 0 to L.
        text_norms: Mean norm of text tokens, layers 0 to L.
        visual_cosines: Mean cosine between layers i - 1 and i, visual tokens, i = 1 to L.
        text_cosines: The same for text tokens.
    """

    encoder_output: float
    projector_output: float
    prompt_embeddings: float
    embedding_table: float
    visual_norms: list[float]
    text_norms: list[float]
    visual_cosines: list[float]
    text_cosines: list[float]


@torch.inference_mode()
def measure_norms(model: Any, processor: Any, items: Sequence[Item]) -> NormProfile:
    """Measure norms over prompts, without answers.

    Args:
        model: The model, in float32.
        processor: Its processor.
        items: Which prompts and pictures to use.

    Returns:
        Means over all tokens of all prompts.
    """
    inputs = processor.apply_chat_template(
        [conversation(item.scene, item.question.text) for item in items],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt", "padding": True},
    )
    projector, layers = model.model.multi_modal_projector, model.model.language_model.layers
    seen: dict[str, torch.Tensor] = {}
    hidden: list[torch.Tensor] = []

    def keep_projector(module: Any, args: Any, output: torch.Tensor) -> None:
        seen["encoder"], seen["projector"] = args[0], output

    with ExitStack() as hooks:
        for handle in (
            projector.register_forward_hook(keep_projector),
            layers[0].register_forward_pre_hook(lambda module, args: hidden.append(args[0])),
            *(
                layer.register_forward_hook(lambda module, args, output: hidden.append(output))
                for layer in layers
            ),
        ):
            hooks.callback(handle.remove)
        model(**inputs)

    visual = inputs["input_ids"] == IMAGE_ID
    text = inputs["attention_mask"].bool() & ~visual
    return NormProfile(
        encoder_output=_mean_norm(seen["encoder"]),
        projector_output=_mean_norm(seen["projector"]),
        prompt_embeddings=_mean_norm(hidden[0][text]),
        embedding_table=_mean_norm(model.get_input_embeddings().weight),
        visual_norms=[_mean_norm(state[visual]) for state in hidden],
        text_norms=[_mean_norm(state[text]) for state in hidden],
        visual_cosines=_mean_cosines([state[visual] for state in hidden]),
        text_cosines=_mean_cosines([state[text] for state in hidden]),
    )


def _mean_norm(tokens: torch.Tensor) -> float:
    """Return the mean norm of tokens, shape (..., d)."""
    return float(tokens.norm(dim=-1).mean())


def _mean_cosines(states: Sequence[torch.Tensor]) -> list[float]:
    """Return the mean cosine between neighbouring states, each of shape (tokens, d)."""
    return [
        functional.cosine_similarity(before, after, dim=-1).mean().item()
        for before, after in pairwise(states)
    ]
