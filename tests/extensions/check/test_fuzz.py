"""States and baselines as their formats declare them, and damaged: read, or a known failure."""

import io
import json
import random
import tracemalloc
import xml.etree.ElementTree as xml
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from support.damage import mutated, mutated_json

from normprobe.errors import NormprobeError
from normprobe.extensions.check import saved
from normprobe.extensions.check.baseline import (
    _FACTS,
    BASELINE_COLUMNS,
    DIFFERENT,
    FORMAT,
    PLAIN,
    SAME,
    SIGNED,
    UNKNOWN,
    checked,
    read_baseline,
)
from normprobe.extensions.check.saved import saved_states, saved_vision
from normprobe.schema import STAGES, TOKEN_GROUPS

DEPTH, ROWS, HIDDEN = 3, 5, 8
IDS = [7, 3, 3, 9, 1]
SIZES = dict.fromkeys(range(DEPTH + 1), HIDDEN)
DECODER = "model.text.blocks"
TRUTH = np.random.default_rng(0).normal(size=(DEPTH + 1, ROWS, HIDDEN))
CASES = [100, pytest.param(1_500, marks=pytest.mark.slow)]


def counted(one: Callable[[Any], str], of: st.SearchStrategy[Any], cases: int) -> Counter[str]:
    """How a number of generated cases ended."""
    found: Counter[str] = Counter()

    @settings(
        max_examples=cases,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(of)
    def each(case: Any) -> None:
        found[one(case)] += 1

    each()
    return found


Held = dict[str, np.ndarray[Any, Any]]
PREFIXES = ["layer_", "layers.", "model.layers.", "language_model.model.layers.", f"{DECODER}."]


@st.composite
def held_states(draw: st.DrawFn) -> Held:
    """Whatever the declared layout allows."""
    kind = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    first = draw(st.sampled_from([0, 1]))
    truth = TRUTH.astype(kind)[first:]
    name = draw(st.sampled_from(["input_ids", "token_ids"]))
    ids = np.array(IDS, dtype=draw(st.sampled_from([np.int32, np.int64])))
    held: Held = {name: ids[None] if draw(st.booleans()) else ids}
    if draw(st.booleans()):
        numbers = [*range(first, DEPTH + 1)]
        if draw(st.booleans()):
            order = draw(st.permutations(numbers))
            held["layer_ids"] = np.array(order, dtype=ids.dtype)
            truth = truth[[number - first for number in order]]
        states = truth.transpose(1, 0, 2) if name == "token_ids" else truth
        held["hidden_states"] = np.ascontiguousarray(states)
    else:
        prefix, end = draw(st.sampled_from(PREFIXES)), draw(st.sampled_from(["", ".output"]))
        for number, state in enumerate(truth, start=first):
            if prefix == "layer_" or number:
                at = number - (prefix != "layer_")
                held[f"{prefix}{at}{end}"] = state[None] if draw(st.booleans()) else state
    for more in draw(st.lists(st.sampled_from(["logits", "vision.layers.1", "layers"]))):
        held[more] = np.zeros(draw(st.integers(0, 3)), np.float32)  # not declared: not read
    return held


@st.composite
def damaged(draw: st.DrawFn, held: Held) -> Held:
    """One tensor is gone, twice there, of another shape or type, or of another meaning."""
    name = draw(st.sampled_from(sorted(held)))
    of = held[name]
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return {key: value for key, value in held.items() if key != name}
    if kind == 1:
        other = draw(st.sampled_from(["layer_1", "layer_01", "layers.0", "hidden_states", "x"]))
        return held | {other: of}
    if kind == 2:
        names = ["input_ids", "token_ids", "layer_ids", "layer_99", "layer_", "layers.-1"]
        return held | {draw(st.sampled_from(names)): of}
    if kind == 3:
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        return held | {name: np.zeros(shape, of.dtype)}
    if kind == 4:
        types = [np.int8, np.uint64, np.bool_, np.float16, np.int64]
        return held | {name: of.astype(draw(st.sampled_from(types)))}
    if kind == 5:
        ids = draw(st.lists(st.integers(-2, DEPTH + 2), max_size=DEPTH + 2))
        return held | {"layer_ids": np.array(ids, np.int64)}
    return held | {name: of[: draw(st.integers(0, 3))] if of.ndim else of}


def written(held: Held, file: Path) -> None:
    """Either kind of file."""
    if file.suffix == ".npz":
        np.savez_compressed(file, **held)  # type: ignore[arg-type]
    else:
        save_file({name: np.array(of, order="C") for name, of in held.items()}, file)


@st.composite
def state_files(draw: st.DrawFn) -> tuple[Held, int, str, int]:
    """What a file holds, how often that was damaged, how the file ends, a seed for its bytes."""
    held, times = draw(held_states()), draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
    for _ in range(times):
        held = draw(damaged(held)) if held else held
    seed = draw(st.sampled_from([0] * 5 + [1])) and draw(st.integers(1, 2**32))
    return held, times, draw(st.sampled_from([".npz", ".safetensors"])), seed


@pytest.mark.parametrize("cases", CASES)
def test_states_are_those_that_were_saved_or_refused(cases: int, tmp_path: Path) -> None:
    def one(case: tuple[Held, int, str, int]) -> str:
        held, times, end, seed = case
        file = tmp_path / f"states{end}"
        written(held, file)
        if seed:
            file.write_bytes(mutated(file.read_bytes(), random.Random(seed)))
        try:
            states = saved_states(file, IDS, ROWS, SIZES, DECODER)
        except NormprobeError as error:
            assert times or seed, error
            assert len(str(error).splitlines()) == 2
            return "refused"
        assert set(states) in ({*range(1, DEPTH + 1)}, {*range(DEPTH + 1)})
        for number, state in states.items():
            assert state.shape == (ROWS, HIDDEN)
            assert state.is_floating_point()
            if not times and not seed:
                right = torch.from_numpy(TRUTH[number]).to(state.dtype)
                torch.testing.assert_close(state, right, rtol=0, atol=0)
        return "read"

    found = counted(one, state_files(), cases)
    assert found["read"] > cases / 2
    assert found["refused"] > cases / 20


@st.composite
def vision_files(draw: st.DrawFn) -> tuple[Held, str, int]:
    """States of vision encoder and projector in whatever shapes, the file's end, a seed."""
    names = ["vision_layers.0", "vision_layers.1.output", "projector", "vision_layers.2", "own.0"]
    shapes = st.sampled_from([(ROWS, HIDDEN), (1, ROWS, HIDDEN), (2, ROWS, HIDDEN), (40, HIDDEN)])
    shapes |= st.lists(st.integers(0, 4), max_size=3).map(tuple)
    kinds = st.sampled_from([np.float16, np.float32, np.float64, np.int32])
    held = {
        name: np.zeros(draw(shapes), draw(kinds))
        for name in draw(st.lists(st.sampled_from(names), unique=True))
    }
    seed = draw(st.sampled_from([0] * 5 + [1])) and draw(st.integers(1, 2**32))
    return held or {"x": np.zeros(1)}, draw(st.sampled_from([".npz", ".safetensors"])), seed


@pytest.mark.parametrize("cases", CASES)
def test_states_of_the_vision_side_fit_or_are_refused(cases: int, tmp_path: Path) -> None:
    own = {stage: torch.zeros(ROWS, HIDDEN) for stage in ("one", "two", "behind")}
    known = {"vision_layers.0": "one", "own.0": "one", "vision_layers.1.output": "two"}
    known["projector"] = "behind"

    def one(case: tuple[Held, str, int]) -> str:
        held, end, seed = case
        file = tmp_path / f"states{end}"
        written(held, file)
        if seed:
            file.write_bytes(mutated(file.read_bytes(), random.Random(seed)))
        try:
            pairs = saved_vision(file, known, lambda: own)
        except NormprobeError as error:
            assert len(str(error).splitlines()) == 2
            return "refused"
        assert seed or set(pairs) == {known[name] for name in held if name in known}
        for state, _ in pairs.values():
            assert state.is_floating_point() and state.shape[1:] == (HIDDEN,)
            assert 0 < len(state) <= 4 * ROWS
        return "read"

    found = counted(one, vision_files(), cases)
    assert found["read"] > cases / 20
    assert found["refused"] > cases / 20


NORMS = st.floats(1e-3, 1e6).map(lambda norm: float(f"{norm:.9g}"))  # digits of a file
NUMBERS = st.floats(-1, 1).map(lambda number: f"{number:.7g}")


@st.composite
def baselines(draw: st.DrawFn) -> dict[str, Any]:
    """Whatever a baseline may hold."""
    stages = ["inputs", *STAGES, *(f"layer {n}" for n in range(1, 4)), "logits"]
    keys = st.tuples(st.sampled_from(stages), st.sampled_from(TOKEN_GROUPS))
    text = st.text(st.characters(codec="utf-8"), max_size=8)
    states = []
    for stage, group in draw(st.lists(keys, min_size=1, max_size=6, unique=True)):
        tokens, silent = draw(st.integers(0, 9)), draw(st.sampled_from([False] * 9 + [True]))
        mean = 0.0 if silent else draw(NORMS)
        loud = tokens > 0 and mean > 0
        count = PLAIN + SIGNED
        print_ = draw(st.lists(NUMBERS, min_size=count, max_size=count)) if loud else ["nan"] * 16
        values = [
            *(stage, group, draw(st.integers(1, 9)), tokens, 0 if tokens else 1),
            *(mean if tokens else None, draw(NORMS) if loud else None, draw(NORMS)),
            " ".join(print_),
        ]
        states.append(dict(zip(BASELINE_COLUMNS, values, strict=True)))
    facts = {name: draw(text) for name in _FACTS} | {"prompt": None, "versions": {"torch": "2"}}
    digests = st.fixed_dictionaries({"picture": st.none() | text, "prompt": text})
    samples = draw(st.dictionaries(text, digests, min_size=1, max_size=3))
    kind = draw(st.sampled_from(["float32", "bfloat16", "float64", "other"]))
    told = facts | {"dtype": kind, "samples": samples, "states": states}
    return {"format": FORMAT} | told


@pytest.mark.parametrize("cases", CASES)
def test_baselines_are_those_that_were_written_or_refused(cases: int, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"

    def one(case: tuple[dict[str, Any], int]) -> str:
        told, seed = case
        data = json.dumps(told).encode()
        file.write_bytes(data)
        whole = read_baseline(file)
        if seed:
            file.write_bytes(mutated_json(data, random.Random(seed)))
        try:
            read = read_baseline(file)
        except NormprobeError as error:
            assert seed, error
            assert len(str(error).splitlines()) == 2
            return "refused"
        if not seed:
            assert json.loads(read.text) == told
        same = checked(read, read).verdict
        assert same == (UNKNOWN if (read.states["nonfinite"] > 0).any() else SAME)
        found = checked(read, whole)
        assert found.verdict in (SAME, DIFFERENT, UNKNOWN)
        xml.fromstring(found.junit)
        return "read"

    seeds = st.sampled_from([0, 0, 1]).flatmap(lambda n: st.integers(n, n * 2**32))
    found = counted(one, st.tuples(baselines(), seeds), cases)
    assert found["read"] > cases / 2
    assert found["refused"] > cases / 20


def refused(file: Path, match: str) -> None:
    """In no more memory than a header takes."""
    tracemalloc.start()
    try:
        with pytest.raises(NormprobeError, match=match):
            saved_states(file, IDS, ROWS, SIZES, DECODER)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_what_a_file_takes_is_known_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "states.npz"
    ids = {"input_ids": np.array(IDS)}
    np.savez_compressed(file, **ids, hidden_states=np.zeros((DEPTH, ROWS, 2**18), np.float32))
    assert file.stat().st_size < 2**17
    refused(file, r"hidden_states: expected .*hidden 8, received \[3, 5, 262144\] of F32")
    np.savez_compressed(file, input_ids=np.zeros(2**21, np.int64))
    refused(file, "input_ids: expected")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2**16, np.uint8))
    for name, data in {
        "behind": np.lib.format.magic(1, 0) + buffer.getvalue()[8:] + bytes(2**24),
        "header": np.lib.format.magic(2, 0) + (2**24).to_bytes(4, "little") + bytes(2**24),
    }.items():
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("input_ids.npy", data)
        refused(file, "bytes, received" if name == "behind" else "version 1.0 of its header")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("input_ids.npy", buffer.getvalue())
    refused(file, "another compression")
    file = tmp_path / "states.safetensors"
    file.write_bytes((2**24).to_bytes(8, "little") + bytes(2**24))
    refused(file, "the header: expected 8388608 bytes at most")
    monkeypatch.setattr(saved, "_MOST_BYTES", 1000)
    file = tmp_path / "many.npz"
    np.savez(file, **ids, **{f"n{n}": np.zeros(0) for n in range(50)})
    refused(file, "the list of arrays: expected 1000 bytes at most")


