"""Sentences of hand-made tables at the borders of what may be said, read by a separate checker."""

import re
from collections.abc import Sequence
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import made_massive, made_tables
from support.border_tables import (
    BORDERS,
    UNUSABLE,
    WITHOUT_ENDS,
    Triple,
    branches_csv,
    layers_csv,
    ratio_columns,
    run_of,
    sample_rows,
    shares_csv,
    tables_of,
)
from support.flat import flat, theory_column, tidied
from support.golden import CASES, SENTENCES, Case
from support.sentence_check import (
    claims_of,
    complaints,
    layer_complaints,
    lines,
    lines_about,
    numbers_of,
    own_state,
    words_of,
)

from normprobe.errors import NormprobeError
from normprobe.extensions.pictures.attention.words import attention_verdict
from normprobe.extensions.pictures.grounding.shown import grounding_verdict
from normprobe.extensions.survey.shown import verdict as survey_verdict
from normprobe.measurements.embeddings.words import embeddings_sentences
from normprobe.measurements.interface.words import interface_sentences
from normprobe.measurements.layers import words as layers_words
from normprobe.measurements.layers.accounted import accounted_findings
from normprobe.measurements.layers.assumptions import CRITERIA, theory_findings
from normprobe.measurements.layers.branches import branches_findings
from normprobe.measurements.layers.massive import massive_findings
from normprobe.report.ranking import measures_table, ranking_sentences
from normprobe.report.ratio_words import Estimate, Ratio
from normprobe.report.sentences import (
    LayerPhrases,
    carried_sentence,
    correlation_sentence,
    correlation_table,
    in_some_samples,
    layer_findings,
)
from normprobe.report.verdict import Finding, verdict_of
from normprobe.run import load_run
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import BAND, INTERVAL, select

TEXT = "text"
CLOSING = "[ ]: 95 % interval (bootstrap over images)."
PRE, POST = "pre: the paper's theory applies", "post: the paper's theory is about pre-norm"


VERDICTS = {
    "interface": lambda table: verdict_of(*interface_sentences(table)),
    "grounding": grounding_verdict,
    "attention": attention_verdict,
    "embeddings": lambda table: verdict_of(*embeddings_sentences(table)),
}
FINDINGS = {
    "accounted": accounted_findings,
    "branches": branches_findings,
    "massive": massive_findings,
}


def said(name: str, table: pd.DataFrame, *others: pd.DataFrame, closing: str = CLOSING) -> str:
    """What a flat table of that name says."""
    if name in VERDICTS:
        return str(VERDICTS[name](tidied(name, table)))
    return among(FINDINGS[name](tidied(name, table), *others), closing)


def among(findings: Sequence[Finding], closing: str = CLOSING) -> str:
    """Findings as those of a verdict."""
    return str(verdict_of("A headline.", findings, closing))


def verdict(run: RunStore) -> str:
    return str(layers_words.verdict(run))


def ranked(table: pd.DataFrame, *others: Any) -> str:
    return str(verdict_of(*ranking_sentences(table, *others)))


def accept(text: str, **known: Any) -> None:
    found = complaints(text, **known)
    assert not found, "\n".join([*found, text])


def by_layer(ratios: Sequence[Triple]) -> dict[int, Triple]:
    return dict(enumerate(ratios, start=1))


def sequence(seed: int) -> list[Triple]:
    """Layers at borders: of few kinds or of many, some of them without a number."""
    random = np.random.default_rng(seed)
    depth = (1, 2, 3, 5, 8, 32, 80)[seed % 7]
    kinds = random.choice(len(BORDERS), 1 + seed % 5)
    found = [BORDERS[kinds[place]] for place in random.integers(len(kinds), size=depth)]
    if seed % 3 == 0:
        found[random.integers(depth)] = UNUSABLE[seed % 4]
    return found


_NORMS = "Visual tokens have a|Norm of visual and text"
_ANGLES = "Visual tokens turn|Angle of visual"
_READ = "Attention reads visual|Norm that attention reads"


