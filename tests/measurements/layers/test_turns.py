"""turns.csv beside states captured another way, on every type whose template writes turns."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measurements.layers.test_table import ATTENDED, IN_SEQUENCE, UNBATCHABLE, measured
from numpy.typing import NDArray
from scipy.stats import norm as normal
from scipy.stats import t as student
from support.flat import flat
from support.printed import words_of
from support.processors import RECIPES
from support.reference import norm, token_metrics
from support.several_images import HIGH, WIDE, loaded, rows_of_image, states_of
from support.slow_bands import assert_bands
from support.slow_bootstrap import DRAWS, use_few_draws

from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample, Turn
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.measurements import measurement
from normprobe.measurements.layers.measure import _several_turns
from normprobe.measurements.layers.table import layers_table
from normprobe.measurements.layers.turns import turns_findings, turns_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.probe import Probe
from normprobe.schema import OF_GROUP, TEXT, TOKEN_GROUPS, TURN, TURN_NUMBERS, VISUAL
from normprobe.statistics.bootstrap import draw_weights
from normprobe.statistics.sample_statistics import statistics_by_layer
from normprobe.tidy import select

FIRST, SECOND = Turn("What is <image>?", "a red dog"), Turn("Is it old?", "yes")
THREE = Sample("three", "And <image>?", (WIDE, HIGH), earlier=(FIRST, SECOND))
TWO = Sample("two", "And <image>?", (HIGH, WIDE), earlier=(FIRST,))
UNMARKED = Sample("unmarked", "Why?", (HIGH,), earlier=(Turn("What is it?", "a cat"),))
ONE = Sample("one", "What is it?", (HIGH,))
SAMPLES = [THREE, TWO, UNMARKED, ONE]
#: Which turn each image stands in.
TURNS_OF_IMAGES = {"three": [1, 3], "two": [1, 2], "unmarked": [1]}
NUMBERED = [name for name in IN_SEQUENCE if RECIPES[name].chat]
UNWRITTEN = [name for name in RECIPES if not RECIPES[name].chat]

Loaded = tuple[MeasuredModel, InputBuilder]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    root = tmp_path_factory.mktemp("checkpoints")

    def load_type(model_type: str) -> Loaded:
        model, builder = loaded(model_type, root / model_type)
        return model, replace(builder, by_turn=True)

    return load_type


def flat_table(rows: pd.DataFrame) -> pd.DataFrame:
    """turns.csv of sample rows, flat."""
    return flat(turns_table(rows))


def turns_of(builder: InputBuilder, sample: Sample) -> NDArray[np.int64]:
    """The turn of each position: a token is a character, so what was said can be found."""
    ids = builder.build([sample])["input_ids"][0].tolist()
    written = [builder.tokenizer.decode([token]) for token in ids]
    ends, start = [], 0
    for _, reply in sample.earlier:
        said = [*reply]
        places = range(start, len(written) - len(said) + 1)
        start = next(i for i in places if written[i : i + len(said)] == said) + len(said)
        ends.append(start)
    return 1 + (np.arange(len(ids))[:, None] >= np.array(ends, dtype=int)).sum(axis=1)


@pytest.mark.parametrize("model_type", NUMBERED)
def test_each_token_is_of_the_turn_that_it_stands_in(model_type: str, load: Any) -> None:
    model, builder = load(model_type)
    samples = SAMPLES[:1] if model_type in UNBATCHABLE else SAMPLES
    inputs = builder.build(samples)
    for row, sample in enumerate(samples):
        expected = turns_of(builder, sample)
        found = inputs[TURN_NUMBERS][row].tolist()
        assert found == [*expected, *[0] * (len(found) - len(expected))]
        for number, turn in enumerate(TURNS_OF_IMAGES.get(sample.id, []), start=1):
            moved = rows_of_image(model, builder, sample, number)
            assert set(expected[moved]) == {turn}


@pytest.mark.parametrize("model_type", NUMBERED)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_turn(model_type: str, batch_size: int, load: Any) -> None:
    if model_type in UNBATCHABLE and batch_size > 1:
        pytest.skip("positions count the images of the whole batch")
    model, builder = load(model_type)
    made = measured(model, builder, batch_size, SAMPLES)
    table = flat_table(made.assign(image_hash=made["sample_id"])).set_index([TURN, "group"])
    seen = states_by_turn(model, builder)
    assert set(table.index) == {(turn, group) for _, turn, group in seen}
    for turn, group in seen_keys(seen):
        found = table.loc[(turn, group)].sort_values("layer")
        held = {key[0]: states for key, states in seen.items() if key[1:] == (turn, group)}
        assert found["samples"].iloc[0] == len(held)
        for metric in ("norm", "angle"):
            by_sample = {name: states[metric] for name, states in held.items()}
            tokens = np.concatenate([*by_sample.values()], axis=1)
            column = found[f"{metric}_mean"].to_numpy()[-len(tokens) :]
            np.testing.assert_allclose(column, tokens.mean(axis=1), rtol=1e-4, atol=1e-4)
            paired = [
                np.log(numbers).mean(axis=1) - np.log(seen[name, 1, group][metric]).mean(axis=1)
                for name, numbers in by_sample.items()
                if (name, 1, group) in seen
            ]
            column = found[f"{metric}_geometric_ratio_to_first_turn"].to_numpy()[-len(tokens) :]
            np.testing.assert_allclose(column, np.exp(np.mean(paired, axis=0)), rtol=1e-3)
    of_all = layers_table(made, intervals=False)
    plain = made[made["group"] != TURN].drop(columns=[TURN, OF_GROUP])
    without = layers_table(plain, intervals=False)
    pd.testing.assert_frame_equal(of_all, without)


def states_by_turn(
    model: MeasuredModel, builder: InputBuilder
) -> dict[tuple[str, int, str], dict[str, NDArray[np.float64]]]:
    """``[layers, tokens]`` by metric, of each sample, turn and group; in float64, without hooks."""
    found = {}
    plain = replace(builder, by_turn=False)
    for sample in SAMPLES[:-1]:
        states = states_of(model, plain, sample)
        metrics = [token_metrics(layer) for layer in states.layers]
        entered = norm(states.layers[0].entered[0])
        norms = np.stack([entered, *(layer["norm"][0] for layer in metrics)])
        angles = np.stack([layer["angle"][0] for layer in metrics])
        inputs = inputs_for(model.model, plain.build([sample]))
        state = model.decoder_input(inputs)
        groups = model.batch(inputs).groups_at(state)[0].numpy()
        turns = turns_of(builder, sample)
        for turn in range(1, int(turns.max()) + 1):
            for group in (VISUAL, TEXT):
                own = (turns == turn) & (groups == TOKEN_GROUPS.index(group))
                if own.any():
                    key = (sample.id, turn, group)
                    found[key] = {"norm": norms[:, own], "angle": angles[:, own]}
    return found


def seen_keys(seen: dict[tuple[str, int, str], Any]) -> list[tuple[int, str]]:
    return sorted({(turn, group) for _, turn, group in seen})


def test_parts_of_turns_have_one_order_and_no_image_apart() -> None:
    """The text, the image, the clip and the sound of turn 1, and the image of turn 2."""
    names = ("text", "visual", "video", "audio", "visual")
    codes = np.array([[TOKEN_GROUPS.index(name) for name in names]], dtype=np.int8)
    seen: Any = SimpleNamespace(groups=codes, turns=np.array([[1, 1, 1, 1, 2]]))
    parts = [(named[TURN], named[OF_GROUP], mask.sum()) for named, mask in _several_turns(seen, 0)]
    first = [(1, "visual", 2), (1, "text", 1), (1, "video", 1), (1, "audio", 1)]
    assert parts == [*first, (2, "visual", 1)]


@pytest.mark.parametrize("model_type", UNWRITTEN)
def test_without_a_template_there_are_no_turns(model_type: str, load: Any) -> None:
    _, builder = load(model_type)
    with pytest.raises(RefusedSample, match=r"turns need a chat template|one turn of text"):
        builder.build([replace(TWO, images=(HIGH,), prompt="Why?")])


@pytest.mark.parametrize("model_type", ATTENDED)
def test_turns_of_images_beside_the_sequence_are_no_rows(model_type: str, load: Any) -> None:
    model, builder = load(model_type)
    if not RECIPES[model_type].chat:
        pytest.skip("its prompts have one turn")
    inputs = inputs_for(model.model, builder.build([TWO]))
    rows = measurement("layers").sample_rows(model, inputs, ["two"])
    assert set(rows.loc[rows["group"] == TURN, OF_GROUP]) == {TEXT}


def made_rows(turns: int = 2) -> pd.DataFrame:
    """Norms and angles of turns of five samples, of which one sees no picture in the first."""
    random, rows = np.random.default_rng(3), []
    for sample in range(5):
        for turn in range(1, turns + 1):
            for group in (VISUAL, TEXT):
                if (sample, turn, group) == (4, 1, VISUAL):
                    continue
                values = random.lognormal(0, 0.3, (2, 2, 6)) * (1 + sample)
                named = {"sample_id": f"s{sample}", "image_hash": f"p{sample}", "group": TURN}
                columns = statistics_by_layer(values, ["norm", "angle"])
                rows.append(
                    pd.DataFrame({"layer": [0, 1], **named, TURN: turn, OF_GROUP: group, **columns})
                )
    return pd.concat(rows, ignore_index=True)


def test_pictures_are_compared_within_their_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample without a picture in its first turn has no say in the ratio."""
    use_few_draws(monkeypatch)
    rows = made_rows()
    table = turns_table(rows)
    logs = rows.pivot(index=["layer", OF_GROUP, "sample_id"], columns=TURN, values="norm_log_mean")
    expected = np.exp((logs[2] - logs[1]).groupby(["layer", OF_GROUP]).mean())
    named = flat(table)
    found = named[named[TURN] == 2].set_index(["layer", "group"])
    for key, value in expected.items():
        row = found.loc[key]
        assert row["norm_geometric_ratio_to_first_turn"] == pytest.approx(value)
        assert row["norm_geometric_ratio_to_first_turn_ci_low"] < value
    assert found.loc[(1, VISUAL), "samples"] == 5
    for ratio in (f"{metric}_geometric_ratio_to_first_turn" for metric in ("norm", "angle")):
        (visual,), (text,) = (
            select(table, ratio, layer=1, turn=2, group=group)["samples"]
            for group in (VISUAL, TEXT)
        )
        assert (visual, text) == (4, 5)
    told = words_of(turns_findings(table))
    assert told.startswith("Norm of visual tokens of turn 2 at the decoder input: ")
    assert "Visual tokens of turn 2 are in 4 of 5 conversations." in told
    whole = turns_table(rows[rows["sample_id"] != "s4"])  # there is none without a first picture
    assert "conversations" not in words_of(turns_findings(whole))
    one = rows[rows["sample_id"].isin(["s0", "s4"])]  # of which one has a picture in both turns
    alone = select(turns_table(one), "norm_geometric_ratio_to_first_turn", turn=2, group=VISUAL)
    assert len(alone) == 2 and alone["mean"].notna().all()
    told = words_of(turns_findings(turns_table(one)))
    assert "Visual tokens of turn 2 are in 1 of 2 conversations." in told
    assert alone["low"].isna().all()
    broken = turns_table(rows.assign(norm_log_mean=np.nan, angle_log_mean=np.nan))
    assert turns_findings(broken) == []
    assert turns_table(rows[rows["group"] != TURN]).empty


