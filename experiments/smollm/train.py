"""Both stages of one run, as LLaVA is trained: resumable, and watched by normprobe.

Stage 1: the projector alone (and the norm behind it) learns from questions. Stage 2: projector,
norm, and LoRA on every linear layer of the decoder do. Each step draws its scenes
from its own seed, so that a run that was killed goes on as if it had not been.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import get_peft_model
from PIL import Image

from experiments.smollm.grow import CONTEXT, Base, processor_of
from experiments.smollm.language import lora
from experiments.smollm.scenes import BATCH_SIZE, drawn, fresh
from experiments.specimen.finetune import batch_loss
from experiments.specimen.held_out import KINDS
from experiments.specimen.packing import Encoder, pack
from experiments.specimen.questions import Question, ask
from experiments.specimen.scenes import Scene, render
from experiments.specimen.training import Trainer, TrainingLog, is_log_step
from normprobe import watch

#: Every linear layer of the decoder, none of the vision encoder.
LAYERS = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
WATCH_EVERY, SAVE_EVERY = 5, 10
WATCHED_PROMPTS = 8
STATE_FILE = "state.pt"


@dataclass(frozen=True)
class Plan:
    """One run."""

    variant: str
    learning_rate: float  # the highest of each stage
    seed: int
    steps: tuple[int, int]

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.variant}-{self.learning_rate:g}-{self.seed}"


def train(model: Any, base: Base, plan: Plan, folder: Path, log: TrainingLog) -> list[float]:
    """Train a grown model in place, LoRA merged at the end.

    Args:
        model: as ``grown`` returns it, whatever ``folder`` holds.
        base: what it was grown from.
        plan: how.
        folder: of the run: its state, and what ``watch`` writes of each stage.
        log: where progress goes.

    Returns:
        The training loss of every step of both stages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / STATE_FILE
    state: dict[str, Any] = _read(file) if file.exists() else {}
    losses: list[float] = state.get("losses", [])
    prompts, peft = watched_prompts(base), None
    for stage, steps in enumerate(plan.steps, start=1):
        model.requires_grad_(False)
        if stage == 2:
            torch.manual_seed(plan.seed)
            peft = get_peft_model(model, lora(LAYERS))  # changes the decoder in place
        for name in ("multi_modal_projector", "alignment_norm"):
            for part in (module for path, module in model.named_modules() if path.endswith(name)):
                part.requires_grad_(True)
        if state.get("stage", 0) > stage:
            continue
        trained = {name: w for name, w in model.named_parameters() if w.requires_grad}
        trainer = Trainer(
            trained.values(),
            steps=steps,
            learning_rate=plan.learning_rate,
            weight_decay=0.0,
        )
        done = 0
        if state.get("stage") == stage:
            model.load_state_dict(state["weights"], strict=False)
            trainer.go_on(state["trainer"])
            done = state["step"]
        model.train()
        special = base.tokenizer.all_special_ids
        output = folder / f"watch-{stage}"
        with watch(model, WATCH_EVERY, output=output, special_token_ids=special) as watching:
            for step in range(done, steps):
                watching.step = step
                if watching.due:
                    watching.read_inputs(prompts)
                loss = step_loss(model, base, plan.seed, stage, step)
                trainer.step(loss)
                watching.end_step()
                losses.append(loss.item())
                if is_log_step(step + 1, steps):
                    log.record(plan.name, step + 1, part=stage, loss=float(np.mean(losses[-20:])))
                if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                    weights = {name: weight.detach() for name, weight in trained.items()}
                    told = {"stage": stage, "step": step + 1, "weights": weights, "losses": losses}
                    torch.save({**told, "trainer": trainer.state()}, written := folder / "new.pt")
                    written.replace(file)
            watching.step = steps
            watching.read_inputs(prompts)
    if peft is not None:
        peft.merge_and_unload()
    model.eval()
    return losses


def finished(model: Any, folder: Path) -> Any:
    """A grown model with the weights of the run that ``folder`` holds, LoRA merged."""
    state = _read(folder / STATE_FILE)
    peft = get_peft_model(model, lora(LAYERS))
    model.load_state_dict(state["weights"], strict=False)
    peft.merge_and_unload()
    return model.eval()


def _read(file: Path) -> dict[str, Any]:
    """A state, wherever it was trained."""
    state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return state


def step_loss(model: Any, base: Base, seed: int, stage: int, step: int) -> torch.Tensor:
    """The loss on the scenes of one step, computed in bfloat16 around a float32 residual stream."""
    scenes, asked = drawn(seed, stage, step)
    batch = pack([CONTEXT] * BATCH_SIZE, asked, _encoder(base.tokenizer), form=base.form)
    with torch.autocast(model.device.type, torch.bfloat16):
        return batch_loss(model, batch, scenes)[0]


@cache
def _encoder(tokenizer: Any) -> Encoder:
    return Encoder(tokenizer)


def watched_prompts(base: Base) -> Any:
    """The same prompts for each reading of every run; no test scene is among them."""
    rng = np.random.default_rng([0, 100])
    scenes, dialogues = fresh(rng), list[Any]()
    while len(dialogues) < WATCHED_PROMPTS:
        scene = next(scenes)
        question = ask(scene, KINDS[len(dialogues) % len(KINDS)], rng)
        if question is not None:
            dialogues.append(prompt(scene, question))
    return processor_of(base.tokenizer).apply_chat_template(
        dialogues,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt", "padding": True},
    )


def prompt(scene: Scene, question: Question) -> Sequence[dict[str, Any]]:
    """A picture and a question about it."""
    content = [{"type": "image", "image": Image.fromarray(render(scene))}]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question.text}]}]
