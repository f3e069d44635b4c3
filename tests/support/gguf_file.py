"""GGUF files of tiny language models, written as llama.cpp's converter lays them out."""

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "th", "he"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def tiny_llama(**sizes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | sizes)).eval()


def tiny_qwen2(**sizes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES | sizes)).eval()


def _as_stored(name: str, weights: np.ndarray, config: object) -> np.ndarray:
    """Rows of queries and keys of llama in the order that llama.cpp rotates them in."""
    heads = {".attn_q.": config.num_attention_heads, ".attn_k.": config.num_key_value_heads}
    for part, number in heads.items():
        if config.model_type == "llama" and part in name:
            halves = weights.reshape(number, 2, len(weights) // number // 2, *weights.shape[1:])
            return halves.swapaxes(1, 2).reshape(weights.shape)
    return weights


def write_gguf(model: PreTrainedModel, file: Path, kind: str = "Q4_1") -> Path:
    """Matrices are stored as ``kind``, the embedding table as Q8_0, vectors as F32."""
    config = model.config
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    writer = gguf.GGUFWriter(file, config.model_type)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] * 3 + [1] * (len(WORDS) - 3))  # 3: control
    writer.add_token_merges(["t h", "h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stem, _, end = name.rpartition(".")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = f"{names.get_name(stem)}.{end}"
        weights = _as_stored(stored, tensor.float().numpy(), config)
        how = gguf.GGMLQuantizationType["Q8_0" if stored == "token_embd.weight" else kind]
        if weights.ndim == 1:
            how = gguf.GGMLQuantizationType.F32
        blocks = gguf.quantize(np.ascontiguousarray(weights), how)
        writer.add_tensor(stored, blocks, raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