def states(**more: Any) -> Held:
    """Those of every layer, and more."""
    return {"input_ids": np.array(IDS), "hidden_states": TRUTH[1:].astype(np.float32)} | more


def by_name(*names: str) -> Held:
    return {"input_ids": np.array(IDS)} | {n: TRUTH[1].astype(np.float32) for n in names}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            states(layer_ids=np.array([1, 2])),
            r"hidden_states: expected .*, layers 2, .* received",
        ),
        (
            states(layer_ids=np.array([1, 2, 2])),
            r"some of \[1, 2, 3\], and 0, once each, received \[1, 2, 2\]",
        ),
        (states(layer_ids=np.array([1.0, 2, 3])), "layer_ids: expected"),
        (states(hidden_states=np.float32(1)), r"received \[\] of F32"),
        (states(hidden_states=np.zeros(3)), r"received \[3\] of F64"),
        (states(hidden_states=np.zeros((6, ROWS, HIDDEN))), "layers 3 or 4, tokens 5, hidden 8"),
        (states(hidden_states=np.zeros((3, ROWS, HIDDEN), np.int64)), "of I64"),
        (states(token_ids=np.array(IDS)), "these or token_ids, received both"),
        (states(input_ids=np.array(IDS, np.float32)), "input_ids: .* of F32"),
        (by_name("layer_1", "layer_2"), r"layers: expected all of 3, received no layer \[3\]"),
        (by_name("layer_1", "layer_2", "vision.layers.2"), r"no layer \[3\]"),
        (by_name("layer_1", "layer_2", "layers.2", "layer_3"), "one tensor a layer"),
        (by_name("layer_1", "layer_2", "layer_3", "layer_4"), "a layer of 3, received 4"),
        (by_name("layer_1", "layer_2") | {"layer_3": np.zeros(8, np.float32)}, "layer_3: expected"),
    ],
)
@pytest.mark.parametrize("end", ["npz", "safetensors"])
def test_states_of_another_layout_are_refused(
    held: Held, said: str, end: str, tmp_path: Path
) -> None:
    file = tmp_path / f"states.{end}"
    written(held, file)
    with pytest.raises(NormprobeError, match=said):
        saved_states(file, IDS, ROWS, SIZES, DECODER)