# --- layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [*BORDERS, *WITHOUT_ENDS], ids=str)
def test_one_layer_at_every_border(ratio: Triple) -> None:
    samples = 20 if ratio in BORDERS else 1
    text = verdict(run_of({"layers": layers_csv(ratio, [ratio], [ratio], samples)}))
    accept(text)
    assert {claim.state for claim in claims_of(text)} == {own_state(*ratio)}
    for pattern in (_NORMS, _ANGLES, _READ):
        assert not layer_complaints(lines_about(text, pattern), {1: ratio})


@pytest.mark.parametrize("seed", range(35))
def test_many_layers(seed: int) -> None:
    norms, angles = sequence(seed), sequence(seed + 7_000)
    text = verdict(run_of({"layers": layers_csv(BORDERS[seed % len(BORDERS)], norms, angles)}))
    accept(text)
    assert not layer_complaints(lines_about(text, _NORMS), by_layer(norms))
    assert not layer_complaints(lines_about(text, _ANGLES), by_layer(angles))


@pytest.mark.parametrize("depth", [2, 8, 80])
@pytest.mark.parametrize("way", ["alternating", "equal", "unknown", "one image"])
def test_regular_layers(depth: int, way: str) -> None:
    slow, fast, equal = (0.5, 0.4, 0.6), (2.0, 1.6, 2.5), (1.0, 1.0, 1.0)
    ratios = {
        "alternating": [(slow, fast)[layer % 2] for layer in range(depth)],
        "equal": [equal] * depth,
        "unknown": [UNUSABLE[0]] * depth,
        "one image": [((0.5, 1.0, 2.0)[layer % 3], nan, nan) for layer in range(depth)],
    }[way]
    for where in ("after", "in"):
        words = LayerPhrases(
            "angle", "They turn more quickly", "They turn more slowly", "Angle", where
        )
        told = layer_findings({n: Ratio(*r) for n, r in by_layer(ratios).items()}, words)
        assert not layer_complaints([each.words for each in told], by_layer(ratios))
    table = layers_csv(ratios[0], ratios, ratios, 1 if way == "one image" else 20)
    accept(verdict(run_of({"layers": table})))


@pytest.mark.parametrize("entry", [BORDERS[0], BORDERS[2], *WITHOUT_ENDS[:2], UNUSABLE[0]], ids=str)
@pytest.mark.parametrize("ratio", [BORDERS[0], UNUSABLE[0], UNUSABLE[1]], ids=str)
def test_what_is_not_known_is_not_told(entry: Triple, ratio: Triple) -> None:
    samples = 1 if entry in WITHOUT_ENDS else 20
    ratio = ratio if samples > 1 else (ratio[0], nan, nan)
    accept(verdict(run_of({"layers": layers_csv(entry, [ratio] * 3, [ratio] * 3, samples)})))


@pytest.mark.parametrize("entry", [*BORDERS[:12], *WITHOUT_ENDS[:3]], ids=str)
def test_visual_states_that_are_attended(entry: Triple) -> None:
    table = layers_csv(entry, [BORDERS[0]] * 2, [BORDERS[0]] * 2, 1 if entry in WITHOUT_ENDS else 9)
    table = table[(table["group"] == TEXT) | (table["layer"] == 0)]
    text = verdict(run_of({"layers": table}))
    accept(text)
    assert "Text attends to visual states" in text
    assert "layers 1" not in text


def test_an_empty_table_says_nothing() -> None:
    table = layers_csv(BORDERS[0], [BORDERS[0]], [BORDERS[0]])
    assert verdict(run_of({"layers": table.iloc[:0]})) == ""


# --- sample rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize(
    ("images", "depth", "loudness", "placement"),
    [
        (1, 3, 20.0, PRE),
        (1, 2, 20.0, POST),
        (2, 1, 1.0, PRE),
        (5, 3, 1.15, PRE),
        (5, 3, 3.0, POST),
        (5, 8, 1e6, PRE),
        (10, 3, 1e-3, PRE),
        pytest.param(6, 80, 0.9, PRE, marks=pytest.mark.slow),
    ],
)
def test_sample_rows(
    images: int, depth: int, loudness: float, placement: str, spread: float
) -> None:
    rows = sample_rows(images, depth=depth, loudness=loudness, spread=spread)
    made = tables_of(rows, placement)
    text = verdict(run_of(made, placement))
    accept(text, pre_norm=placement == PRE)
    layers = made["layers"][made["layers"]["layer"] > 0]
    for pattern, metric in ((_NORMS, "norm"), (_ANGLES, "angle")):
        ratios = select(layers, f"{metric}_geometric_ratio_to_text", group="visual")
        numbers = ratios.set_index("layer")[["mean", *BAND]].astype(float)
        bands = {int(layer): tuple(row) for layer, *row in numbers.itertuples()}
        assert not layer_complaints(lines_about(text, pattern), bands)
    assert "[" in text or images == 1
    assert ("assumption" in text) == (placement == PRE)


