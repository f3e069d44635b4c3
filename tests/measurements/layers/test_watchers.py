"""``--branches`` against float64 NumPy over what the modules of the layers return."""

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support import toy_layers
from support.agreement import assert_agrees
from support.capture import Array, replaced_forward, to_numpy
from support.cases import Case, case_of, make_case, model_of
from support.commands import invoke
from support.expected_parts import PARTS
from support.flat import flat
from support.hooks import hooks_of
from support.printed import words_of
from support.reference import angle, members, norm, observe_layers
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import ALL_TYPES, NEEDS, TINY, VLM_TYPES
from transformers import PreTrainedModel

from normprobe import NormprobeError, Probe, find_parts, schema
from normprobe.measurements import measurement
from normprobe.measurements.layers import watchers
from normprobe.measurements.layers.branches import RATIO_METRICS
from normprobe.measurements.layers.massive import massive_findings, massive_tables
from normprobe.measurements.layers.watchers import BranchWatcher, MassiveActivations
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import BRANCHES, PAIR, TEXT, TOKEN_GROUPS
from normprobe.statistics.token_metrics import POOLED_GROUPS, group_masks
from normprobe.tidy import declared, select
from normprobe.versions import is_line_5

BATCHES = [(1, "right"), (4, "right"), (4, "left")]
ATTENTION, CROSS_ATTENTION, MLP = BRANCHES


def marked(model_type: str, *others: Any) -> Any:
    """Types beyond the ones that every test runs on are slow."""
    needed = NEEDS.get(model_type, "torch")
    marks = [pytest.mark.skipif(find_spec(needed) is None, reason=f"needs {needed}")]
    if model_type not in TINY:
        marks.append(pytest.mark.slow)
    return pytest.param(model_type, *others, marks=marks)


# --- the numbers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """Which modules of a layer return what its branches add, and what that is multiplied by."""

    attention: tuple[str, ...] = ("self_attn",)
    mlp: tuple[str, ...] = ("mlp",)
    parallel: bool = False
    multiplier: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)  # of every layer


CLOSED = ("post_attention_layernorm",), ("post_feedforward_layernorm",)
TERMS = {
    "llava": Terms(),
    "llava_onevision": Terms(),
    "qwen2_5_vl": Terms(),
    "aria": Terms(),  # routed and shared experts
    "kosmos-2": Terms(mlp=("ffn",)),
    "blip-2": Terms(mlp=("fc2",)),
    "lfm2_vl": Terms(attention=("conv", "self_attn"), mlp=("feed_forward",)),
    "qwen3_5": Terms(attention=("linear_attn", "self_attn")),
    "udop": Terms(("layer.0.SelfAttention",), ("layer.1.DenseReluDense",)),
    "granite4_vision": Terms(multiplier=0.22),
    "aya_vision": Terms(parallel=True),
    "llava_gptj": Terms(("attn",), parallel=True),
    "gemma3": Terms(*CLOSED),
    "glm4v": Terms(("post_self_attn_layernorm",), ("post_mlp_layernorm",)),
    "exaone4_5": Terms(*CLOSED),
    # Its per-layer embeddings belong to the MLP; at its end it scales its residual.
    "gemma4": Terms(
        CLOSED[0],
        ("post_feedforward_layernorm", "post_per_layer_input_norm"),
        settings={"layer_scalar": torch.tensor([0.5])},
    ),
}


def prepared(model: PreTrainedModel, terms: Terms, layers: str) -> PreTrainedModel:
    model = copy.deepcopy(model)
    for layer in model.get_submodule(layers):
        for name, value in terms.settings.items():
            assert hasattr(layer, name)
            setattr(layer, name, value.to(model.dtype))
        if terms.multiplier != 1:
            assert hasattr(layer, "residual_multiplier")
            layer.residual_multiplier = terms.multiplier
    return model


