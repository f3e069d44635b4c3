"""A miniature as the package opens it."""

from pathlib import Path

from torch import nn

from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.inputs_file import family_file
from normprobe.inputs.processor import load_processor
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model


def opened(folder: Path, system: str | None = None, model: nn.Module | None = None) -> InputBuilder:
    """What makes inputs of samples; it holds the processor and the model, ready to run.

    Args:
        folder: of ``make_repository``.
        system: a system prompt, as ``InputBuilder`` takes it.
        model: in place of the one that the package loads.
    """
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    family = checkpoint.config.model_type
    file = family_file(checkpoint.config)
    processor = load_processor(str(folder), trust_remote_code=True, load=file.load_processor)
    model = load_model(checkpoint, device="cpu") if model is None else model
    if file.prepare:
        file.prepare(model, processor)
    return InputBuilder(processor, system, family, True, file, model)
