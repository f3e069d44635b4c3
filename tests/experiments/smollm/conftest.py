"""A tiny Llama in place of the released decoder, with SmolLM2's special tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.smollm.encoder import halved
from experiments.smollm.grow import ANSWER, TURN, USER, Base, with_image_token
from experiments.smollm.scenes import drawn
from experiments.specimen.scenes import caption
from experiments.specimen.training import TrainingLog

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def base(specimen: tuple[Any, Any]) -> Base:
    torch.manual_seed(0)
    scenes, asked = drawn(0, 0, 0)
    texts = [USER + TURN + ANSWER, *map(caption, scenes)]
    texts += [f"{each.text} {each.answer}" for of_scene in asked for each in of_scene]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=list(SPECIAL),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe, eos_token=SPECIAL[2], bos_token=SPECIAL[1], pad_token=SPECIAL[2]
    )
    decoder = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
            tie_word_embeddings=True,
        )
    ).eval()
    vision = halved(specimen[0].model.vision_tower).requires_grad_(False)
    return Base(vision, *with_image_token(decoder, tokenizer))


@pytest.fixture
def log(tmp_path: Path) -> TrainingLog:
    return TrainingLog(tmp_path / "log.jsonl")