@torch.no_grad()
def added(model: PreTrainedModel, inputs: Any, layers: str, terms: Terms) -> list[dict[str, Any]]:
    """By layer the state that each branch turns, and what it adds, without hooks."""
    seen: list[dict[str, list[Array]]] = []

    def see(into: list[Array], entered: Array, output: Any) -> None:
        into.append(to_numpy(output[0] if isinstance(output, tuple) else output))

    with ExitStack() as stack:
        for layer in model.get_submodule(layers):
            found: dict[str, list[Array]] = {"x": [], ATTENTION: [], MLP: []}
            seen.append(found)
            stack.enter_context(replaced_forward(layer, lambda x, _, f=found: f["x"].append(x)))
            modules = dict(layer.named_modules())
            for branch, names in ((ATTENTION, terms.attention), (MLP, terms.mlp)):
                for name in names:
                    if name in modules:
                        into = partial(see, found[branch])
                        stack.enter_context(replaced_forward(modules[name], into))
        model(**inputs)
    by_layer = []
    for found in seen:
        (x,) = found["x"]
        attention, mlp = (
            sum(rounded(terms.multiplier * part.reshape(x.shape), model) for part in found[branch])
            for branch in (ATTENTION, MLP)
        )
        between = rounded(x + attention, model)
        turned = x if terms.parallel else between
        by_layer.append({ATTENTION: (x, attention), MLP: (turned, mlp)})
    return by_layer


def rounded(states: Array, model: PreTrainedModel) -> Array:
    """As the model stores them."""
    return torch.from_numpy(states).to(model.dtype).double().numpy()


def expected_rows(by_layer: list[dict[str, Any]], groups: Any) -> dict[Any, dict[str, float]]:
    rows = {}
    for number, branches in enumerate(by_layer, start=1):
        for branch, (x, term) in branches.items():
            metrics = {
                "update_norm": norm(term),
                "relative_update": norm(term) / norm(x),
                "angle": angle(x, x + term),
            }
            for group in members(groups):
                masks = [members(sample).get(group, sample == "none") for sample in groups]
                if not np.any(masks):
                    continue
                row: dict[str, float] = {"tokens": sum(mask.sum() for mask in masks)}
                for metric, values in metrics.items():
                    of_samples = [v[m] for v, m in zip(values, masks, strict=True) if m.any()]
                    tokens, means = np.concatenate(of_samples), [v.mean() for v in of_samples]
                    row[f"{metric}_mean"], row[f"{metric}_std"] = tokens.mean(), tokens.std()
                    row[f"{metric}_sample_mean"] = np.mean(means)
                    row[f"{metric}_sample_std"] = np.std(means)
                    if metric in RATIO_METRICS:  # of tokens that move
                        row[f"{metric}_geometric_mean"] = np.exp(np.log(tokens[tokens > 0]).mean())
                rows[number, branch, group] = row
    for (number, branch, _), row in rows.items():
        text = rows.get((number, branch, TEXT))
        if text is None:
            continue
        for metric in RATIO_METRICS:
            for mean, ratio in (("mean", "ratio"), ("geometric_mean", "geometric_ratio")):
                beside = text[f"{metric}_{mean}"]
                row[f"{metric}_{ratio}_to_text"] = row[f"{metric}_{mean}"] / beside
    return rows


def branches_of(model: PreTrainedModel, inputs: Any) -> pd.DataFrame:
    run = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs, also=["branches"])
    assert not any("branches" in warning for warning in run.record["warnings"])
    return flat(run.tables["branches"]).set_index(["layer", "branch", "group"])


def groups_of(model: PreTrainedModel, inputs: Any) -> Any:
    """The group of each token; the groups have tests of their own."""
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    codes = measured.batch(inputs).groups_at(measured.decoder_input(inputs))
    return np.array([*TOKEN_GROUPS, ""])[codes.numpy()]


def assert_agrees_with_numpy(model: PreTrainedModel, inputs: Any, model_type: str) -> None:
    terms, stack = TERMS[model_type], find_parts(model).decoder_layers
    assert stack is not None
    model = prepared(model, terms, stack.name)
    table = branches_of(model, inputs)
    expected = expected_rows(added(model, inputs, stack.name, terms), groups_of(model, inputs))
    assert set(table.index) == set(expected)
    for key, row in expected.items():
        assert_agrees(table.loc[key], row, where=key)
        if (*key[:2], TEXT) not in expected:
            assert table.loc[key].filter(like="_to_text").isna().all()