@pytest.mark.parametrize("layers", [(20, 20, 20, 1, 0.1, 0.1, 20), (20, 1, 20, 0.1, 20, 1, 0.1, 1)])
def test_a_sign_that_changes_between_layers(layers: Sequence[float]) -> None:
    """Eq. 13 accounts for the layers that turn so, and for no other."""
    depth = len(layers) - 1
    made = tables_of(sample_rows(8, depth=depth, loudness=layers, spread=0.6), PRE)
    text = verdict(run_of(made))
    accept(text)
    accounted = re.findall(r"norms account for .* of turning (more .*)\.", text)
    turning = re.findall(r"^- Visual tokens turn (more .*): ", text, flags=re.MULTILINE)
    assert len(accounted) == 2
    assert {told.replace(" than text tokens", "") for told in turning} == {*accounted}


def test_several_questions_about_one_image_have_no_interval() -> None:
    rows = sample_rows(1, questions=6)
    text = verdict(run_of(tables_of(rows, PRE)))
    accept(text)
    assert "One image, no intervals." in text


def test_samples_without_an_image_do_not_turn_the_arithmetic_round() -> None:
    """Eq. 13 is about samples with both modalities, the ratios about all text tokens."""
    text = sample_rows(24, visual=False, spread=0.05)
    text["sample_id"] += " text"
    text["angle_log_mean"] += np.log(3.0)
    rows = pd.concat([sample_rows(24, loudness=0.8, spread=0.05), text], ignore_index=True)
    told = verdict(run_of(tables_of(rows, PRE)))
    accept(told)
    assert lines_about(told, "Visual tokens turn more slowly than text tokens in layers 1-3")
    assert "In samples with an image alone, turning more slowly is inconclusive in layers" in told


def test_text_alone_says_how_it_grows() -> None:
    text = verdict(run_of(tables_of(sample_rows(3, visual=False), PRE)))
    assert text.startswith("Text tokens leave layer 3 with ")
    assert "of visual tokens and their inertia this run says nothing" in text
    assert text.count("visual") == 1


def test_a_massive_text_token_does_not_turn_the_headline_round() -> None:
    """One of 88 text tokens has norm 2000, in each of ten images."""
    plain, massive = (
        tables_of(sample_rows(10, loudness=60.0, spread=0.1, massive=norm), PRE)
        for norm in (None, 2000.0)
    )
    text = verdict(run_of(massive))
    accept(text)
    before, after = (claims_of(verdict(run_of(made)))[0] for made in (plain, massive))
    assert before.state == after.state == "above"
    assert before.numbers[0] == pytest.approx(60, rel=0.1)
    # One of 88 logarithms: exp(log(2000) / 88) is 1.09.
    assert after.numbers[0] == pytest.approx(before.numbers[0] / 1.09, rel=0.02)
    _, arithmetic, *_ = claims_of(text)
    assert arithmetic.text.startswith("By arithmetic means")
    assert arithmetic.state == "above" and arithmetic.numbers[0] < 3
    (carried,) = re.findall(".*mean norm of text tokens is .* their median.*", text)
    assert "mean norm of text tokens is 24 x their median" in carried
    assert "holds 96 % of it, in 10 of 10 samples" in carried
    assert '"." at position 76.' in text
    assert "their median" not in verdict(run_of(plain))


