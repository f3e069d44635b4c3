"""Training: what moves, that seeds are seeds, and that a killed run ends as a whole one."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.flat import flat

from experiments.smollm import train as training
from experiments.smollm.grow import Base, grown
from experiments.smollm.train import Plan, train
from experiments.specimen.training import TrainingLog
from normprobe import load_run

pytestmark = pytest.mark.slow  # no behaviour of the package

RATE = 5e-4


def trained(plan: Plan, base: Base, folder: Path, log: TrainingLog) -> tuple[Any, list[float]]:
    folder.mkdir(exist_ok=True)
    model = grown(base, plan.variant, plan.seed, folder, 3, log)
    return model, train(model, base, plan, folder / plan.name, log)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def moved(before: dict[str, torch.Tensor], model: Any) -> set[str]:
    now = model.state_dict()
    return {name for name, weight in before.items() if not torch.equal(weight, now[name])}


@pytest.mark.parametrize("variant", ["usual", "norm_half"])
def test_stage_1_moves_the_projector_and_its_norm_alone(
    variant: str, base: Base, tmp_path: Path, log: TrainingLog
) -> None:
    before = weights(grown(base, variant, 0, tmp_path, 3, log))
    model, losses = trained(Plan(variant, RATE, 0, (3, 0)), base, tmp_path, log)
    assert len(losses) == 3
    parts = {name.removeprefix("model.").split(".")[0] for name in moved(before, model)}
    assert parts == {"multi_modal_projector", *(["alignment_norm"] if variant != "usual" else [])}


def test_stage_2_moves_every_linear_layer_of_the_decoder_too(
    base: Base, tmp_path: Path, log: TrainingLog
) -> None:
    before = weights(grown(base, "norm", 0, tmp_path, 3, log))
    model, _ = trained(Plan("norm", RATE, 0, (0, 3)), base, tmp_path, log)
    changed = moved(before, model)
    linear = {name for name in before if "language_model" in name and "_proj." in name}
    assert {name for name in changed if "language_model" in name} == linear
    assert any("multi_modal_projector" in name for name in changed)
    assert "alignment_norm.weight" in changed
    assert not any("vision_tower" in name or "embed" in name for name in changed)


def test_a_killed_run_ends_as_a_whole_one(
    base: Base, tmp_path: Path, log: TrainingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in each stage, once right behind a checkpoint and once between two."""
    monkeypatch.setattr(training, "SAVE_EVERY", 2)
    monkeypatch.setattr(training, "WATCH_EVERY", 2)
    plan = Plan("norm", RATE, 1, (5, 6))
    whole, losses = trained(plan, base, tmp_path / "whole", log)
    step_loss = training.step_loss
    for dies in ((1, 2), (1, 3), (2, 1), (2, 4), None):

        def deadly(*args: Any, dies: Any = dies) -> torch.Tensor:
            if args[-2:] == dies:
                raise KeyboardInterrupt
            return step_loss(*args)

        monkeypatch.setattr(training, "step_loss", deadly)
        if dies is not None:
            with pytest.raises(KeyboardInterrupt):
                trained(plan, base, tmp_path / "killed", log)
    killed, again = trained(plan, base, tmp_path / "killed", log)
    assert again == losses
    assert not moved(weights(whole), killed)
    for stage in (1, 2):
        one, other = (
            load_run(tmp_path / name / plan.name / f"watch-{stage}") for name in ("whole", "killed")
        )
        for table in ("training", "gradients"):
            pd.testing.assert_frame_equal(one.tables[table], other.tables[table])


def test_a_finished_run_is_read_not_trained(
    base: Base, tmp_path: Path, log: TrainingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan("usual", RATE, 0, (2, 2))
    first, losses = trained(plan, base, tmp_path, log)
    monkeypatch.setattr(training, "step_loss", None)
    again, same = trained(plan, base, tmp_path, log)
    assert same == losses
    assert not moved(weights(first), again)


def test_seeds_are_seeds(base: Base, tmp_path: Path, log: TrainingLog) -> None:
    plans = [Plan("usual", RATE, seed, (2, 2)) for seed in (0, 0, 1)]
    models, losses = zip(
        *(trained(plan, base, tmp_path / str(n), log) for n, plan in enumerate(plans)), strict=True
    )
    assert losses[0] == losses[1] != losses[2]
    assert not moved(weights(models[0]), models[1])


def test_readings_are_of_the_same_prompts(base: Base, tmp_path: Path, log: TrainingLog) -> None:
    """Text at the decoder input is that of the table, which is not trained."""
    plan = Plan("norm_twice", RATE, 0, (6, 2))
    trained(plan, base, tmp_path, log)
    table = flat(load_run(tmp_path / plan.name / "watch-1").tables["training"])
    assert [*table["training_step"].unique()] == [0, 5, 6]
    text = table[(table["layer"] == 0) & (table["group"] == "text")]
    assert text["norm_mean"].nunique() == 1 and text["tokens"].nunique() == 1
    visual = table[(table["layer"] == 0) & (table["group"] == "visual")]
    assert set(visual["tokens"]) == {16 * training.WATCHED_PROMPTS}
    assert visual["norm_mean"].nunique() == 3
