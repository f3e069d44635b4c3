"""The training pipeline, at a scale that only shows that it runs."""

import json
from pathlib import Path

import pytest

from experiments.specimen.evaluate import EVALUATION_FILE, Evaluation, load
from experiments.specimen.pretrain_vision import KINDS, label_scenes
from experiments.specimen.questions import COLOR_NAMES
from experiments.specimen.scenes import Scene, SceneObject
from experiments.specimen.train import LOG_FILE, train

pytestmark = pytest.mark.slow  # no behaviour of the package


def test_patch_labels_sit_on_the_object() -> None:
    labels = label_scenes([Scene((SceneObject("cross", "blue", 8, radius=6),))])
    for name, value in (
        ("kind", 1 + KINDS.index("cross")),
        ("color", 1 + COLOR_NAMES.index("blue")),
        ("cell", 9),
    ):
        grid = labels.patches[name].reshape(8, 8)
        assert (grid[6:, 6:] == value).all()
        assert grid.sum() == 4 * value
    assert labels.pairs.sum() == 1
    assert labels.count.tolist() == [1]


def test_tiny_training_run_writes_a_loadable_folder(tmp_path: Path) -> None:
    train(tmp_path, scale=0.001, items_per_kind=4)
    model, processor = load(tmp_path)
    assert model.config.vision_feature_layer == -2
    assert processor.num_additional_image_tokens == 1
    evaluation = Evaluation.from_json((tmp_path / EVALUATION_FILE).read_text(encoding="utf-8"))
    assert all(score.n == 4 for score in evaluation.scores.values())
    records = [json.loads(line) for line in (tmp_path / LOG_FILE).read_text().splitlines()]
    stages = [record["stage"] for record in records]
    assert stages[0] == "start"
    assert stages[-1] == "done"
    assert {"pretrain_vision", "pretrain_language", "align_projector", "finetune"} < set(stages)
