"""The paper's remedy: one LayerNorm behind the projector (Section 5.1, Appendix D).

    norm = insert_norm(model, parts, gain)   # a submodule fed by a hook on the projector
    remove_norm(model)                       # the model as it was, bit for bit

The layer is ``model.alignment_norm``. No module of the model is wrapped, so the keys of its state
dict keep their names.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.errors import NormprobeError
from normprobe.hooks import PROJECTED_STATE, path_to_state, with_state
from normprobe.model.config import CONFIG_ENTRY
from normprobe.model.find.overrides import CROSS_ATTENTION, DISCRETE, FUSIONS
from normprobe.model.find.parts import Part, Parts

#: Name of the layer in the model. It ends in "norm", so ``find_parts`` takes it for no projector.
NAME = "alignment_norm"


class GlobalWeightCompensatedLayerNorm(nn.LayerNorm):
    """A LayerNorm whose small gain does not shrink the gradient that passes through it.

    The forward, the state dict and the gradients of gain and bias are those of ``nn.LayerNorm``.
    While training, the gradient at the normalised tensor is multiplied by
    ``1 / max(mean |gain|, min_gain)`` (Eq. 24-26). Normalisation is a linear map of gradients, so
    the same factor applied at the input gives the same gradient everywhere upstream, and leaves
    the fused forward as it is.

    Args:
        normalized_shape: as in ``nn.LayerNorm``: the hidden size.
        eps: added to the variance.
        compensate: False: a plain LayerNorm.
        min_gain: the clamp of Eq. 25.
        **arguments: the others of ``nn.LayerNorm``.
    """

    #: Of a norm inside a model: the thread whose forwards alone it acts on, and the one whose
    #: forwards it leaves as they are. None: it acts on all.
    only_on: int | None = None
    set_aside_on: int | None = None

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float = 1e-5,
        *,
        compensate: bool = True,
        min_gain: float = 1e-8,
        **arguments: Any,
    ) -> None:
        super().__init__(normalized_shape, eps, **arguments)
        self.compensate = compensate
        self.min_gain = min_gain
        # Of a norm inside a model: the hook on the projector, and the entry in the model's config.
        self.attached_by: RemovableHandle | None = None
        self.placement: dict[str, Any] = {}

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``[..., hidden]``."""
        if self.compensate and self.training and self.weight is not None:
            # Compared in float32 at least: the mean of many small bfloat16 numbers is coarse.
            gain = self.weight.detach().to(torch.promote_types(self.weight.dtype, torch.float32))
            factor = 1 / gain.abs().mean().clamp_min(self.min_gain)
            input = _ScaledGradient.apply(input, factor)  # type: ignore[no-untyped-call]
        return super().forward(input)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, compensate={self.compensate}"


class _ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (factor,), (gradient,) = ctx.saved_tensors, gradients
        return (gradient * factor).to(gradient.dtype), None


def insert_norm(
    model: nn.Module,
    parts: Parts,
    gain: float,
    *,
    compensate: bool = True,
    here_alone: bool = False,
) -> GlobalWeightCompensatedLayerNorm:
    """Put a norm behind the projector, in place of one that is there."""
    projector = projector_to_align(model, parts)
    if not (math.isfinite(gain) and gain > 0):
        raise NormprobeError(
            f"cannot align to a gain of {gain}: expected a positive number",
            "check the target norm and the text embedding table",
        )
    hidden_size = hidden_size_of(parts)
    norm = attach_norm(model, projector, hidden_size, compensate=compensate, here_alone=here_alone)
    nn.init.constant_(norm.weight, gain)
    return norm


def attach_norm(
    model: nn.Module,
    projector: Part,
    hidden_size: int,
    *,
    compensate: bool,
    here_alone: bool = False,
) -> GlobalWeightCompensatedLayerNorm:
    """Put a norm with PyTorch's initial weights behind a module, in place of one that is there."""
    remove_norm(model)
    norm = GlobalWeightCompensatedLayerNorm(
        hidden_size, compensate=compensate, **_device_and_dtype(model, projector)
    )
    norm.train(model.training)
    norm.placement = {"after": projector.name, "compensate": compensate}
    norm.only_on = get_ident() if here_alone else None
    _name(model, norm)
    # A partial rather than a closure: copies of the model then normalise with their own copy.
    norm.attached_by = model.get_submodule(projector.name).register_forward_hook(
        partial(_normalise_output, norm, projector.name)
    )
    return norm


def remove_norm(model: nn.Module) -> None:
    """Take the norm out again. Nothing happens to a model without one."""
    norm = inserted_norm(model)
    if norm is None:
        return
    assert norm.attached_by is not None
    norm.attached_by.remove()
    _forget(model)


@contextmanager
def norm_set_aside(model: nn.Module) -> Iterator[None]:
    """The model as it is without its norm inside the block, to this thread alone.

    It is itself what comes back: an optimizer may hold its weights.
    """
    norm = inserted_norm(model)
    if norm is None:
        yield
        return
    norm.set_aside_on = get_ident()
    _forget(model)
    try:
        yield
    finally:
        _name(model, norm)
        norm.set_aside_on = None