@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_a_token_is_blamed_for_a_mean_where_it_carries_it(spread: float) -> None:
    """Norms that spread as exp(N(0, 1)) have a mean of 1.65 medians, whoever is loudest."""
    rows = sample_rows(6, loudness=20.0, spread=spread, massive=None if spread else 200.0)
    text = verdict(run_of(tables_of(rows, PRE)))
    accept(text)
    (told,) = re.findall(".*mean norm of text tokens is .* their median.*", text)
    assert ("no single token makes it so." in told) == (spread > 0), told
    assert ("the loudest token of a sample holds" in told) == (spread == 0)


@pytest.mark.parametrize(("share", "blamed"), [(0.166, False), (0.168, True)])
def test_one_token_makes_a_mean_from_half_of_what_parts_it_from_the_median(
    share: float, blamed: bool
) -> None:
    row = {"layer": 1, "group": TEXT, "norm_mean": 1.5001, "norm_q50": 1.0, "samples": 2}
    rows = pd.DataFrame([{**row, "loudest_share": share}])
    loudest = {"layer": 1, "group": TEXT, "token": "a", "position": 3, "samples": 1}

    def told(rows: pd.DataFrame) -> str:
        return carried_sentence(tidied("layers", rows), pd.DataFrame([loudest]), TEXT)

    assert ("no single token" in told(rows)) != blamed
    assert "position" not in told(rows)
    bare = told(rows.assign(loudest_share=nan))
    assert bare == "After layer 1 the mean norm of text tokens is 1.50 x their median."


# --- of how many samples ------------------------------------------------------------------------


def held_by(table: pd.DataFrame, group: str, samples: int) -> pd.DataFrame:
    """A table in which fewer samples hold the tokens of a group."""
    chosen = table["group"] == group
    return table.assign(samples=table["samples"].mask(chosen, samples))


@pytest.mark.parametrize(("visual", "text"), [(20, 20), (3, 20), (20, 1), (1, 2)])
@pytest.mark.parametrize("entry", [BORDERS[0], BORDERS[1], BORDERS[2], UNUSABLE[0]], ids=str)
def test_layers_say_of_how_many_samples_they_are(entry: Triple, visual: int, text: int) -> None:
    table = held_by(layers_csv(entry, [BORDERS[0]], [BORDERS[0]]), "visual", visual)
    table = held_by(table, TEXT, text)
    told = verdict(run_of({"layers": table}))
    accept(told)
    for group, held in (("visual", visual), (TEXT, text)):
        of = f"{group} tokens are in {held} of {max(visual, text)} samples."
        assert (of in told.lower()) == (held < max(visual, text))
    assert told.count(" samples") == (visual != text)
    attended = table[(table["group"] == TEXT) | (table["layer"] == 0)]
    if entry[0] == entry[0]:
        told = verdict(run_of({"layers": attended}))
        assert ("isual tokens are in" in told) == (visual < text)


@pytest.mark.parametrize("held", [20, 1])
def test_other_media_say_of_how_many_samples_they_are(held: int) -> None:
    table = layers_csv(BORDERS[0], [BORDERS[0]], [BORDERS[0]])
    beside = table[table["group"] == "visual"].assign(group="audio", samples=held)
    told = verdict(run_of({"layers": pd.concat([table, beside])}))
    accept(told)
    assert ("Audio tokens are in 1 of 20 samples." in told) == (held == 1)
    assert "Norm of audio tokens at the decoder input" in told and "Visual tokens enter" in told
    table = interface_csv(BORDERS[0])
    here = (table["stage"] == "decoder_input") & (table["group"] == "visual")
    beside = table[here].assign(group="audio", samples=held)
    told = said("interface", pd.concat([table, beside]))
    accept(told)
    assert ("Audio tokens are in 1 of 20 samples." in told) == (held == 1)
    assert "Norm of visual tokens at the decoder input" in told


@pytest.mark.parametrize("ratio", [BORDERS[0], BORDERS[1], BORDERS[2]], ids=str)
def test_the_interface_says_of_how_many_samples_it_is(ratio: Triple) -> None:
    told = said("interface", held_by(interface_csv(ratio), "visual", 3))
    accept(told)
    assert "Visual tokens are in 3 of 20 samples." in told
    told = said("interface", held_by(interface_csv(ratio), TEXT, 1))
    accept(told)
    assert "Text tokens are in 1 of 20 samples." in told


