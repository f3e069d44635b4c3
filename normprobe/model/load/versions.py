"""What lies in different places in the transformers versions that are supported."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

try:  # transformers 5
    from transformers.initialization import meta_device_safe_creation_ops, no_init_weights
except ImportError:  # transformers 4
    from transformers.modeling_utils import no_init_weights

    meta_device_safe_creation_ops: Callable[[], AbstractContextManager[None]] = nullcontext

__all__ = ["meta_device_safe_creation_ops", "no_init_weights"]
