"""The embedding table of a loaded model: its weight, and its scale at the decoder input."""

import torch
from accelerate.utils import align_module_device
from torch import Tensor

from normprobe.model.find.parts import Part, Parts
from normprobe.schema import TEXT, TOKEN_GROUPS
from normprobe.statistics.token_metrics import token_norms

_TABLES = ("weight", "embedding", "new_embedding")


def weight_of(part: Part) -> Tensor:
    """The table itself, ``[rows, hidden]``. Molmo keeps added tokens in a second one.

    An offloaded table is fetched from where accelerate put it.
    """
    with align_module_device(part.module):
        tables = [getattr(part.module, name, None) for name in _TABLES]
        present = [table.detach() for table in tables if isinstance(table, Tensor)]
    return present[0] if len(present) == 1 else torch.cat(present)


def embedding_scale(parts: Parts, input_ids: Tensor, x: Tensor, groups: Tensor) -> float | None:
    """The one scalar between table rows and the decoder input, if there is one.

    Gemma scales inside the embedding module, Granite after it; position terms make it more than a
    scalar. Measured on the text tokens of the prompt: x = s w up to rounding.

    Args:
        parts: of a model whose embedding weights are in memory.
        input_ids: ``[batch, seq]``.
        x: ``[batch, seq, hidden]``, the decoder input.
        groups: ``[batch, seq]`` token group codes of ``x``.

    Returns:
        s; None where no scalar fits, or the prompt holds no text token.
    """
    assert parts.text_embedding is not None
    if groups.shape != input_ids.shape:  # rows before or behind the prompt come with positions
        return None
    weight = weight_of(parts.text_embedding)
    text = (groups == TOKEN_GROUPS.index(TEXT)).to(input_ids.device)
    w = weight[input_ids[text].to(weight.device)].float()
    x = x[text.to(x.device)].to(w).float()
    length = torch.linalg.vecdot(w, w)
    w, x, length = w[length > 0], x[length > 0], length[length > 0]
    if not len(w):
        return None
    scales = torch.linalg.vecdot(x, w) / length
    scale = float(scales.median())
    rounding = max(4 * torch.finfo(weight.dtype).eps, 1e-5)
    misfit = token_norms(x - scale * w) / token_norms(x)
    return scale if bool((misfit <= rounding).all()) else None