@pytest.mark.parametrize("scored", [14, 3])
def test_scores_say_of_how_many_samples_they_are(scored: int) -> None:
    rows = pd.DataFrame({"layer": range(4), "samples": 14, "score_samples": scored})
    for quantity in ("cosine", "score"):
        rows = rows.assign(**ratio_columns(f"{quantity}_gap", [GAPS[0]] * 4))
    told = said("grounding", rows)
    accept(told)
    assert ("Attention scores are in 3 of 14 samples." in told) == (scored == 3)


def test_all_samples_and_unknown_ones_need_no_number() -> None:
    assert in_some_samples({"a": 5, "b": nan, "c": 0}, 5).words == ""
    told = in_some_samples({"a": 1.0, "b": 2}, 5.0).words
    assert told == "A are in 1 of 5 samples, b are in 2 of 5 samples."
    assert in_some_samples({"a": 1}, 5, "conversations").words == "A are in 1 of 5 conversations."


def test_a_miss_of_eq_15_is_a_difference_of_two_cosines() -> None:
    """Of two images the band of eight layers reaches to any number; the miss cannot."""
    made = tables_of(sample_rows(2, depth=8), PRE)
    text = verdict(run_of(made, PRE))
    accept(text)
    bands = select(made["theory"], "cosine_residual")[[*BAND]]
    assert bands.stack().abs().max() == 2
    assert select(made["theory"], "update_angle_difference")["band_high"].max() <= np.pi


# --- files that somebody edited -----------------------------------------------------------------

#: Of which measurement, table and quantity, or column, a number was told that is none.
LEFT_OUT = [
    ("attention", "attention", "even_share"),
    *(
        ("layers", "accounted", f"{part}_share{absolute}")
        for part, absolute in (
            *((part, "") for part in ("norm", "update_norm", "update_angle", "rest")),
            ("norm", "_absolute"),
        )
    ),
    ("layers", "massive", "top10_share"),
    ("layers", "dimensions", "dimension"),
    ("survey", "correlation", "low"),
    ("survey", "correlation", "high"),
    ("training", "alarms", "training_step"),
    ("training", "training", "training_step"),
]


@pytest.mark.parametrize(("name", "table", "number"), LEFT_OUT)
def test_what_a_file_leaves_out_is_no_number(
    name: str, table: str, number: str, tmp_path: Path
) -> None:
    case = CASES[name]
    assert "nan" not in str(case.run.verdict).split()
    case.run.save(tmp_path / "run", figures=False)
    file = tmp_path / "run" / f"{table}.csv"
    rows = pd.read_csv(file)
    if number in rows:
        rows = rows.assign(**{number: nan})
    else:
        assert (rows["quantity"] == number).any()
        rows.loc[rows["quantity"] == number, "mean"] = nan
    rows.to_csv(file, index=False)
    try:
        text = str(load_run(tmp_path / "run").verdict)
    except NormprobeError as error:
        assert str(tmp_path / "run") in error.problem  # refused by name
        assert number in ("dimension", "training_step") or table == "correlation"
    else:
        assert not re.search(r"\bnan\b", text), text
        assert text


# --- what the parts of a verdict say ------------------------------------------------------------

SHARES: list[Triple] = [
    (0.81, 0.74, 0.88),
    (-0.003, -0.004, 0.02),  # rounds to minus zero
    (-0.001, -0.02, -0.0001),
    (-0.15, -0.3, -0.002),
    (-0.15, -0.3, -0.02),
    (0.0, 0.0, 0.0),
    (0.996, 0.99, 0.998),
    (1.3, -0.004, 2.6),
    (12.0, -40.0, 64.0),
    (0.12, nan, nan),
    (-0.002, nan, nan),
    (-0.02, nan, nan),
]


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("scope", ["slower", "faster"])
@pytest.mark.parametrize("layers", ["1-3", "2"])
def test_shares_of_eq_13(shares: Triple, scope: str, layers: str) -> None:
    known = shares[1] == shares[1]
    ratio = (3.1, 2.9, 3.3) if scope == "slower" else (1 / 3.1, 1 / 3.3, 1 / 2.9)
    ratio = ratio if known else (ratio[0], nan, nan)
    table = shares_csv(scope, layers, ratio, [shares] * 4)
    text = said("accounted", table, closing=CLOSING if known else "No intervals.")
    accept(text)
    against = shares[2] if known else shares[0]
    assert ("below 0: against it" in text) == (against < -0.005)


