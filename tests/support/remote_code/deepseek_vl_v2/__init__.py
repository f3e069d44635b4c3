"""The classes of an installed package; importing it registers them."""

from .modeling_deepseek_vl_v2 import DeepseekVLV2ForCausalLM
from .processing_deepseek_vl_v2 import DeepseekVLV2Processor

__all__ = ["DeepseekVLV2ForCausalLM", "DeepseekVLV2Processor"]
