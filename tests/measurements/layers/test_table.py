"""layers.csv and images.csv: intervals, ratios, and the visual tokens of each image."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.capture import capture
from support.expected_parts import ExpectedParts
from support.flat import flat
from support.processors import RECIPES
from support.reference import norm, token_metrics
from support.several_images import (
    HIGH,
    SEVERAL,
    WIDE,
    loaded,
    rows_of_image,
    states_of,
)
from support.several_images import SAMPLES as PICTURED
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws

from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.measurements import measurement
from normprobe.measurements.layers.table import images_table, layers_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import (
    GEOMETRIC_RATIOS,
    IMAGE_NUMBERS,
    OTHER_TOKEN_METRICS,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.sample_statistics import statistics_of
from normprobe.tidy import BAND, INTERVAL, select

LAYER_METRICS = (*TOKEN_METRICS, *OTHER_TOKEN_METRICS)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)


def layer_rows() -> pd.DataFrame:
    random = np.random.default_rng(0)
    made = []
    for sample, image in SAMPLES:
        for group in (VISUAL, TEXT) if image else (TEXT,):
            for layer in range(3):
                metrics = LAYER_METRICS if layer else TOKEN_METRICS[:1]
                values = random.gamma(3.0, 1.0, (len(metrics), random.integers(2, 9)))
                made.append(
                    {"sample_id": sample, "image_hash": image, "layer": layer, "group": group}
                    | {"hidden_size": 16, "dtype": "float32", **statistics_of(values, metrics)}
                    | (dict.fromkeys(SAMPLE_METRICS, random.uniform()) if layer else {})
                    | {"loudest_share": 0.5, "loudest_position": 3, "loudest_id": 7}
                )
    return pd.DataFrame(made)


def flat_table(rows: pd.DataFrame) -> pd.DataFrame:
    """layers.csv without intervals, flat."""
    return flat(layers_table(rows, intervals=False))


@pytest.mark.usefixtures("few_draws")
def test_every_mean_and_ratio_has_its_interval() -> None:
    rows = layer_rows()
    table = flat(layers_table(rows))
    columns = [column for column in flat_table(rows) if column.endswith("_mean")]
    columns += RATIOS_TO_TEXT.values()
    assert {f"{column}_ci_low" for column in columns} <= set(table.columns)
    keys = ["layer", "group"]
    assert_intervals(table, slow_draws(rows, flat_table, keys), keys, columns)


def test_each_number_of_visual_and_text_tokens_has_a_band() -> None:
    """Those that a sentence may compare at once, around their intervals."""
    table = layers_table(layer_rows())
    for metric in TOKEN_METRICS:
        found = select(table, metric)
        told = found[found["group"].isin([VISUAL, TEXT])]
        assert len(told) and told[[*BAND]].notna().all(axis=None)
        assert (told[BAND[0]] <= told[INTERVAL[0]]).all()
        assert (told[BAND[1]] >= told[INTERVAL[1]]).all()


def test_without_intervals_the_numbers_are_the_same() -> None:
    rows = layer_rows()
    table, bare = layers_table(rows), layers_table(rows, intervals=False)
    ends = [name for name in table if name.endswith(("low", "high"))]
    assert ends[:4] == [*INTERVAL, *BAND]
    pd.testing.assert_frame_equal(table.drop(columns=ends), bare)


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = layer_rows()
    pd.testing.assert_frame_equal(
        layers_table(rows), layers_table(rows.sample(frac=1.0, random_state=0))
    )


def test_one_image_has_no_interval() -> None:
    rows = layer_rows().query("image_hash == 'x'")
    table = layers_table(rows)
    assert not {*INTERVAL, *BAND} & {*table}
    norms = select(table, "norm")
    assert len(norms) == 6 and norms["mean"].notna().all()


def test_ratios_are_of_means_over_tokens_of_one_layer() -> None:
    rows = layer_rows()
    table = flat(layers_table(rows))
    visual = table[table["group"] == VISUAL].set_index("layer")
    text = table[table["group"] == TEXT].set_index("layer")
    for kind, ratios in (("mean", RATIOS_TO_TEXT), ("geometric_mean", GEOMETRIC_RATIOS)):
        for metric, column in ratios.items():
            expected = visual[f"{metric}_{kind}"] / text[f"{metric}_{kind}"]
            np.testing.assert_allclose(visual[column], expected, rtol=1e-12)
    assert visual["norm_ratio_to_text_ci_low"].lt(visual["norm_ratio_to_text"]).all()


def test_without_text_there_is_nothing_to_divide_by() -> None:
    rows = layer_rows().query("group == 'visual'")
    table = layers_table(rows)
    for ratio in (*RATIOS_TO_TEXT.values(), *GEOMETRIC_RATIOS.values()):
        assert select(table, ratio).empty


#: Each text comes with one image, for which it has no placeholder.
ONE_IMAGE = (
    *("blip", "blip-2", "instructblip", "florence2", "git", "pix2struct"),
    "vision-encoder-decoder",
)
#: Text attends to the images, which are not among the rows of the decoder.
ATTENDED = ("idefics", "mllama")
#: Other pixels may be the same codes of the image tokenizer.
DISCRETE = ("chameleon",)
#: Refuse text alone.
NEEDS_AN_IMAGE = ("paligemma", "pp_chart2table")
#: Positions count the images of the whole batch.
UNBATCHABLE = ("hunyuan_vl",)

IN_SEQUENCE = [name for name in RECIPES if name not in (*ONE_IMAGE, *ATTENDED, *DISCRETE)]


@pytest.fixture(scope="module")
def load(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[MeasuredModel, InputBuilder]]:
    root = tmp_path_factory.mktemp("checkpoints")
    return lambda model_type: loaded(model_type, root / model_type)


def measured(
    measured_model: MeasuredModel,
    builder: InputBuilder,
    batch_size: int,
    samples: Sequence[Sample] = PICTURED,
) -> pd.DataFrame:
    rows = []
    takes_text = builder.model_type not in NEEDS_AN_IMAGE or batch_size > 1
    samples = samples if takes_text else [sample for sample in samples if sample.images]
    for start in range(0, len(samples), batch_size):
        batch = samples[start : start + batch_size]
        inputs = inputs_for(measured_model.model, builder.build(batch))
        names = [sample.id for sample in batch]
        rows.append(measurement("layers").sample_rows(measured_model, inputs, names))
    return pd.concat(rows, ignore_index=True)


@pytest.mark.parametrize("model_type", IN_SEQUENCE)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_image(model_type: str, batch_size: int, load: Any) -> None:
    if model_type in UNBATCHABLE and batch_size > 1:
        pytest.skip("positions count the images of the whole batch")
    model, builder = load(model_type)
    table = flat(images_table(measured(model, builder, batch_size)))
    assert set(table["sample_id"]) == {sample.id for sample in SEVERAL}
    for sample in SEVERAL:
        states = states_of(model, builder, sample)
        metrics = [token_metrics(layer) for layer in states.layers]
        for number in (1, 2):
            own = rows_of_image(model, builder, sample, number)
            assert own.any()
            rows = table.query("sample_id == @sample.id and image == @number").set_index("layer")
            assert list(rows.index) == list(range(len(metrics) + 1))
            assert set(rows["tokens"]) == {own.sum()}
            norms = [norm(states.layers[0].entered[0])[own]] + [
                layer["norm"][0, own] for layer in metrics
            ]
            np.testing.assert_allclose(rows["norm_mean"], [n.mean() for n in norms], rtol=1e-4)
            np.testing.assert_allclose(
                rows["norm_std"], [n.std() for n in norms], rtol=1e-3, atol=1e-5
            )
            for name in ("cosine", "angle"):
                expected = [layer[name][0, own].mean() for layer in metrics]
                found = rows[f"{name}_mean"].iloc[1:]
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model_type", IN_SEQUENCE)
def test_the_images_of_a_sample_are_its_visual_tokens(model_type: str, load: Any) -> None:
    model, builder = load(model_type)
    rows = measured(model, builder, 1)
    by_sample = ["sample_id", "layer"]
    visual = rows[rows["group"] == VISUAL].set_index(by_sample)
    of_images = flat(images_table(rows)).groupby(by_sample)["tokens"].sum()
    assert (of_images == visual.loc[of_images.index, "tokens"]).all()


def test_codes_of_an_image_tokenizer(load: Any) -> None:
    model, builder = load("chameleon")
    table = flat(images_table(measured(model, builder, 4)))
    assert set(table["tokens"]) == {RECIPES["chameleon"].rows}
    assert (table.groupby("sample_id")["image"].unique().map(list).map(tuple) == (1, 2)).all()


@pytest.mark.parametrize("model_type", ATTENDED)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_images_that_text_attends_to(model_type: str, batch_size: int, load: Any) -> None:
    """The states of an image do not depend on the other: those of each alone are the reference."""
    model, builder = load(model_type)
    stage = model.parts.projector or model.parts.vision_encoder
    role = "projector" if model.parts.projector else "vision_encoder"
    states = {}
    for name, image in {"wide": WIDE, "high": HIGH}.items():
        inputs = dict(inputs_for(model.model, builder.build([Sample(name, "What?", (image,))])))
        captured = capture(model.model, inputs, ExpectedParts(**{role: stage.name}))
        seen = captured.projector_output if role == "projector" else captured.vision_encoder
        states[name] = norm(np.concatenate([call.reshape(-1, call.shape[-1]) for call in seen]))
    rows = measured(model, builder, batch_size)
    table = flat(images_table(rows))
    assert set(table["layer"]) == {0}
    found = table.set_index(["sample_id", "image"])["norm_mean"]
    order = {"marked": ("wide", "high"), "before": ("high", "wide")}
    for sample_id, names in order.items():
        for number, name in enumerate(names, start=1):
            expected = states[name].mean()
            np.testing.assert_allclose(found[sample_id, number], expected, rtol=1e-4)
    visual = rows.query("group == @VISUAL and layer == 0").set_index("sample_id")["norm_mean"]
    assert set(visual.index) == {"marked", "before", "one"}
    np.testing.assert_allclose(visual["one"], states["high"].mean(), rtol=1e-4)
    both = np.concatenate([states["wide"], states["high"]]).mean()
    np.testing.assert_allclose(visual[["marked", "before"]], both, rtol=1e-4)


@pytest.mark.parametrize("model_type", ONE_IMAGE)
@pytest.mark.parametrize("sample", SEVERAL, ids=lambda sample: sample.id)
def test_types_that_read_one_image_say_so(model_type: str, sample: Sample, load: Any) -> None:
    _, builder = load(model_type)
    with pytest.raises(RefusedSample, match=f"{sample.id} .*reads a single image, before the"):
        builder.build([sample])
    with pytest.raises(RefusedSample, match="single image"):
        builder.build([PICTURED[1], sample])


def test_samples_of_one_image_add_nothing(load: Any) -> None:
    model, builder = load("llava")
    inputs = builder.build([PICTURED[1]])
    assert IMAGE_NUMBERS not in inputs
    rows = measurement("layers").sample_rows(model, inputs, ["one"])
    assert "image" not in rows
    assert images_table(rows).empty
    both = measured(model, builder, 1)
    alone = layers_table(both[both["sample_id"] == "one"], intervals=False)
    pd.testing.assert_frame_equal(alone, layers_table(rows, intervals=False))