def test_an_interval_is_as_wide_as_the_pictures_ask_for_that_stand_in_both_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a ratio are of four of five pictures: widened by t of three degrees of freedom."""
    use_few_draws(monkeypatch)
    rows = made_rows()
    found = flat_table(rows).set_index(["layer", TURN, "group"]).loc[(1, 2, VISUAL)]
    own = rows[(rows["layer"] == 1) & (rows[OF_GROUP] == VISUAL)]
    weights = draw_weights(5, DRAWS)
    for metric in ("norm", "angle"):
        logs = own.pivot(index="sample_id", columns=TURN, values=f"{metric}_log_mean")
        moved = (logs[2] - logs[1]).to_numpy()  # of the fifth there is no first turn
        drawn = weights[:, :4] @ moved[:4] / weights[:, :4].sum(axis=1)
        ends = np.quantile(drawn[6:], [0.025, 0.975])
        wider = student.ppf(0.975, 3) / normal.ppf(0.975) * np.sqrt(4 / 3)
        column = f"{metric}_geometric_ratio_to_first_turn"
        told = [found[f"{column}_ci_{end}"] for end in ("low", "high")]
        assert told == pytest.approx(np.exp(drawn[0] + (ends - drawn[0]) * wider), rel=1e-9)


def test_each_later_turn_has_a_band_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows, keys = made_rows(turns=3), ["layer", TURN, "group"]
    table = flat_table(rows)
    column = "angle_geometric_ratio_to_first_turn"
    assert_bands(table, rows, flat_table, keys, {column: "log"}, [(1, 3, VISUAL)], ["p4"])
    banded = table.set_index(keys)[f"{column}_band_low"].dropna()
    assert set(banded.index) == {(1, 2, VISUAL), (1, 3, VISUAL)}


def test_only_layers_tells_turns_apart() -> None:
    probe = Probe("specimen")
    with pytest.raises(NormprobeError, match="interface tells no turn apart"):
        probe.measure("interface", by="turn")
    with pytest.raises(NormprobeError, match="layers tells no day apart"):
        probe.layers(by="day")
    with pytest.raises(NormprobeError, match="which turn a token of fixed inputs is of"):
        probe.layers({"input_ids": [[1]]}, by="turn")


def test_data_of_one_turn_say_so() -> None:
    run = Probe("specimen").layers(limit=2, by="turn", output=None)
    assert any("no turns.csv" in warning for warning in run.record["warnings"])
    assert "turns" not in run.tables
