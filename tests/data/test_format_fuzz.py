"""Data files as their formats declare them, and damaged: what was written is read, or refused."""

import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from support.damage import Canary, assert_two_lines, mutated, mutated_json, within

from data.written import Written, cases, check_said, lay_media
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

CASES = [100, pytest.param(5_000, marks=pytest.mark.slow)]
MOST = 2**30  # bytes of memory that all cases together may take


def damage(file: Path, how: str, seed: int) -> None:
    """Change the bytes of a file, or fields of its JSON."""
    chance, data = random.Random(seed), file.read_bytes()
    if how == "fields" and file.suffix == ".json":
        file.write_bytes(mutated_json(data, chance))
    elif how == "fields" and file.suffix == ".jsonl":
        first, *others = data.splitlines(keepends=True)
        file.write_bytes(mutated_json(first, chance) + b"\n" + b"".join(others))
    elif how in ("bytes", "fields"):
        file.write_bytes(mutated(data, chance))


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Hold what the block takes of memory at its peak against a bound, where Linux tells it."""
    status = Path("/proc/self/status")

    def told(name: str) -> int:
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    if sys.platform != "linux":
        yield
        return
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = told("VmRSS")
    yield
    assert told("VmHWM") - before < most


@pytest.mark.parametrize("cases_", CASES)
def test_data_are_those_that_were_written_or_refused(cases_: int, tmp_path: Path) -> None:
    folder, found, canary = tmp_path / "in", Counter[str](), Canary(tmp_path)
    lay_media(folder)

    def one(made: Written, how: str, seed: int) -> str:
        try:
            file, spec = made.write(folder, made.rows)
        except (TypeError, ValueError, OverflowError, OSError, pa.ArrowException):
            assert how == "cells"  # no such file can be
            return "not written"
        damage(file, how, seed)
        skip = how != "sound" and bool(seed % 2)
        try:
            with within():
                data = open_data(str(spec), skip_bad=skip)
                samples = list(data)
        except NormprobeError as error:
            assert how != "sound", error
            assert_two_lines(error)
            return "refused"
        finally:
            shutil.rmtree(spec) if spec.is_dir() else spec.unlink()
        for sample in samples:
            assert sample.prompt.strip()
            assert all(image.mode == "RGB" for image in sample.images)
            sample.id.encode()
        if how == "sound":
            for sample, said in zip(samples, made.said, strict=True):
                check_said(sample, said)
        return "skipped" if data.bad.skipped else "read"

    @settings(
        max_examples=cases_,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(cases())
    def each(case: tuple[Written, str, int]) -> None:
        found[one(*case)] += 1

    with bounded(MOST):
        each()
    canary.assert_untouched()
    assert found["read"] > cases_ / 2
    assert found["refused"] + found["skipped"] > cases_ / 20