def _name(model: nn.Module, norm: GlobalWeightCompensatedLayerNorm) -> None:
    model.add_module(NAME, norm)
    if hasattr(model, "config"):  # a saved checkpoint keeps it: see ``model.config``
        setattr(model.config, CONFIG_ENTRY, norm.placement)


def _forget(model: nn.Module) -> None:
    delattr(model, NAME)
    if hasattr(getattr(model, "config", None), CONFIG_ENTRY):
        delattr(model.config, CONFIG_ENTRY)


def inserted_norm(model: nn.Module) -> GlobalWeightCompensatedLayerNorm | None:
    """The norm that ``insert_norm`` put into the model, if there is one."""
    norm = getattr(model, NAME, None)
    return norm if isinstance(norm, GlobalWeightCompensatedLayerNorm) else None


def projector_to_align(model: nn.Module, parts: Parts) -> Part:
    """The projector, where a norm behind it reaches every visual token."""
    name = type(model).__name__
    if parts.fusion in (DISCRETE, CROSS_ATTENTION):
        raise NormprobeError(
            f"{name} cannot be aligned: {FUSIONS[parts.fusion]}",
            "alignment needs visual tokens that a projector writes into the text sequence",
        )
    if parts.visual_embedding is not None:
        raise NormprobeError(
            f"{name} cannot be aligned: its visual tokens are mixed from the discrete visual table "
            f"{parts.visual_embedding.name}",
            "rescale the rows of that table instead; the paper finds no asymmetry there (Figure 2)",
        )
    if parts.text_embedding is None or parts.projector is None:
        missing = "text embedding" if parts.text_embedding is None else "projector"
        raise NormprobeError(
            f"{name} cannot be aligned: it has no {missing}",
            "pass a vision-language model; --part projector=NAME names one that is not found",
        )
    return parts.projector


def hidden_size_of(parts: Parts) -> int:
    """How many numbers the decoder reads of each token."""
    assert parts.decoder_layers is not None and parts.text_embedding is not None
    weight = next(w for w in parts.text_embedding.module.parameters() if w.dim() == 2)
    return weight.shape[1]


def _device_and_dtype(model: nn.Module, projector: Part) -> dict[str, Any]:
    """Device and dtype of the projector's output, read from its last weight."""
    weight = list(projector.module.parameters())[-1]
    # Quantised weights are integers; the output then has the model's dtype.
    dtype = weight.dtype if weight.is_floating_point() else getattr(model, "dtype", torch.float32)
    return {"device": running_device(projector.module), "dtype": dtype}


def running_device(module: nn.Module) -> torch.device:
    """The device of a module's output; meta where its weights were not loaded."""
    device = list(module.parameters())[-1].device
    if device.type != "meta":
        return device
    # Offloaded by accelerate, whose hook may sit on the module or on those inside.
    hooks = [getattr(inner, "_hf_hook", None) for inner in module.modules()]
    places = [getattr(hook, "execution_device", None) for hook in hooks]
    return torch.device(next((place for place in places if place is not None), device))


def _normalise_output(
    norm: GlobalWeightCompensatedLayerNorm,
    name: str,
    _projector: nn.Module,
    _arguments: Any,
    output: Any,
) -> Any:
    """The forward hook of the projector: its output with a normalised hidden state."""
    only_on, set_aside_on = norm.only_on, norm.set_aside_on
    # torch.compile cannot ask for the thread: it is asked where that matters.
    if (only_on is not None and only_on != get_ident()) or (
        set_aside_on is not None and set_aside_on == get_ident()
    ):
        return None
    path = path_to_state(output, PROJECTED_STATE)
    if path is None:
        raise NormprobeError(
            f"the projector {name} returns no hidden state: received {type(output).__name__}",
            "name another module with --part projector=NAME",
        )
    return with_state(output, path, partial(_along_hidden, norm, name))


def _along_hidden(norm: nn.LayerNorm, name: str, state: Tensor) -> Tensor:
    """Normalise along the hidden axis; device and dtype of ``state`` stay.

    Maps ``[..., hidden, height, width]`` have that axis third from the end.
    """
    hidden = norm.normalized_shape[0]

    def normalised(state: Tensor) -> Tensor:  # the norm may be in float32, or on another device
        return cast(Tensor, norm(state.to(norm.weight))).to(state)

    if state.shape[-1] == hidden:
        return normalised(state)
    if state.dim() > 3 and state.shape[-3] == hidden:
        return normalised(state.movedim(-3, -1)).movedim(-1, -3)
    raise NormprobeError(
        f"the projector {name} returns shape {list(state.shape)}; the decoder reads rows of "
        f"{hidden}: other modules follow before the decoder",
        "name the last module before the decoder with --part projector=NAME",
    )
