"""A number of one's own against float64 NumPy over captured states, and what goes wrong with it."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.capture import Array
from support.cases import Case, case_of, make_case, model_of
from support.expected_parts import PARTS
from support.flat import flat
from support.reference import members
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from torch import Tensor

from normprobe import NormprobeError, find_parts, per_pair
from normprobe.measurements import measurement
from normprobe.measurements.layers import Layers
from normprobe.measurements.layers.also import OwnNumbers
from normprobe.measurements.layers.figures import drawings
from normprobe.measurements.layers.table import tables
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.figures.draw import build
from normprobe.runs.run_folder import RunStore
from normprobe.schema import SPECIAL, TEXT, TOKEN_GROUPS, VISUAL
from normprobe.statistics.token_metrics import POOLED_GROUPS, group_masks
from normprobe.tidy import INTERVAL, select

FILE = """
import torch
from normprobe import per_group, per_pair, per_token


def mean(h, mask):
    return (h * mask.unsqueeze(-1)).sum(1) / mask.sum(-1, keepdim=True)


@per_token(words="what the layer adds, by the largest magnitude", unit="ratio", name="moved")
def by_another_name(x, h):
    return (h - x).abs().amax(-1) / x.abs().amax(-1)


@per_token(words="mean of those above zero", unit="1", equation="$m > 0$")
def positive(x, h):
    return h.mean(-1).where(h.mean(-1) > 0, torch.nan)


@per_group(words="norm of the mean state", unit="norm")
def mean_norm(h, mask):
    return mean(h, mask).norm(dim=-1)


@per_pair(words="distance of the means", unit="norm")
def distance(h, visual, text):
    return (mean(h, visual) - mean(h, text)).norm(dim=-1)


def plain(x, h):
    return h.mean(-1)