@pytest.mark.parametrize("model_type", [marked(t) for t in TERMS])
@pytest.mark.parametrize(("batch_size", "padding"), BATCHES)
def test_every_number(model_type: str, batch_size: int, padding: Any) -> None:
    model = model_of(model_type)
    assert_agrees_with_numpy(model, tiny_inputs(model, batch_size, padding), model_type)


OTHER_DTYPES = [marked(model_type, torch.bfloat16) for model_type in TERMS]
OTHER_DTYPES += [marked(model_type, torch.float64) for model_type in ("llava", "glm4v")]


@pytest.mark.parametrize(("model_type", "dtype"), OTHER_DTYPES)
def test_every_number_in_other_dtypes(model_type: str, dtype: torch.dtype) -> None:
    inputs = tiny_inputs(model_of(model_type), 4)
    model = copy.deepcopy(model_of(model_type)).to(dtype)
    in_dtype = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    assert_agrees_with_numpy(model, in_dtype, model_type)


# --- which types split ----------------------------------------------------------------------------

POST = {"blip", "florence2", "git", "vision-encoder-decoder"}
MULTI_STREAM = {"gemma3n", "glm5_next", "inkling2", "qwen4_exp"}
REFUSED = {
    **dict.fromkeys(POST, "norms stand on the residual itself"),
    **dict.fromkeys(MULTI_STREAM, "the residual is several streams"),
    "muse_spark": "its output is not its input plus",  # its gates weigh each dimension
}
BOTH = {ATTENTION, MLP}
#: By layer; all others have attention and an MLP in each.
SPLITS = {
    "mllama": [BOTH, {CROSS_ATTENTION, MLP}, BOTH],
    "nemotron_h_omni": [{ATTENTION}, {MLP}, {ATTENTION}, {MLP}],
    **dict.fromkeys(("pix2struct", "pp_formulanet"), [{*BRANCHES}] * 3),
}
VIDEOS_ONLY = {"instructblipvideo"}


@pytest.mark.parametrize("model_type", [marked(t) for t in ALL_TYPES if t not in VIDEOS_ONLY])
def test_which_types_split(model_type: str) -> None:
    model = model_of(model_type)
    measured, inputs = MeasuredModel(model, find_parts(model), SPECIAL_IDS), tiny_inputs(model)
    layers = measurement("layers").asking(also=["branches"])
    if model_type in REFUSED:
        with pytest.raises(NormprobeError, match=rf"layers 1-\d: {REFUSED[model_type]}"):
            layers.remarks(measured, lambda: inputs)
        return
    assert layers.remarks(measured, lambda: inputs) == []
    rows = layers.sample_rows(measured, inputs)
    rows = rows[(rows["layer"] > 0) & (rows["group"] != PAIR)]
    found = [
        {name for name in BRANCHES if of_layer[f"{name}_angle_mean"].notna().all()}
        for _, of_layer in rows.groupby("layer")
    ]
    assert found == SPLITS.get(model_type, [BOTH] * len(measured.decoder_layers))


# --- manners --------------------------------------------------------------------------------------


def test_a_run_of_a_type_that_does_not_split_writes_nothing(tmp_path: Any) -> None:
    model = model_of("git")
    with pytest.raises(NormprobeError, match="of GitForCausalLM cannot be told apart") as caught:
        Probe(model).layers(tiny_inputs(model), also=["branches"], output=tmp_path / "run")
    assert caught.value.remedy
    assert not (tmp_path / "run").exists()