@pytest.mark.parametrize("seed", range(25))
def test_branches(seed: int) -> None:
    sizes = sequence(seed)
    turns = (sequence(seed + 7_000) * 80)[: len(sizes)]
    text = said("branches", branches_csv(sizes, turns))
    accept(text)
    size = lines_about(text, "(?:What|Size of what) the attention")
    turn = lines_about(text, "(?:The|Angle by which the) attention")
    assert not layer_complaints(size, by_layer(sizes))
    assert not layer_complaints(turn, by_layer(turns))


MASSIVE = made_massive.tables(massive=True)
MASSIVE["massive"] = flat(MASSIVE["massive"])


@pytest.mark.parametrize("ratio", [*BORDERS[::4], *WITHOUT_ENDS[:2]], ids=str)
def test_massive_tokens(ratio: Triple) -> None:
    massive, dimensions = (MASSIVE[name].copy() for name in ("massive", "dimensions"))
    rows = (massive["group"] == "visual").sum()
    for place, suffix in enumerate(("", "_without_massive")):
        triples = [ratio if place else BORDERS[0] if ratio in BORDERS else ratio] * rows
        for name, values in ratio_columns(f"norm_geometric_ratio_to_text{suffix}", triples).items():
            massive.loc[massive["group"] == "visual", name] = values
    if ratio in WITHOUT_ENDS:
        ends = [name for name in massive if name.endswith(("_low", "_high"))]
        massive = massive.assign(**dict.fromkeys(ends, nan))
    closing = CLOSING if ratio in BORDERS else "One image, no intervals."
    accept(said("massive", massive, dimensions, closing=closing))


# --- theory -------------------------------------------------------------------------------------


_theory = cache(made_tables.theory)


def theory_csv(depth: int = 4, **changed: Triple) -> pd.DataFrame:
    """A flat theory.csv with bands; a change is one triple for all layers."""
    theory = _theory(depth).copy()
    for name, triple in changed.items():
        for end, value in zip(("", "_band_low", "_band_high"), triple, strict=True):
            theory.loc[theory["layer"] > 0, f"{name}{end}"] = value
    return theory


def theory_told(theory: pd.DataFrame, closing: str = CLOSING) -> str:
    return among(theory_findings(made_tables.assumptions(theory)), closing)


@pytest.mark.parametrize("column", sorted({theory_column(c.quantity, c.group) for c in CRITERIA}))
@pytest.mark.parametrize("triple", [(-0.1, -0.30004, 0.0999), (nan, nan, nan)], ids=str)
def test_assumptions_at_borders(column: str, triple: Triple) -> None:
    accept(theory_told(theory_csv(**{column: triple})))


@pytest.mark.parametrize(
    "miss",
    [
        (-0.2, -0.3, -0.05),
        (-0.001, -0.0104, 0.00996),
        (0.0, -0.0, 0.0),
        (-0.0004, -0.00041, 0.2),
        (0.096, 0.0951, 0.1049),
    ],
    ids=str,
)
def test_the_largest_miss_of_eq_15(miss: Triple) -> None:
    text = theory_told(theory_csv(cosine_residual_mean=miss))
    accept(text)
    assert "Eq. 15 misses by up to " in text


@pytest.mark.parametrize("depth", [1, 80])
def test_one_image_judges_nothing(depth: int) -> None:
    theory = theory_csv(depth)
    theory[[name for name in theory if name.endswith(("_low", "_high"))]] = nan
    text = theory_told(theory, "One image, no intervals.")
    accept(text)
    assert "hold" not in text


def test_a_post_norm_decoder_is_not_judged() -> None:
    assert theory_findings(made_tables.assumptions(theory_csv().iloc[:0])) == []


# --- between the words, the runs and the models -------------------------------------------------

