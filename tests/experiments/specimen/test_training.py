"""The training pipeline, at a scale that only shows that it runs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.specimen.evaluate import EVALUATION_FILE, Evaluation, load
from experiments.specimen.packing import Encoder, pack
from experiments.specimen.pretrain_language import build_tokenizer
from experiments.specimen.pretrain_vision import KINDS, label_scenes
from experiments.specimen.questions import COLOR_NAMES, Question
from experiments.specimen.scenes import Scene, SceneObject
from experiments.specimen.train import LOG_FILE, train
from experiments.specimen.training import learning_rate_factor

pytestmark = pytest.mark.slow  # no behaviour of the package


def test_learning_rate_rises_then_falls() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(101)]
    assert factors[0] == pytest.approx(0.2)
    assert max(factors) == factors[4] == pytest.approx(1.0)
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert factors[100] == pytest.approx(0.0)


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


def test_attention_mask_of_packed_questions() -> None:
    encode = Encoder(build_tokenizer(0))
    questions = [Question("count", "How many?", "2"), Question("count", "How many?", "2")]
    batch = pack(["USER: "], [questions], encode)
    context = len(encode("USER: "))
    length = (batch.input_ids.shape[1] - context) // 2
    mask = batch.attention_mask[0, 0]
    first = slice(context, context + length)
    second = slice(context + length, None)
    assert not mask[second, first].any()
    assert mask[second, :context].all()
    assert torch.equal(mask[first, first], mask[second, second])
    assert torch.equal(batch.position_ids[0, first], batch.position_ids[0, second])
    assert not np.triu(mask.numpy(), 1).any()


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
