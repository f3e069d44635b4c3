"""Runs side by side, of each measurement: what ranks them, and what stands beside it."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support import made_tables
from support.flat import tidied

from normprobe import Run, compare
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import INTERVAL, select

INTERFACE, ATTENTION = made_tables.interface(), made_tables.attention(layers=3)
EMBEDDINGS, GROUNDING = made_tables.embeddings("text", "visual"), made_tables.grounding()
INPUT = INTERFACE.query("stage == 'decoder_input'").set_index("group")
ROWS = EMBEDDINGS.query("rows == 'nonzero_rows'").set_index("table")


def run(command: str, name: str, table: pd.DataFrame, picture: str = "p", **more: object) -> Run:
    store = RunStore(
        {"command": command, "model": name, "data": "x", "image_hashes": {"x": picture}}
    )
    store.write_table(command, tidied(command, table))
    for other, rows in more.items():
        store.write_table(other, rows)
    store.write_image("image", Image.new("RGB", (60, 40)))
    store.finish()
    return Run(store)


def scaled(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Twice the number in some columns."""
    return table.assign(**{column: 2 * table[column] for column in columns})


@pytest.mark.parametrize(
    ("command", "small", "large", "expected"),
    [
        (
            "interface",
            INTERFACE,
            scaled(INTERFACE, "geometric_ratio_to_prompt"),
            {
                "disparity_input": 2 * INPUT.loc["visual", "geometric_ratio_to_prompt"],
                "ratio_to_table": INPUT.loc["visual", "ratio_to_table"],
                "visual_norm": INPUT.loc["visual", "norm_mean"],
                "text_norm": INPUT.loc["text", "norm_mean"],
            },
        ),
        (
            "embeddings",
            EMBEDDINGS,
            scaled(EMBEDDINGS, "norm_max"),
            {
                "loudest_ratio": 2 * ROWS.loc["text", "norm_max"] / ROWS.loc["text", "norm_mean"],
                "visual_ratio": ROWS.loc["visual", "norm_mean"] / ROWS.loc["text", "norm_mean"],
                "text_norm": ROWS.loc["text", "norm_mean"],
                "text_std": ROWS.loc["text", "norm_std"],
            },
        ),
        (
            "grounding",
            GROUNDING,
            scaled(GROUNDING, "score_gap"),
            {
                "score_gap": 2 * 0.6,  # layers 1 to 4
                "cosine_gap": 0.03,
                "weight_ratio": np.exp(2 * 0.6),
            },
        ),
        (
            "attention",
            ATTENTION,
            scaled(ATTENTION, "even_share_mean"),
            {
                "share": np.mean([0.6, 0.6 / 3]),  # layers that attend, of all text
                "share_to_even": np.mean([0.6, 0.6 / 3]) / 1.8,
                "entropy": np.mean([0.79, 0.77]),
                "vertical_center": np.mean([0.52, 0.56]),
            },
        ),
    ],
)
def test_the_larger_disparity_ranks_first(
    command: str, small: pd.DataFrame, large: pd.DataFrame, expected: dict[str, float]
) -> None:
    ranking = compare([run(command, "small", small), run(command, "large", large)]).table
    assert ranking["run"].iloc[0] == "large"
    first = ranking[ranking["run"] == "large"].set_index("quantity")["mean"]
    assert first[list(expected)].to_dict() == pytest.approx(expected)
    measured = ranking[~ranking["quantity"].isin(["rank", "inertia_rank"])]
    assert measured[[*INTERVAL]].isna().all(axis=None)  # no sample rows, no intervals


def test_intervals_of_the_interface_are_those_of_its_table() -> None:
    ends = {f"geometric_ratio_to_prompt_ci_{end}": at for end, at in (("low", 2.5), ("high", 3.5))}
    runs = [run("interface", name, INTERFACE.assign(**ends)) for name in "ab"]
    first = compare(runs).table.query("run == 'a'").set_index("quantity")
    assert first.loc["disparity_input", [*INTERVAL]].tolist() == [2.5, 3.5]
    assert np.isnan(first.loc["text_norm", "low"])


def test_a_run_without_scores_has_no_rank() -> None:
    runs = [run("grounding", "a", GROUNDING.assign(score_gap=np.nan))]
    found = compare([*runs, run("grounding", "b", GROUNDING)]).table
    assert found["run"].unique().tolist() == ["b", "a"]
    last = found[found["run"] == "a"].set_index("quantity")["mean"]
    assert pd.isna(last["rank"])
    assert last["cosine_gap"] > 0


def test_maps_of_one_picture_stand_below_each_other() -> None:
    maps = made_tables.heatmaps(layers=(2, 7))
    quiet = maps.assign(attention=0.01)
    found = compare(
        [
            run("attention", name, ATTENTION, heatmaps=own)
            for name, own in (("a", maps), ("b", quiet))
        ]
    )
    joined = found.tables["heatmaps"]
    assert joined.groupby("run", sort=False).size().to_dict() == dict.fromkeys("ab", len(maps))
    drawn = found.figures()["heatmaps"]
    titles = [axes.get_title() for axes in drawn.axes if axes.get_title()]
    pairs = [(name, query) for query in ("all text", "red cup") for name in "ab"]
    assert titles == [f"{name}, {query}\nlayer {n}" for name, query in pairs for n in (2, 7)]


@pytest.mark.parametrize(("picture", "maps"), [("other", True), ("p", False)])
def test_maps_of_other_pictures_or_none_are_not_paired(picture: str, maps: bool) -> None:
    drawn = {"heatmaps": made_tables.heatmaps()}
    other = run("attention", "b", ATTENTION, picture, **(drawn if maps else {}))
    found = compare([run("attention", "a", ATTENTION, **drawn), other])
    assert "heatmaps" not in found.tables
    assert list(found.figures()) == ["compare_attention", "ranking"]


def test_visual_states_beside_the_sequence_are_another_number() -> None:
    beside = INTERFACE[(INTERFACE["stage"] != "decoder_input") | (INTERFACE["group"] != "visual")]
    found = compare([run("interface", "a", INTERFACE), run("interface", "b", beside)]).table
    assert found["run"].unique().tolist() == ["a", "b"]
    disparity, attended = (
        select(found, name)["mean"].tolist() for name in ("disparity_input", "attended_ratio")
    )
    assert np.isnan([disparity, attended]).tolist() == [[False, True], [True, False]]
    states = INTERFACE.query("stage == 'projector_output' and group == 'visual'")
    assert attended[1] == states["geometric_ratio_to_prompt"].item()
    layers = made_tables.layers()
    beside = layers[(layers["group"] != "visual") | (layers["layer"] == 0)]
    found = compare([run("layers", "a", layers), run("layers", "b", beside)]).table
    disparity, attended, rank = (
        select(found, name)["mean"].tolist()
        for name in ("disparity_input", "attended_ratio", "rank")
    )
    assert attended[1] == disparity[0]
    assert np.isnan(disparity[1]) and np.isnan(rank[1])


def test_maps_of_steps_out_of_order_keep_their_labels() -> None:
    maps = made_tables.heatmaps()
    late = run("attention", "late", ATTENTION, heatmaps=maps.assign(attention=0.01))
    early = run("attention", "early", ATTENTION, heatmaps=maps)
    joined = compare([late, early], ["20", "10"]).tables["heatmaps"]
    means = joined.groupby("run", sort=False)["attention"].mean()
    assert list(means.index.astype(str)) == ["10", "20"]
    assert means.tolist() == pytest.approx([maps["attention"].mean(), 0.01])