GAPS: list[Triple] = [
    (0.02, 0.004, 0.05),
    (0.02, -0.004, 0.05),
    (-0.02, -0.05, -0.004),
    (0.012, 0.0096, 0.014),  # one size, and as many digits as decimals differ
    (0.0, 0.0, 0.0),
    (0.1, 0.0, 0.2),
    (0.1, 1e-9, 0.2),
    (-1e-5, -2e-5, -1e-9),
    (-0.0, -0.001, 0.001),
    (1.2, 0.6, 9.96),
    (120.0, 96.0, 140.0),
    (0.02, nan, nan),
]


@pytest.mark.parametrize("gap", GAPS, ids=str)
@pytest.mark.parametrize("others", [None, GAPS[0], GAPS[2]], ids=str)
def test_grounding(gap: Triple, others: Triple | None) -> None:
    ratios = [gap, others or gap, gap, (nan, nan, nan)]
    if gap[1] != gap[1]:
        ratios = [gap] * 4
    samples = 1 if gap[1] != gap[1] else 14
    rows = pd.DataFrame({"layer": range(4), "samples": samples, "score_samples": samples})
    for quantity in ("cosine", "score"):
        for ends in ("ci", "band"):
            rows = rows.assign(**ratio_columns(f"{quantity}_gap", ratios, ends))
    text = said("grounding", rows)
    accept(text)
    way = (gap[1] > 0) - (gap[2] < 0)
    assert ("are closer to the word than" in text) == (
        way == 1 or (others == GAPS[0] and gap in GAPS[:-1])
    )


def interface_csv(ratio: Triple, samples: int = 20) -> pd.DataFrame:
    table = made_tables.interface()
    table["norm_geometric_mean"], table["samples"] = table["norm_mean"], samples
    for column in ("ratio_to_prompt", "ratio_to_table", "ratio_to_before_projector"):
        for name in (column, f"geometric_{column}"):
            table = table.assign(
                **{key: value[0] for key, value in ratio_columns(name, [ratio], "ci").items()}
            )
    return table


@pytest.mark.parametrize("ratio", [*BORDERS[::2], *WITHOUT_ENDS[::2]], ids=str)
def test_interface(ratio: Triple) -> None:
    samples = 20 if ratio in BORDERS else 1
    text = said("interface", interface_csv(ratio, samples))
    accept(text)
    assert {claim.state for claim in claims_of(text)} == {own_state(*ratio)}
    table = interface_csv(ratio, samples)
    attended = table[~((table["stage"] == "decoder_input") & (table["group"] == "visual"))]
    accept(said("interface", attended))


@pytest.mark.parametrize("samples", [20, 1])
def test_an_interface_with_text_alone_says_nothing(samples: int) -> None:
    table = interface_csv(BORDERS[0], samples)
    assert said("interface", table[table["group"] != "visual"]) == ""
    assert said("interface", interface_csv(UNUSABLE[0], samples)) == ""


@pytest.mark.parametrize("seed", range(20))
def test_compared_runs(seed: int) -> None:
    random = np.random.default_rng(seed)
    kinds = BORDERS if seed % 4 else WITHOUT_ENDS
    chosen = [kinds[place] for place in random.integers(len(kinds), size=2 + seed % 5)]
    gaps = [GAPS[place] for place in random.integers(len(GAPS) - 1, size=len(chosen))]
    runs = pd.DataFrame({"run": [f"run-{place}" for place in range(len(chosen))]})
    measures = [{"disparity_input": Estimate(*triple)} for triple in chosen]
    if seed % 2 and seed % 4:
        measures = [
            {**of_run, "inertia_gap": Estimate(*gap)}
            for of_run, gap in zip(measures, gaps, strict=True)
        ]
    if seed % 3 == 0:
        runs["step"] = 100 * np.arange(len(runs))
    accept(ranked(measures_table(runs, measures)))


@pytest.mark.parametrize(
    ("disparity", "inertia"),
    [
        (range(4), range(4)),
        (range(5), range(5)),
        (range(30), range(30)),
        (range(9), range(9, 0, -1)),
        ([1.0] * 6, range(6)),
        ([1, 1, 2, 2, 3, 3], [1, 2, 1, 2, 1, 2]),
        ([1, 1, 2, 2, 3, 3], [2, 1, 1, 2, 2, 1]),
        (range(6), [3, 1, 5, nan, 2, 0]),
        (range(200), [place % 7 for place in range(200)]),
        (range(200), [-(place % 7) for place in range(200)]),
    ],
    ids=str,
)
def test_ranks_of_models(disparity: Sequence[float], inertia: Sequence[float]) -> None:
    accept(among([Finding("", correlation_sentence(correlation_table(disparity, inertia)))], ""))


