"""The decoder learns the questions about captions, in words alone, before it sees a picture.

As the specimen's does. Without it, most steps of stage 2 teach the form of the answers. LoRA on
every linear layer, merged: some dozens of steps, once for all runs.
"""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn import functional

from experiments.smollm.grow import USER, Base
from experiments.smollm.scenes import drawn
from experiments.specimen.packing import NO_LABEL, Encoder, hidden_states, pack
from experiments.specimen.scenes import caption
from experiments.specimen.training import Averages, Trainer, TrainingLog, is_log_step

STEPS = 30
LEARNING_RATE = 2e-3
#: Every linear layer of the decoder.
LAYERS = r".*\.(q|k|v|o|gate|up|down)_proj"


def lora(layers: str) -> LoraConfig:
    """LoRA on layers whose names a pattern fits.

    An update counts alpha / r, more than is usual: the projector beside it wants a smaller learning
    rate than LoRA does.
    """
    return LoraConfig(r=8, lora_alpha=64, target_modules=layers)


def instructed(base: Base, steps: int, folder: Path, log: TrainingLog) -> Base:
    """The base with a decoder that answers questions about captions.

    Args:
        base: whose decoder is changed in place.
        steps: of the training.
        folder: where ``language.pt`` is kept, which is read if it is there.
        log: where progress goes.
    """
    path = folder / "language.pt"
    base.decoder.requires_grad_(False)
    torch.manual_seed(0)
    adapted: Any = get_peft_model(base.decoder, lora(LAYERS))
    if path.exists():
        set_peft_model_state_dict(adapted, torch.load(path, weights_only=True))
    else:
        learn(base, steps, log)
        torch.save(get_peft_model_state_dict(adapted, save_embedding_layers=False), path)
    return base._replace(decoder=adapted.merge_and_unload())


def learn(base: Base, steps: int, log: TrainingLog) -> None:
    """Train what is to be trained on fresh scenes."""
    decoder, encode = base.decoder, Encoder(base.tokenizer)
    trained = [weight for weight in decoder.parameters() if weight.requires_grad]
    trainer = Trainer(trained, steps=steps, learning_rate=LEARNING_RATE, weight_decay=0.0)
    averages = Averages()
    for step in range(steps):
        scenes, asked = drawn(0, 0, step)
        contexts = [f"{USER}{caption(scene)}\n" for scene in scenes]
        batch = pack(contexts, asked, encode, form=base.form)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = hidden_states(decoder, batch)
            labelled = batch.labels != NO_LABEL
            logits = decoder.lm_head(hidden[labelled]).float()
        loss = functional.cross_entropy(logits, batch.labels[labelled])
        trainer.step(loss)
        averages.add("loss", loss.item())
        if is_log_step(step + 1, steps):
            log.record("language", step + 1, **averages.take())
