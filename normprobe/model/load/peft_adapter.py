"""Merges PEFT adapters, such as LoRA, into the loaded weights."""

import warnings
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError, first_line
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.load.weight_checks import refuse_lacking

if TYPE_CHECKING:
    from torch import nn


def merge_adapter(checkpoint: Checkpoint, model: "nn.Module") -> "nn.Module":
    """Merge a checkpoint's adapter into its base."""
    try:
        from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict
        from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    except ImportError as error:
        raise NormprobeError(
            f"{checkpoint.name} is a PEFT adapter, and peft is not installed",
            "pip install 'normprobe[peft]'",
        ) from error
    assert checkpoint.adapter is not None
    revision = checkpoint.adapter_revision
    try:
        with warnings.catch_warnings(action="ignore"):  # of weights that are absent on purpose
            config = PeftConfig.from_pretrained(checkpoint.adapter, revision=revision)
            weights = load_peft_weights(checkpoint.adapter, device="cpu", revision=revision)
            adapted = get_peft_model(model, config)
            report: Any = set_peft_model_state_dict(adapted, weights)
            if report.unexpected_keys:
                raise ValueError(f"no place for {report.unexpected_keys[0]}")
            merged: nn.Module = adapted.merge_and_unload()
    except Exception as error:  # peft has no error class of its own
        raise NormprobeError(
            f"the adapter {checkpoint.name} does not fit {checkpoint.source}: {first_line(error)}",
            "check base_model_name_or_path in adapter_config.json; only adapters that can be "
            "merged, such as LoRA, are read",
        ) from error
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING[config.peft_type]
    own = (prefix, "modules_to_save")
    refuse_lacking(checkpoint, sorted(k for k in report.missing_keys if any(o in k for o in own)))
    return merged.requires_grad_(False)
