"""What a trained model knows, and what normprobe says of it: the rows of the results."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from experiments.smollm.grow import CONTEXT, Base, processor_of
from experiments.smollm.scenes import drawn, held_out
from experiments.smollm.train import Plan, watched_prompts
from experiments.specimen.packing import NO_LABEL, Encoder, hidden_states, pack
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.questions import Question
from experiments.specimen.scenes import Scene, render
from normprobe import Probe, load_run
from normprobe.tidy import select, wide

#: Samples of ``--data scenes`` that ``layers`` and ``cause`` are measured on.
LAYERS_LIMIT, CAUSE_LIMIT = 40, 100
DONE = ("scale-to-text", "norm-at-layer", "freeze", "permute", "blank")
CAUSED = ("nll", "accuracy", "share_removed")
RATIO, ANGLE_RATIO = "norm_geometric_ratio_to_text", "angle_geometric_ratio_to_text"
#: Of the training, the ratio of these layers is kept; of its end, that of all.
BY_STEP = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 30)
LOSS_EVERY = 10
BATCH_SIZE = 25

COLUMNS = ["quantity", "stage", "step", "layer", "value", "low", "high"]


def rows(
    model: Any, base: Base, plan: Plan, folder: Path, losses: Sequence[float], cause: bool
) -> pd.DataFrame:
    """All numbers of one run but its answers, with the columns ``COLUMNS``.

    Args:
        model: trained, LoRA merged.
        base: what it was grown from.
        plan: how it was trained.
        folder: of the run, where ``watch`` has written.
        losses: of its training, by step.
        cause: whether to intervene, which takes longest.
    """
    probe = Probe(model, processor_of(base.tokenizer))
    found = [*_losses(plan, losses), *by_step(folder, plan), *by_layer(probe)]
    found += attention(model, base)
    if cause:
        found += caused(probe)
    return pd.DataFrame(found).reindex(columns=COLUMNS)


def _losses(plan: Plan, losses: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Means over ``LOSS_EVERY`` steps."""
    for stage, begin in ((1, 0), (2, plan.steps[0])):
        of_stage = losses[begin : begin + plan.steps[stage - 1]]
        for step in range(0, len(of_stage), LOSS_EVERY):
            mean = float(np.mean(of_stage[step : step + LOSS_EVERY]))
            yield {"quantity": "loss", "stage": stage, "step": step, "value": mean}


def by_step(folder: Path, plan: Plan) -> Iterator[dict[str, Any]]:
    """Of what ``watch`` wrote: loudness, gradients and updates of each reading."""
    for stage in (1, 2):
        if not plan.steps[stage - 1]:
            continue
        run = load_run(folder / f"watch-{stage}")
        states = wide(run.tables["training"])
        for row in states[states["layer"].isin(BY_STEP)].to_dict("records"):
            at = {"stage": stage, "step": row["training_step"], "layer": row["layer"]}
            if row["group"] == "visual":
                yield {"quantity": "ratio", **at, "value": row[RATIO]}
            if row["group"] in ("visual", "text") and not row["layer"]:
                yield {"quantity": f"{row['group']}_norm", **at, "value": row["norm"]}
        for row in run.tables["gradients"].to_dict("records"):
            at = {"stage": stage, "step": row["training_step"], "value": row["mean"]}
            if row["quantity"] in ("gradient_norm", "update_ratio"):
                yield {"quantity": f"{row['quantity']}_{row['part']}", **at}


def by_layer(probe: Probe) -> Iterator[dict[str, Any]]:
    """Of ``layers --also massive`` at the end, with intervals over pictures."""
    run = probe.layers(
        data="scenes", limit=LAYERS_LIMIT, also=("massive",), batch_size=20, output=None
    )
    for name, ratio in (("final_ratio", RATIO), ("angle_ratio", ANGLE_RATIO)):
        for row in select(run.table, ratio, group="visual").to_dict("records"):
            yield {"quantity": name, "layer": row["layer"], **_estimate(row)}
    massive = run.tables["massive"]
    for name in ("peak_max", "massive_tokens"):
        for group in ("visual", "text", "special"):
            for row in select(massive, name, group=group).to_dict("records"):
                quantity = f"{name}_{group}"
                yield {"quantity": quantity, "layer": row["layer"], "value": row["mean"]}


def _estimate(row: Mapping[Any, Any]) -> dict[str, float]:
    """A number and its interval."""
    return {"value": row["mean"], "low": row["low"], "high": row["high"]}