@pytest.mark.parametrize(
    "ends", [(0.3, 0.004, 0.6), (0.3, 0.005, 0.6), (-0.003, -0.3, 0.3), (-0.3, -0.6, -0.0049)]
)
def test_ranks_at_borders(ends: Triple) -> None:
    row = dict(zip(("mean", *INTERVAL), ends, strict=True))
    table = pd.DataFrame([{"quantity": "rank_correlation", **row, "models": 9}])
    accept(among([Finding("", correlation_sentence(table))], ""))


@pytest.mark.parametrize("value", [nan, 0.0, 0.7949, 0.7951, 0.8, 1.0, 1.25, 1.2551, 40.0, 1e-4])
@pytest.mark.parametrize("pattern", ["alone", "alternating"])
def test_attention(value: float, pattern: str) -> None:
    table = made_tables.attention(layers=8)
    first = table["layer"] % 2 == 1 if pattern == "alternating" else table["layer"] > 0
    table.loc[first, "share_mean"] = 0.5 * value
    table.loc[first, "even_share_mean"] = 0.5
    table.loc[first, "signal_to_noise"] = value
    accept(said("attention", table))


@pytest.mark.parametrize("value", [nan, 0.5])
def test_attention_of_cross_attention(value: float) -> None:
    table = made_tables.attention(layers=3).assign(even_share_mean=1.0, signal_to_noise=value)
    accept(said("attention", table))


@pytest.mark.parametrize("ratio", [*BORDERS[::6], WITHOUT_ENDS[0], WITHOUT_ENDS[1]], ids=str)
def test_a_survey_counts_models_by_their_state(ratio: Triple) -> None:
    ratios = [ratio, BORDERS[0], BORDERS[2]]
    models = pd.DataFrame({"model": [*"abc"]})
    measures = [{"disparity_input": Estimate(*triple)} for triple in ratios]
    run = RunStore({"command": "survey"})
    run.write_table("survey", measures_table(models, measures))
    run.write_table("models", models.assign(status="complete"))
    words = {"above": "Larger norm", "below": "Smaller norm", "equal": "Norm about the same"}
    words["open"] = "Norm inconclusive"
    text = str(survey_verdict(run))
    if ratio in BORDERS:  # beside intervals, nobody says why one has none
        accept(text)
    states = [own_state(*each) for each in ratios]
    for state, word in words.items():
        found = re.search(rf"{word}[a-z ]* in (\d) of 3 models", text)
        assert bool(found) == (state in states), text
        assert found is None or int(found[1]) == states.count(state)


@pytest.mark.parametrize("names", [("text",), ("text", "visual")])
def test_embedding_tables_are_no_samples(names: Sequence[str]) -> None:
    accept(said("embeddings", made_tables.embeddings(*names)))


# --- how long -----------------------------------------------------------------------------------

#: Their tables are made by hand: some have intervals, beside others of one image; so have gaps.
_MIXED = ("layers", "layers-deep")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "sentence" in case.forms])
def test_what_is_shown_can_be_read(name: str) -> None:
    """Words and numbers a line, of every kind of run."""
    found = complaints(CASES[name].run.verdict)
    assert [each for each in found if "one image, and yet" not in each or name not in _MIXED] == []


@pytest.mark.parametrize("name", SENTENCES)
def test_what_is_said_can_be_read(name: str) -> None:
    found = complaints(Case(*SENTENCES[name]).run.verdict)
    assert [each for each in found if "says why" not in each or "inertia" not in name] == []


def test_lines_are_as_short_as_they_were_on_average() -> None:
    """A reader takes 15 words and one number at a time."""
    said = [line for case in CASES.values() for line in lines(str(case.run.verdict))]
    assert np.mean([words_of(line) for line in said]) < 13
    assert np.mean([numbers_of(line) for line in said]) < 1.5
