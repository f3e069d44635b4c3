"""The figure of angular velocity and relative update."""

from support import made_tables

from normprobe.measurements.layers.figures import turning

TABLE = made_tables.layers()


def test_without_quantiles_there_is_no_band():
    update = turning.figure("t", TABLE).axes[1]
    assert not update.collections


def test_angles_below_resolution_are_hollow():
    table = TABLE.copy()
    table.loc[(table["group"] == "visual") & (table["layer"] == 1), "angle_below_resolution"] = True
    figure = turning.figure("t", table)
    hollow = [line for line in figure.axes[0].get_lines() if line.get_markerfacecolor() == "white"]
    assert [tuple(line.get_xydata()[0]) for line in hollow] == [(1, made_tables.VISUAL_ANGLE[1])]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [
        "visual", "text", "special", "structural", "5-95 % of tokens", "below resolution",
    ]  # fmt: skip