def test_layers_that_do_not_split_are_named_once_and_the_others_measured() -> None:
    model = copy.deepcopy(model_of("llava"))
    layer, third = model.model.language_model.layers[1], model.model.language_model.layers[2]
    plain, unseen = layer.forward, third.forward

    def turned(*args: Any, **kwargs: Any) -> torch.Tensor:
        return plain(*args, **kwargs).flip(-1)

    def past_torch(*args: Any, **kwargs: Any) -> torch.Tensor:
        left = unseen(*args, **kwargs)
        left.numpy()[...] += 1
        return left

    layer.forward, third.forward = turned, past_torch
    run = Probe(model).layers(tiny_inputs(model, 2), also=["branches"])
    assert [text for text in run.record["warnings"] if "branches" in text] == [
        "no branches of layer 2: its output is not its input plus what its modules return; "
        "layer 3: what its modules return does not add up to its update"
    ]
    assert set(run.tables["branches"]["layer"]) == {1}


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_all_other_numbers_are_the_same(model_type: str) -> None:
    model = model_of(model_type)
    probe, inputs = Probe(model), tiny_inputs(model, 2)
    hooks = len(hooks_of(model))
    without, with_branches = probe.layers(inputs), probe.layers(inputs, also=["branches"])
    assert not {"branches", "massive", "dimensions"} & set(without.tables)
    for name, table in without.tables.items():
        pd.testing.assert_frame_equal(with_branches.tables[name], table)
    assert len(hooks_of(model)) == hooks