def caused(probe: Probe) -> Iterator[dict[str, Any]]:
    """Of ``cause`` on the whole model, with intervals over pictures."""
    run = probe.cause(data="scenes", limit=CAUSE_LIMIT, do=DONE, batch_size=20, output=None)
    table = run.table[run.table["quantity"].isin(CAUSED)]
    for row in table.to_dict("records"):
        quantity = f"{row['intervention']}: {row['quantity']}"
        yield {"quantity": quantity, "layer": row["layer"], **_estimate(row)}


@torch.no_grad()
def attention(model: Any, base: Base) -> Iterator[dict[str, Any]]:
    """Of the attention of text behind the picture, by layer: what falls where, mean over heads."""
    inputs = watched_prompts(base).to(model.device)
    before, ids = model.config._attn_implementation, inputs["input_ids"]
    model.set_attn_implementation("eager")
    weights = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation(before)
    visual = ids == model.config.image_token_index
    behind = (visual.cumsum(1) == visual.sum(1, keepdim=True)) & ~visual
    asking = behind & inputs["attention_mask"].bool()
    for layer, of_layer in enumerate(weights, start=1):
        rows = of_layer.mean(1)[asking]  # [tokens that ask, keys]
        seen = visual.repeat_interleave(asking.sum(1), dim=0)
        shares = {"first": rows[:, 0].mean(), "visual": (rows * seen).sum(-1).mean()}
        for name, share in shares.items():
            yield {"quantity": f"attention_{name}", "layer": layer, "value": float(share)}


def answers(model: Any, base: Base) -> pd.DataFrame:
    """Each of the 200 test questions with its own picture, and with that of another of its kind.

    Returns:
        One row a question: ``kind``, ``item``, ``correct``, ``nll`` (nats an answer, its end
        included), ``correct_shuffled``, ``nll_shuffled``.
    """
    found = []
    for kind, items in held_out().items():
        scenes, questions = [item.scene for item in items], [item.question for item in items]
        own = asked(model, base, scenes, questions)
        other = asked(model, base, [*scenes[1:], scenes[0]], questions).add_suffix("_shuffled")
        found.append(pd.concat([own, other], axis=1).assign(kind=kind, item=range(len(items))))
    return pd.concat(found, ignore_index=True)


def guessed(steps: int = 500) -> pd.DataFrame:
    """The same questions without a picture: answers as often as training gives them to a question.

    Returns:
        As ``answers``; shuffled pictures change nothing.
    """
    given: dict[str, Counter[str]] = defaultdict(Counter)
    for step in range(steps):
        for question in (each for of_scene in drawn(0, 2, step)[1] for each in of_scene):
            given[question.text][question.answer] += 1
    found = []
    for kind, items in held_out().items():
        for number, question in enumerate(item.question for item in items):
            counts = given[question.text]
            # One more than was counted of each: no answer is impossible.
            share = (counts[question.answer] + 1) / (counts.total() + len(counts) + 1)
            right = question.answer == max(counts, key=lambda answer: counts[answer], default="")
            told = {"kind": kind, "item": number, "correct": right, "nll": -math.log(share)}
            shuffled = {"correct_shuffled": right, "nll_shuffled": told["nll"]}
            found.append({**told, **shuffled, "seed": 0})
    return pd.DataFrame(found)


@torch.no_grad()
def asked(
    model: Any, base: Base, scenes: Sequence[Scene], questions: Sequence[Question]
) -> pd.DataFrame:
    """Whether each token of an answer is the most probable, and its negative log-likelihood.

    In bfloat16 where a training step is.
    """
    encode, found = Encoder(base.tokenizer), []
    for begin in range(0, len(scenes), BATCH_SIZE):
        part = slice(begin, begin + BATCH_SIZE)
        shown = scenes[part]
        asking = [[question] for question in questions[part]]
        batch = pack([CONTEXT] * len(shown), asking, encode, form=base.form).to(model.device)
        with torch.autocast(model.device.type, torch.bfloat16):
            pixels = to_pixel_values([render(scene) for scene in shown]).to(model.device)
            hidden = hidden_states(model, batch, pixel_values=pixels)
        for states, labels in zip(hidden, batch.labels, strict=True):
            labelled = labels != NO_LABEL
            logits, wanted = model.lm_head(states[labelled]), labels[labelled]
            nll = float(functional.cross_entropy(logits, wanted, reduction="sum"))
            found.append({"correct": bool((logits.argmax(-1) == wanted).all()), "nll": nll})
    return pd.DataFrame(found)
