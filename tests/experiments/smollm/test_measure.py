"""What is measured of a trained model, against numbers that are taken another way."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from experiments.smollm.grow import Base, grown, processor_of
from experiments.smollm.measure import attention, by_layer, by_step, guessed
from experiments.smollm.report import _level_from, against_usual, answered
from experiments.smollm.train import Plan, train, watched_prompts
from experiments.specimen.training import TrainingLog
from normprobe import Probe

pytestmark = pytest.mark.slow  # no behaviour of the package


def test_attention_is_that_of_queries_and_keys(
    base: Base, tmp_path: Path, log: TrainingLog
) -> None:
    """Of the first layer: queries and keys by hooks, softmax in float64."""
    model: Any = grown(base, "usual", 0, tmp_path, 5, log).eval()
    inputs = watched_prompts(base)
    found = pd.DataFrame(attention(model, base)).set_index(["layer", "quantity"])["value"]
    seen: list[torch.Tensor] = []
    layer = model.model.language_model.layers[0].self_attn
    hooks = [
        module.register_forward_hook(lambda *args: seen.append(args[2].double()))
        for module in (layer.q_proj, layer.k_proj)
    ]
    rotary: list[Any] = []
    rotate = model.model.language_model.rotary_emb
    hooks.append(rotate.register_forward_hook(lambda *args: rotary.append(args[2])))
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    cos, sin = (each.double()[:, None] for each in rotary[0])
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    batch, length = ids.shape

    def turned(states: torch.Tensor) -> torch.Tensor:
        heads = states.view(batch, length, -1, 16).transpose(1, 2)
        one, other = heads.chunk(2, -1)
        return heads * cos + torch.cat([-other, one], -1) * sin

    queries, keys = turned(seen[0]), turned(seen[1]).repeat_interleave(2, 1)
    scores = queries @ keys.transpose(-1, -2) / 4
    hidden = torch.ones(length, length).tril() == 0
    scores.masked_fill_(hidden | ~mask[:, None, None, :], -torch.inf)
    weights = functional.softmax(scores, -1).mean(1).numpy()
    image = model.config.image_token_index
    first, visual = [], []
    for row in range(batch):
        places = np.flatnonzero(ids[row] == image)
        for query in range(places.max() + 1, length):
            if mask[row, query]:
                first.append(weights[row, query, 0])
                visual.append(weights[row, query, places].sum())
    assert found[1, "attention_first"] == pytest.approx(np.mean(first), rel=1e-4)
    assert found[1, "attention_visual"] == pytest.approx(np.mean(visual), rel=1e-4)
    assert 0 < found[1, "attention_visual"] < 1


def test_readings_and_layers_become_rows(base: Base, tmp_path: Path, log: TrainingLog) -> None:
    model: Any = grown(base, "norm", 0, tmp_path, 5, log)
    plan = Plan("norm", 5e-4, 0, (2, 2))
    train(model, base, plan, tmp_path / plan.name, log)
    steps = pd.DataFrame(by_step(tmp_path / plan.name, plan))
    norms = steps[(steps["layer"] == 0) & (steps["stage"] == 2) & (steps["step"] == 2)]
    found = norms.set_index("quantity")["value"]
    states: list[torch.Tensor] = []
    hook = model.model.language_model.layers[0].register_forward_pre_hook(
        lambda module, args: states.append(args[0].double())
    )
    inputs = watched_prompts(base)
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    lengths = states[0].norm(dim=-1)
    visual = inputs["input_ids"] == model.config.image_token_index
    special = torch.isin(inputs["input_ids"], torch.tensor(base.tokenizer.all_special_ids))
    text = ~(special | visual) & inputs["attention_mask"].bool()
    assert found["visual_norm"] == pytest.approx(lengths[visual].mean().item(), rel=1e-5)
    assert found["text_norm"] == pytest.approx(lengths[text].mean().item(), rel=1e-5)
    ratio = (lengths[visual].log().mean() - lengths[text].log().mean()).exp().item()
    assert found["ratio"] == pytest.approx(ratio, rel=1e-5)
    parts = {name for name in steps["quantity"] if name.startswith("gradient_norm_")}
    assert parts == {
        f"gradient_norm_{p}" for p in ("projector", "alignment_norm", "decoder_layers")
    }
    layers = pd.DataFrame(by_layer(Probe(model, processor_of(base.tokenizer))))
    ends = layers[layers["quantity"] == "final_ratio"]
    assert [*ends["layer"]] == [0, 1, 2]
    assert (ends["low"] <= ends["value"]).all() and (ends["value"] <= ends["high"]).all()


def test_guesses_are_as_good_as_the_questions_allow() -> None:
    found = guessed(60).groupby("kind")[["nll", "correct"]].mean()
    assert found["nll"]["color"] == pytest.approx(np.log(6), abs=0.1)
    assert found["nll"]["digit"] == pytest.approx(np.log(10), abs=0.15)
    assert found["correct"].between(0.0, 0.5).all()


def made(right: dict[str, list[list[int]]]) -> pd.DataFrame:
    """By variant, seed and item."""
    return pd.DataFrame(
        {
            **{"variant": variant, "learning_rate": 1e-3, "seed": seed, "kind": "color"},
            **{"item": item, "correct": bool(hit), "nll": 1.0 - hit},
            **{"correct_shuffled": False, "nll_shuffled": 2.0},
        }
        for variant, seeds in right.items()
        for seed, hits in enumerate(seeds)
        for item, hit in enumerate(hits)
    )


def test_intervals_over_seeds_and_over_images() -> None:
    stats = pytest.importorskip("scipy.stats")
    answers = made({"usual": [[1, 0, 0, 1], [1, 1, 0, 1]], "norm": [[1, 1, 1, 1], [1, 1, 1, 1]]})
    columns = [("usual", 1e-3), ("norm", 1e-3)]
    half = stats.t.ppf(0.975, 1) * np.std([0.5, 0.75], ddof=1) / np.sqrt(2)
    reach = 1.96 * np.std([1, 0.5, 0, 1], ddof=1) / 2
    usual = f"0.625 ± {half:.2g} [{0.625 - reach:.3g}, {0.625 + reach:.3g}]"
    assert usual in answered(answers, columns)
    gained = f"+0.375 ± {half:.2g} [{0.375 - reach:+.3g}, {0.375 + reach:+.3g}]"
    assert f"| norm, 0.001 | {gained} |" in against_usual(answers, columns)


def test_norms_are_level_from_behind_the_last_layer_that_is_not() -> None:
    ratios = [5.0, 1.3, 1.2, 0.7, 1.0, 0.9]
    runs = {"uneven": ratios, "even": [1.0] * 6, "never": [*ratios[:5], 2.0]}
    table = pd.DataFrame(
        {"variant": name, "learning_rate": 1e-3, "seed": 0, "layer": layer, "value": ratio}
        for name, of_run in runs.items()
        for layer, ratio in enumerate(of_run)
    )
    found = _level_from(table).set_index("variant")["value"]
    assert found.to_dict() == {"uneven": 4, "even": 0, "never": 6}