class MlpBesideExperts(toy_layers.Layer):
    """Dense MLP and experts are one branch, added one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = toy_layers.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.first(x))
        normed = self.second(x)
        return x + self.mlp(normed) + self.experts(normed)  # type: ignore[no-any-return]


@torch.no_grad()
def test_all_that_a_branch_adds_is_measured() -> None:
    torch.manual_seed(0)
    layer, seen = MlpBesideExperts(), BranchWatcher()
    x = torch.randn(1, 5, toy_layers.HIDDEN)
    with seen.watching([layer]):
        h = layer(x)
    numbers = dict(zip(seen.metrics, seen.see(1, x, h).double().numpy(), strict=True))
    between = x + layer.attend(layer.first(x))
    state, left = between.double().numpy(), h.double().numpy()
    assert numbers["mlp_update_norm"] == pytest.approx(norm(left - state), rel=1e-4)
    assert numbers["mlp_angle"] == pytest.approx(angle(state, left), rel=1e-4)


def test_parallel_branches_add_up_to_the_update() -> None:
    """Both turn the same x: the mean update norm of the layer lies below the sum of theirs."""
    model = model_of("aya_vision")
    run = Probe(model).layers(tiny_inputs(model, 2), also=["branches"])
    branches = flat(run.tables["branches"]).set_index(["layer", "group", "branch"])
    table = branches["relative_update_mean"]
    sums = table.groupby(["layer", "group"]).sum()
    whole = flat(run.table).set_index(["layer", "group"])["relative_update_mean"]
    assert (whole[sums.index] <= sums * (1 + 1e-5)).all()


@pytest.mark.usefixtures("unrendered")
def test_a_run_with_branches_is_another_run(tmp_path: Any) -> None:
    """The command line writes them, and goes on with a run that has them alone."""
    words = ("layers", "specimen", "--data", "sample", "-n", "2", "-q", "-o", tmp_path / "run")
    done = invoke(*words, "--also", "branches")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run/run.json").read_text())["options"]["also"] == ["branches"]
    table = pd.read_csv(tmp_path / "run/branches.csv")
    assert set(table["branch"]) == {ATTENTION, MLP}
    assert (tmp_path / "run/plots/branches.png").exists()
    other = invoke(*words, "--resume")
    assert other.exit_code == 1
    assert "was measured with --also branches; this command comes without --also" in other.stderr


# --- massive activations -------------------------------------------------------------------------

DIMENSION, HEIGHT = 5, 40_000.0

every_type = pytest.mark.parametrize("model_type", VLM_TYPES)


def sample_rows(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> pd.DataFrame:
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    rows = measurement("layers").asking(also=["massive"]).sample_rows(measured, inputs)
    return rows.assign(image_hash=rows["sample_id"])


def tables(case: Case) -> dict[str, pd.DataFrame]:
    made = massive_tables(sample_rows(case.model, case.inputs))
    return made | {"massive": massive_csv(made["massive"])}


def massive_csv(table: pd.DataFrame) -> pd.DataFrame:
    """A flat massive.csv; how many tokens are left without massive ones, 0 where no number is."""
    keys = ["layer", "group"]
    left = select(table, "norm_without_massive").set_index(keys)["tokens"]
    made = flat(table).set_index(keys)
    return made.assign(tokens_without_massive=left.reindex(made.index).fillna(0)).reset_index()


def test_the_median_of_norms_lies_between_the_two_in_the_middle() -> None:
    values = np.random.default_rng(0).gamma(3.0, size=(3, 6)).astype(np.float32)
    values[1, 2] = values[2, [0, 5]] = np.nan  # six, five and four numbers
    expected = np.nanmedian(values.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(watchers._median(values), expected, rtol=1e-6)


@np.errstate(invalid="ignore")  # padding may be zero
def plain(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """By token, of ``[tokens, hidden]``."""
    magnitudes = np.sort(np.abs(tokens), axis=-1)[:, ::-1]
    squares = magnitudes**2 / (tokens**2).sum(-1, keepdims=True)
    ratio = magnitudes[:, 0] / np.median(magnitudes, axis=-1)
    return {
        "top1_share": squares[:, 0],
        "top10_share": squares[:, :10].sum(-1),
        "peak": magnitudes[:, 0],
        "peak_to_token_median": ratio,
        "massive_by_token_median": (magnitudes[:, 0] > 100) & (ratio >= 1000),
    }


def to_sequence_median(case: Case, layer: int) -> np.ndarray:
    """Of each token its largest magnitude over the median of its whole sequence."""
    found = np.full(case.groups.shape, np.nan)
    for ratios, states, groups in zip(found, state(case, layer), case.groups, strict=True):
        magnitudes = np.sort(np.abs(states[groups != ""]), axis=None)
        ratios[:] = np.abs(states).max(-1) / magnitudes[(magnitudes.size - 1) // 2]
    return found


def massive_tokens(case: Case, layer: int) -> np.ndarray:
    large = np.abs(state(case, layer)).max(-1) > 100
    return large & (to_sequence_median(case, layer) >= 1000) & (case.groups != "")


def state(case: Case, layer: int) -> np.ndarray:
    layers = case.states.layers
    return layers[layer - 1].left if layer else layers[0].entered


def high_norms(case: Case, layer: int, group: str) -> int:
    found = 0
    for sample, groups in enumerate(case.groups):
        if group in members(groups) and members(groups)[group].any():
            norms = np.linalg.norm(state(case, layer)[sample, members(groups)[group]], axis=-1)
            found += (norms >= 3 * np.median(norms)).sum()
    return int(found)


@np.errstate(invalid="ignore")  # padding may be zero
def still(case: Case, layer: int) -> np.ndarray:
    found = np.ones(case.groups.shape, dtype=bool)
    for seen in case.states.layers[:layer]:
        lengths = np.linalg.norm(seen.entered, axis=-1) * np.linalg.norm(seen.left, axis=-1)
        found &= (seen.entered * seen.left).sum(-1) / lengths >= 0.99
    return found


def geometric_means(case: Case, ever: np.ndarray) -> dict[tuple[int, str, str, str], float]:
    """By layer, group, metric and suffix: of the tokens that have a logarithm."""
    found = {}
    masks = [members(groups) for groups in case.groups]
    for (layer, group), seen in observe_layers(case.states, case.groups).items():
        of_samples = [
            kept[mask[group]] for kept, mask in zip(~ever, masks, strict=True) if group in mask
        ]
        kept = np.concatenate(of_samples)
        for name in ("norm", "angle") if layer else ("norm",):
            values = np.concatenate([of_sample.metrics[name] for of_sample in seen])
            for suffix, chosen in (("", values), ("_without_massive", values[kept])):
                positive = chosen[chosen > 0]
                mean = np.exp(np.log(positive).mean()) if positive.size else np.nan
                found[layer, group, name, suffix] = mean
    return found


def assert_massive_agrees(case: Case) -> None:
    """Every number of massive.csv, and the bounds of dimensions.csv, of a batch."""
    found = {name: table.set_index(["layer", "group"]) for name, table in tables(case).items()}
    masks = [members(groups) for groups in case.groups]
    depth = len(case.states.layers)
    ever = np.any([massive_tokens(case, layer) for layer in range(depth + 1)], axis=0)
    observations = observe_layers(case.states, case.groups)
    of_group = geometric_means(case, ever)
    for key, row in found["massive"].iterrows():
        layer, group = key
        mask = np.stack([mask.get(group, np.zeros_like(ever[0])) for mask in masks])
        numbers = plain(state(case, layer)[mask])
        numbers["massive"] = massive_tokens(case, layer)[mask]
        numbers["peak_to_sequence_median"] = to_sequence_median(case, layer)[mask]
        about = {"rtol": 2e-4, "err_msg": f"{key}"}
        for name in ("top1_share", "top10_share", "massive", "massive_by_token_median"):
            np.testing.assert_allclose(row[f"{name}_mean"], numbers[name].mean(), **about)
        for name in ("peak", "peak_to_sequence_median", "peak_to_token_median"):
            np.testing.assert_allclose(row[f"{name}_max"], numbers[name].max(), **about)
        assert row["massive_tokens"] == numbers["massive"].sum()
        assert row["high_norm_tokens"] == high_norms(case, layer, group)
        assert row["sink_tokens"] == 0  # so narrow a state has none
        assert row["still_tokens"] == still(case, layer)[mask].sum()
        kept = ~ever[mask]
        assert row["tokens_without_massive"] == kept.sum()
        metrics = [seen.metrics for seen in observations[key]]
        for name in ("norm", "cosine", "angle") if layer else ("norm",):
            values = np.concatenate([of_sample[name] for of_sample in metrics])
            tolerance = {"rtol": 2e-4, "atol": 2e-4 if name != "norm" else 1e-6}
            for suffix, chosen in (("", values), ("_without_massive", values[kept])):
                mean = chosen.mean() if chosen.size else np.nan
                std = chosen.std() if chosen.size else np.nan
                found_mean, found_std = row.reindex(
                    [f"{name}{suffix}_{of}" for of in ("mean", "std")]
                )
                np.testing.assert_allclose(found_mean, mean, **tolerance)
                np.testing.assert_allclose(found_std, std, **tolerance)
        for name in ("norm", "angle") if layer else ("norm",):
            for suffix in ("", "_without_massive"):
                ratio = of_group[layer, group, name, suffix] / of_group.get(
                    (layer, schema.TEXT, name, suffix), np.nan
                )
                found_ratio = row.get(f"{name}_geometric_ratio_to_text{suffix}", np.nan)
                np.testing.assert_allclose(found_ratio, ratio, rtol=2e-4, err_msg=f"{key} {name}")
        squares = np.square(state(case, layer)[mask])
        shares = squares.sum(axis=0) / squares.sum()
        told = found["dimensions"].loc[[key]]
        held = shares[told["dimension"].to_numpy()]
        assert (told["share"] <= held + 1e-6).all() and (held <= told["share_at_most"] + 1e-6).all()
        if len(case.groups) == 1:  # nothing is merged
            np.testing.assert_allclose(held, np.sort(shares)[::-1][: len(held)], rtol=1e-4)
            np.testing.assert_allclose(told["share"], held, rtol=1e-4)


@every_type
@pytest.mark.parametrize(("batch_size", "padding"), BATCHES)
def test_every_number_of_massive(model_type, batch_size, padding):
    assert_massive_agrees(case_of(model_type, batch_size, padding))


@every_type
def test_nothing_is_massive_where_nothing_was_planted(model_type):
    table = tables(case_of(model_type))["massive"]
    assert not table["massive_tokens"].any()
    assert (table["tokens_without_massive"] == table["tokens"]).all()
    for name in ("norm", "cosine", "angle"):
        with_all, without = table[f"{name}_mean"], table[f"{name}_without_massive_mean"]
        pd.testing.assert_series_equal(with_all, without, check_names=False, rtol=1e-12)


def planted(model_type: str, padding: str, dtype: torch.dtype = torch.float32) -> Case:
    """The first layer makes the last token of each sample massive, and one visual token."""
    model = copy.deepcopy(model_of(model_type)).to(dtype)
    inputs = tiny_inputs(model, 4, padding)
    case = make_case(model, inputs, PARTS[model_type], SPECIAL_IDS)
    counted = torch.from_numpy(case.groups != "")
    last = counted.shape[1] - 1 - counted.flip(1).int().argmax(1)
    visual = int(np.flatnonzero(case.groups[0] == schema.VISUAL)[0])
    places = torch.tensor([[0, visual], *([sample, place] for sample, place in enumerate(last))])
    first = model.get_submodule(PARTS[model_type].decoder_layers)[0]
    forward = first.forward

    def massive_forward(*arguments, **options):
        output = forward(*arguments, **options)
        state = (output[0] if isinstance(output, tuple) else output).clone()
        state[places[:, 0], places[:, 1], DIMENSION] = HEIGHT
        return (state, *output[1:]) if isinstance(output, tuple) else state

    first.forward = massive_forward
    return make_case(model, inputs, PARTS[model_type], SPECIAL_IDS)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3", "paligemma"])
def test_planted_tokens_are_found_and_left_out(model_type, padding):
    case = planted(model_type, padding)
    assert_massive_agrees(case)
    found = {name: table.set_index(["layer", "group"]) for name, table in tables(case).items()}
    visual = found["massive"].xs(schema.VISUAL, level="group")
    after = visual.loc[1:]
    assert visual.loc[0, "massive_tokens"] == 0
    assert after["massive_tokens"].iloc[0] == 1
    assert (visual["tokens"] - visual["tokens_without_massive"]).eq(1).all()
    assert after["norm_mean"].iloc[0] > 10 * after["norm_without_massive_mean"].iloc[0]
    text = found["massive"].xs(schema.TEXT, level="group")
    expected = visual["norm_without_massive_mean"] / text["norm_without_massive_mean"]
    np.testing.assert_allclose(visual["norm_ratio_to_text_without_massive"], expected, rtol=1e-12)
    dimensions = found["dimensions"].loc[(1, schema.TEXT)]
    assert dimensions["dimension"].iloc[0] == DIMENSION


def sentence(change: Callable[[torch.Tensor], None], samples: int = 1) -> str:
    """What is said of a model whose first layer leaves its states changed."""
    model = copy.deepcopy(model_of("llava"))
    first = model.get_submodule(PARTS["llava"].decoder_layers)[0]
    forward = first.forward

    def changed(*arguments, **options):
        state = forward(*arguments, **options).clone()
        change(state)
        return state

    first.forward = changed
    rows = sample_rows(model, tiny_inputs(model, samples))
    found = massive_tables(rows, str)
    named = found.get("massive_tokens")
    return words_of(massive_findings(found["massive"], found["dimensions"], named))


def test_a_sink_is_named_where_it_is():
    """Planted in a visual token, in the first special token, in neither; by both medians."""
    case = case_of("llava")
    groups = case.groups[0]
    for group in (schema.VISUAL, schema.SPECIAL):
        place = int(np.flatnonzero(groups == group)[0])

        def plant(state: torch.Tensor, place: int = place) -> None:
            state[:, place, DIMENSION] = HEIGHT

        text = sentence(plant)
        assert text.startswith(f"Massive tokens: 1 of {(groups == group).sum()} {group} tokens a ")
        assert f"{group} token at position {place}" in text.partition(" is massive after ")[0]
        assert f"up to {HEIGHT // 10:.0f}" in text and f" in dimension {DIMENSION}." in text
        assert "by the median of the token itself" not in text  # it says the same
    token = int(case.inputs["input_ids"][0, place])
    assert f'"{token}", a special token at position {place}, is massive' in text
    assert sentence(lambda state: None).startswith("No token is massive: ")


def test_a_loud_group_is_massive_by_the_median_of_its_sequence_alone():
    """As Sun et al. count: large in all dimensions, next to many quiet tokens."""
    visual = np.flatnonzero(case_of("llava").groups[0] == schema.VISUAL)

    def loud(state: torch.Tensor) -> None:
        state[:, visual[:2]] *= 30_000.0

    text = sentence(loud)
    assert "Massive tokens: 2 of " in text
    assert "Massive by the median of the token itself: none, of any token " in text


def test_which_token_is_massive_in_numbers():
    """Each number of massive_tokens.csv against the states."""
    case = planted("llava", "left")
    table = tables(case)["massive_tokens"]
    assert set(table) == set(declared("normprobe.measurements.layers")["massive_tokens"].columns)
    last = table[(table["group"] == schema.TEXT) & (table["layer"] == 1)]
    assert last["samples"].sum() == 4  # the last token of each sample
    for row in last.itertuples():
        held = []
        for states, groups in zip(state(case, 1), case.groups, strict=True):
            of_sample = states[groups != ""]
            if row.position != len(of_sample) - 1:
                continue
            peak = np.abs(of_sample[row.position])
            assert row.dimension == peak.argmax() == DIMENSION
            everything = np.sort(np.abs(of_sample), axis=None)
            ratio = peak.max() / everything[(everything.size - 1) // 2]
            share = (of_sample[row.position] ** 2).sum() / (of_sample**2).sum()
            held.append((peak.max(), ratio, peak.max() / np.median(peak), share))
        magnitude, ratios, own, shares = np.array(held).T
        assert row.samples == len(held)
        np.testing.assert_allclose(row.magnitude, magnitude.max(), rtol=1e-5)
        np.testing.assert_allclose(row.to_sequence_median, ratios.max(), rtol=1e-4)
        np.testing.assert_allclose(row.to_token_median, own.max(), rtol=1e-4)
        np.testing.assert_allclose(row.share, shares.mean(), rtol=1e-4)


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_bfloat16_states_are_measured_in_float32(model_type):
    if model_type == "mistral3" and not is_line_5():
        pytest.skip("takes no float32 pixels on transformers 4")
    model = copy.deepcopy(model_of(model_type)).to(torch.bfloat16)
    assert_massive_agrees(make_case(model, tiny_inputs(model, 4), PARTS[model_type], SPECIAL_IDS))


def test_float64_states_are_measured_in_float64():
    model = copy.deepcopy(model_of("llava")).to(torch.float64)
    assert_massive_agrees(make_case(model, tiny_inputs(model, 4), PARTS["llava"], SPECIAL_IDS))


def test_a_token_that_is_not_finite_is_not_massive():
    model = copy.deepcopy(model_of("llava"))
    inputs = tiny_inputs(model)
    whole = massive_csv(massive_tables(sample_rows(model, inputs))["massive"])
    last = model.get_submodule(PARTS["llava"].decoder_layers)[-1]
    forward = last.forward

    def broken_forward(*arguments, **options):
        state = forward(*arguments, **options).clone()
        state[:, -1, 0] = torch.inf
        return state

    last.forward = broken_forward
    table = massive_csv(massive_tables(sample_rows(model, inputs))["massive"])
    assert np.isfinite(table["peak_max"]).all()
    assert not table["massive_tokens"].any()
    last_layer = table["layer"] == table["layer"].max()
    pd.testing.assert_frame_equal(table[~last_layer], whole[~last_layer])
    text = table[last_layer].set_index("group").loc[schema.TEXT]
    assert text["tokens"] == whole[last_layer].set_index("group").loc[schema.TEXT, "tokens"] - 1
    assert text["tokens_without_massive"] == text["tokens"]


def test_sinks_are_counted_in_their_groups():
    """A tiny model is too narrow for one: states by hand."""
    h = torch.randn(1, 6, 900, generator=torch.Generator().manual_seed(0))
    h[0, [0, 2, 4], 7] = 200.0  # the first token opens the dimension
    groups = torch.tensor([[2, 0, 0, 0, 3, 3]])
    seen = MassiveActivations().see_groups(1, h, group_masks(groups))
    counts = dict(zip(POOLED_GROUPS, seen[0, :, 0].tolist(), strict=True))
    assert counts == {
        schema.VISUAL: 1,
        schema.STRUCTURAL: 0,
        schema.SPECIAL: 1,
        schema.TEXT: 1,
        schema.NON_VISUAL: 2,
    }
