"""What every run begins with: the encoder of 16 tokens, projectors that know words, the decoder."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.smollm.encoder import averaged, halved, vision_encoder
from experiments.smollm.grow import Base, grown, loudness
from experiments.smollm.language import instructed
from experiments.smollm.words import BACKGROUND, Words, words_shown
from experiments.specimen.scenes import Scene, SceneObject
from experiments.specimen.training import TrainingLog

pytestmark = pytest.mark.slow  # no behaviour of the package


def test_averages_are_over_two_by_two_patches() -> None:
    patches = torch.randn(3, 64, 5)
    grid = patches.double().numpy().reshape(3, 4, 2, 4, 2, 5)
    expected = grid.mean((2, 4)).reshape(3, 16, 5)
    np.testing.assert_allclose(averaged(patches), expected, rtol=1e-5, atol=1e-6)


def test_the_halved_encoder_begins_with_the_average_of_patch_embeddings(
    specimen: tuple[Any, Any],
) -> None:
    teacher = specimen[0].model.vision_tower
    pixels = torch.randn(2, 3, 64, 64)
    small, large = (
        next(m for name, m in encoder.named_modules() if name.endswith("embeddings"))(pixels)
        for encoder in (teacher, halved(teacher))
    )
    assert large.shape == (2, 17, 128)
    torch.testing.assert_close(large[:, 1:], averaged(small[:, 1:]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(large[:, 0], small[:, 0])


def test_an_encoder_is_trained_once_a_folder(tmp_path: Path, log: TrainingLog) -> None:
    first = vision_encoder(tmp_path, 2, log).state_dict()
    again = vision_encoder(tmp_path, 2, log).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not any(weight.requires_grad for weight in vision_encoder(tmp_path, 2, log).parameters())


def test_a_visual_token_has_the_words_of_what_it_covers() -> None:
    cross = SceneObject("cross", "blue", 8, radius=6)  # centre 56, 56: the last token alone
    digit = SceneObject("7", "red", 1, radius=8)  # centre 32, 8: the second and third
    found = words_shown(Scene((digit, cross)))
    expected = [BACKGROUND] * 16
    expected[1] = expected[2] = "red 7 top center"
    expected[15] = "blue cross bottom right"
    assert found == expected


def test_words_are_means_of_the_rows_of_their_tokens(base: Base) -> None:
    table = base.decoder.get_input_embeddings().weight.detach()
    ids = base.tokenizer(" red circle", add_special_tokens=False)["input_ids"]
    blank = base.tokenizer(" ", add_special_tokens=False)["input_ids"]
    expected = table[[each for each in ids if [each] != blank]].double().numpy().mean(0)
    found = Words(table, base.tokenizer)("red circle")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_projector_learns_words_once_a_seed(base: Base, tmp_path: Path, log: TrainingLog) -> None:
    first = grown(base, "norm", 0, tmp_path, 20, log).model.multi_modal_projector.state_dict()
    files = sorted(file.name for file in tmp_path.glob("projector-*.pt"))
    again = grown(base, "norm_half", 0, tmp_path, 20, log).model.multi_modal_projector.state_dict()
    other = grown(base, "norm", 1, tmp_path, 20, log).model.multi_modal_projector.state_dict()
    assert files == ["projector-0.pt"]
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not any(torch.equal(weight, other[name]) for name, weight in first.items())


def test_the_language_stage_changes_the_decoder_once_a_folder(
    base: Base, tmp_path: Path, log: TrainingLog
) -> None:
    before = {name: w.clone() for name, w in base.decoder.state_dict().items()}
    first = instructed(deepcopy(base), 3, tmp_path, log).decoder.state_dict()
    again = instructed(deepcopy(base), 3, tmp_path, log).decoder.state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    changed = {name.split(".")[-2] for name in first if not torch.equal(first[name], before[name])}
    layers = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert changed == layers


def test_loudness_is_the_mean_norm_behind_the_projector(
    base: Base, tmp_path: Path, log: TrainingLog
) -> None:
    model = grown(base, "cold", 0, tmp_path, 1, log)
    kept: list[np.ndarray] = []
    hook = model.model.multi_modal_projector.register_forward_hook(
        lambda *args: kept.append(args[2].detach().double().numpy())
    )
    found = loudness(model)
    hook.remove()
    assert found == pytest.approx(np.linalg.norm(kept[0], axis=-1).mean(), rel=1e-5)