"""
NAMES = ("by_another_name", "positive", "mean_norm", "distance")
TYPES = ("llava", "qwen2_5_vl", "gemma3", "paligemma")


@pytest.fixture(scope="module")
def my(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("own") / "my.py"
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def layers(my: Path) -> Layers:
    return measurement("layers").asking(also=[f"{my}:{name}" for name in NAMES])


def rows_of(measurement: Layers, case: Case) -> pd.DataFrame:
    measured = MeasuredModel(case.model, find_parts(case.model), SPECIAL_IDS)
    rows = measurement.sample_rows(measured, case.inputs)
    return rows.assign(image_hash=rows["sample_id"])


def layers_csv(measurement: Layers, case: Case) -> pd.DataFrame:
    measured = MeasuredModel(case.model, find_parts(case.model), SPECIAL_IDS)
    table = flat(tables(rows_of(measurement, case), measured)["layers"])
    assert set(table["layer"]) == set(range(len(case.states.layers) + 1))
    return table.set_index(["layer", "group"])


# --- the numbers ---------------------------------------------------------------------------------


def moved(x: Array, h: Array) -> Array:
    return np.abs(h - x).max(-1) / np.abs(x).max(-1)


def positive(x: Array, h: Array) -> Array:
    return np.where(h.mean(-1) > 0, h.mean(-1), np.nan)


def of_tokens(values: list[Array]) -> dict[str, float]:
    """Of the tokens of each sample, those that are NaN left out."""
    known = [tokens[~np.isnan(tokens)] for tokens in values]
    means = [tokens.mean() for tokens in known if tokens.size]
    if not means:
        return dict.fromkeys(("mean", "std", "sample_mean", "sample_std"), np.nan)
    together = np.concatenate(known)
    numbers = {"mean": together.mean(), "std": together.std()}
    return numbers | {"sample_mean": np.mean(means), "sample_std": np.std(means)}


def expected(case: Case) -> dict[tuple[int, str], dict[str, float]]:
    """By layer and group, the columns of a flat layers.csv."""
    seen = case.states.layers
    states = [(seen[0].entered, seen[0].entered), *((layer.entered, layer.left) for layer in seen)]
    masks = [members(groups) for groups in case.groups]
    found = {}
    for number, (x, h) in enumerate(states):
        for group in {group for of_sample in masks for group in of_sample}:
            of_group = [
                (before[mask[group]], after[mask[group]], mask, after)
                for before, after, mask in zip(x, h, masks, strict=True)
                if mask.get(group, np.zeros(1)).any()
            ]
            row: dict[str, float] = {}
            for name, function in {"moved": moved, "positive": positive}.items():
                numbers = of_tokens([function(before, after) for before, after, *_ in of_group])
                row |= {f"{name}_{part}": value for part, value in numbers.items()}
            norms = [np.linalg.norm(after.mean(0)) for _, after, *_ in of_group]
            row |= {"mean_norm_mean": np.mean(norms), "mean_norm_std": np.std(norms)}
            between = [
                np.linalg.norm(after[mask[VISUAL]].mean(0) - after[mask[TEXT]].mean(0))
                for *_, mask, after in of_group
                if group == VISUAL and mask[TEXT].any()
            ]
            row["distance_mean"] = np.mean(between) if between else np.nan
            row["distance_std"] = np.std(between) if between else np.nan
            found[number, group] = row
    return found


def assert_agrees(layers: Layers, case: Case) -> None:
    table, numbers = layers_csv(layers, case), expected(case)
    assert set(table.index) == set(numbers)
    for key, row in numbers.items():
        for column, value in row.items():
            about = pytest.approx(value, rel=2e-4, abs=1e-6, nan_ok=True)
            assert table.loc[key, column] == about, (key, column)


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize(("batch_size", "padding"), [(1, "right"), (3, "right"), (3, "left")])
def test_every_number(layers: Layers, model_type: str, batch_size: int, padding: Any) -> None:
    assert_agrees(layers, case_of(model_type, batch_size, padding))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("model_type", TYPES[:3])
def test_every_number_in_other_dtypes(layers: Layers, model_type: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(model_of(model_type)).to(dtype)
    inputs = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in tiny_inputs(model, 3).items()
    }
    assert_agrees(layers, make_case(model, inputs, PARTS[model_type], SPECIAL_IDS))


def test_text_alone_has_no_pair(layers: Layers) -> None:
    case = case_of("llama")
    table = layers_csv(layers, case)
    assert not [name for name in table if name.startswith("distance")]
    assert table["mean_norm_mean"].notna().all()


def test_a_pair_is_a_number_of_samples_with_visual_and_text_tokens_alone() -> None:
    """Also where the function finds one: a sum over no tokens is 0."""

    @per_pair(words="distance of the sums", unit="norm")
    def between(h: Tensor, visual: Tensor, text: Tensor) -> Tensor:
        sums = [(h * mask.unsqueeze(-1)).sum(1) for mask in (visual, text)]
        return (sums[0] - sums[1]).norm(dim=-1)

    groups = [(VISUAL, TEXT), (VISUAL, VISUAL), (TEXT, TEXT), (SPECIAL, SPECIAL)]
    codes = torch.tensor([[TOKEN_GROUPS.index(group) for group in names] for names in groups])
    h = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 2, 8)))
    found = OwnNumbers([between]).see_groups(1, h, group_masks(codes))
    by_hand = np.full((4, len(POOLED_GROUPS), 1), np.nan)
    states = h.numpy()[0]
    by_hand[0, POOLED_GROUPS.index(VISUAL)] = np.linalg.norm(states[0] - states[1])
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)


@pytest.mark.parametrize("names", [[name] for name in NAMES])
def test_one_alone_is_the_same(layers: Layers, my: Path, names: list[str]) -> None:
    case, alone = case_of("llava"), measurement("layers").asking(also=[f"{my}:{n}" for n in names])
    own = [column for column in rows_of(alone, case) if column.startswith("own_")]
    assert own
    pd.testing.assert_frame_equal(rows_of(alone, case)[own], rows_of(layers, case)[own])


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_measured_beside_them_is_unchanged(layers: Layers, order: int) -> None:
    case, plain = case_of("qwen2_5_vl"), measurement("layers")
    everything = plain.asking(also=[*layers.watching, "branches", "massive"][::order])
    rows = rows_of(everything, case)
    for fewer in (plain, plain.asking(also=["branches"]), plain.asking(also=["massive"]), layers):
        expected = rows_of(fewer, case)
        pd.testing.assert_frame_equal(rows[expected.columns], expected)


# --- what follows --------------------------------------------------------------------------------

COLUMNS = [
    *(f"{name}_{part}" for name in ("moved", "positive") for part in ("mean", "sample_mean")),
    *("mean_norm_mean", "distance_mean"),
]


def test_columns_come_last_with_intervals_over_images(layers: Layers) -> None:
    table = layers_csv(layers, case_of("llava"))
    plain = layers_csv(measurement("layers"), case_of("llava"))
    pd.testing.assert_frame_equal(table[plain.columns], plain)
    assert not [name for name in table if name.startswith("own_")]
    visual = table.xs(VISUAL, level="group")
    for column in COLUMNS:
        low, high = visual[f"{column}_ci_low"], visual[f"{column}_ci_high"]
        behind = visual.index > (0 if "moved" in column else -1)  # the decoder input moves nothing
        assert (low < visual[column])[behind].all() and (visual[column] < high)[behind].all()
    one = rows_of(layers, case_of("llava")).assign(image_hash="the only one")
    model = MeasuredModel(model_of("llava"), find_parts(model_of("llava")), SPECIAL_IDS)
    alone = tables(one, model)["layers"]
    assert not {*INTERVAL} & {*alone}
    moved = select(alone, "moved")
    assert len(moved) == len(table) and moved["mean"].notna().all()


def test_a_run_keeps_what_shows_them_without_the_file(layers: Layers) -> None:
    facts = layers.own_numbers
    assert list(facts) == ["moved", "positive", "mean_norm", "distance"]
    assert [of["per"] for of in facts.values()] == ["token", "token", "group", "pair"]
    assert facts["positive"]["words"] == "mean of those above zero"
    assert (facts["positive"]["equation"], facts["positive"]["unit"]) == ("$m > 0$", "1")
    assert "return h.mean(-1).where(h.mean(-1) > 0, torch.nan)" in facts["positive"]["code"]
    run = RunStore({"own_numbers": facts})
    case = case_of("llava")
    measured = MeasuredModel(case.model, find_parts(case.model), SPECIAL_IDS)
    run.write_table("layers", tables(rows_of(layers, case), measured)["layers"])
    table = layers_csv(layers, case).reset_index()
    own = build(drawings(run), run)["own"]
    told = [f"{of['words']} ({of['unit']})" for of in facts.values()]
    assert [axes.get_title(loc="left")[4:] for axes in own.axes if axes.axison] == told
    for axes, name in zip(own.axes, facts, strict=False):
        line = next(line for line in axes.get_lines() if line.get_label() == VISUAL)
        expected = table.loc[table["group"] == VISUAL, f"{name}_mean"]
        np.testing.assert_array_equal(line.get_ydata(), expected)


def test_without_own_numbers_a_run_keeps_none() -> None:
    assert measurement("layers").asking(also=["branches", "massive"]).own_numbers == {}
    assert measurement("interface").own_numbers == {}


def test_a_decorated_function_is_called_as_before(my: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(FILE, my, "exec"), names)  # as a notebook has it
    x, h = torch.ones(1, 2, 4), torch.full((1, 2, 4), 3.0)
    assert names["by_another_name"](x, h).tolist() == [[2.0, 2.0]]


# --- what goes wrong -----------------------------------------------------------------------------


def refused(layers: Layers) -> NormprobeError:
    """What is said before anything slow is done."""
    model = model_of("llava")
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    with pytest.raises(NormprobeError) as caught:
        layers.remarks(measured, lambda: tiny_inputs(model))
    return caught.value


PREFIX = "from normprobe import per_group, per_pair, per_token\n"
TOKEN = '@per_token(words="w", unit="1")\ndef mine(x, h):\n'


@pytest.mark.parametrize(
    ("code", "line", "problem"),
    [
        (TOKEN + "    y = h + 1\n    return y.no_such()\n", 5, "AttributeError: 'Tensor' object"),
        (
            TOKEN + "    return helper(h)\ndef helper(h):\n    raise ValueError('odd')\n",
            6,
            "ValueError",
        ),
        (TOKEN + "    return h.mean()\n", 2, "mine returns (): expected a tensor of shape (1, "),
        (TOKEN + "    return 1.5\n", 2, "mine returns float: expected a tensor of shape (1, "),
        (TOKEN + "    return h\n", 2, "mine returns (1, "),
        ("import no_such_module\n", 2, "ModuleNotFoundError: No module named"),
        ("x = (\n", 2, "SyntaxError: '(' was never closed"),
        (TOKEN.replace("x, h", "h") + "    return h.mean(-1)\n", None, "TypeError: mine() takes 1"),
    ],
)
@pytest.mark.parametrize("relative", [False, True])
def test_a_fault_names_the_file_and_line_of_the_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    line: int | None,
    problem: str,
    relative: bool,
) -> None:
    (tmp_path / "my.py").write_text(PREFIX + code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    file = "my.py" if relative else str(tmp_path / "my.py")
    error = refused(measurement("layers").asking(also=[f"{file}:mine"]))
    where = error.problem.partition(": ")[0]
    assert where.endswith(f"my.py:{line}" if line else "my.py")
    assert problem in error.problem
    assert error.remedy


@pytest.mark.parametrize("kind", ["group", "pair"])
def test_a_number_of_a_group_is_one_a_sample(tmp_path: Path, kind: str) -> None:
    arguments = {"group": "h, mask", "pair": "h, visual, text"}[kind]
    head = f'@per_{kind}(words="w", unit="1")\ndef mine({arguments}):\n'
    (tmp_path / "my.py").write_text(PREFIX + head + "    return h.mean(-1)\n", encoding="utf-8")
    error = refused(measurement("layers").asking(also=[f"{tmp_path / 'my.py'}:mine"]))
    assert "expected a tensor of shape (1,)" in error.problem
    assert f"a number per {kind} is described in docs/how-to/own-number.md" == error.remedy


@pytest.mark.parametrize(
    ("named", "problem", "remedy"),
    [
        ("{}:plain", "my.py holds no number plain: expected a function decorated with", "positive"),
        ("{}:nothing", "my.py holds no number nothing", "it holds by_another_name, positive, "),
        (
            "no_such.py:mine",
            "--also no_such.py:mine: expected branches, massive, headroom, or FILE.py:NAME",
            "",
        ),
        (".py:mine", "of a file that is there", "docs/how-to/own-number.md shows one"),
    ],
)
def test_a_number_that_is_not_there(my: Path, named: str, problem: str, remedy: str) -> None:
    error = refused(measurement("layers").asking(also=[named.format(my)]))
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize("named", [["{}:positive"] * 2, ["branches", "massive", "branches"]])
def test_two_of_a_name_are_refused(my: Path, named: list[str]) -> None:
    error = refused(measurement("layers").asking(also=[name.format(my) for name in named]))
    name = "positive" if "{}" in named[0] else "branches"
    assert error.problem == f"--also names {name} twice"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("token", "norm"), ("group", "pooled_cosine"), ("group", "norm_ratio_to_text")],
)
def test_a_name_that_is_taken_is_refused(my: Path, tmp_path: Path, kind: str, name: str) -> None:
    code = f'@per_{kind}(words="w", unit="1")\ndef {name}(x, h):\n    return h.mean(-1)\n'
    (tmp_path / "my.py").write_text(PREFIX + code, encoding="utf-8")
    asked = [f"{my}:by_another_name", f"{tmp_path / 'my.py'}:{name}"]
    error = refused(measurement("layers").asking(also=asked))
    assert error.problem.endswith(f"{name}: layers.csv has a quantity {name} already")


def test_others_are_named_by_looking_at() -> None:
    with pytest.raises(NormprobeError, match="layers does not measure heads: expected one of bra"):
        measurement("layers").asking(also=["branches", "heads"])
    with pytest.raises(NormprobeError, match=r"interface does not measure my\.py:mine"):
        measurement("interface").asking(also=["my.py:mine"])
