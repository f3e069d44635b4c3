"""Where numbers come from: what all runs share is told once, the rest run by run."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from xxhash import xxh3_64_hexdigest

from normprobe.report.significant import significant
from normprobe.runs.files import json_bytes
from normprobe.runs.run_folder import RunStore

#: Facts of run.json and their words, in the order in which a reader asks.
_FACTS = {
    "model": "model",
    "model_revision": "revision",
    "model_type": "type",
    "family": "family",
    "norm_placement": "norm placement",
    "weight_digests": "weights",
    "alignment": "alignment norm",
    "data": "data",
    "sample_ids": "samples",
    "prompt_hashes": "prompts",
    "image_hashes": "pictures",
    "step": "training step",
    "argv": "command line",
    "created": "started",
    "seconds": "seconds",
    "device": "device",
    "dtype": "dtype",
    "attn_implementation": "attention",
    "parts": "parts",
    "parts_found_by": "parts found by",
    "recomputed": "largest difference when recomputed",
    "versions": "versions",
}
#: Where one run has none of these, the others do not share it: they are what was varied.
_VARIED = ("alignment", "step")

#: Facts that are a digest of each tensor or sample.
_DIGESTS = ("weight_digests", "prompt_hashes", "image_hashes")


def shared_facts(runs: Sequence[RunStore]) -> list[tuple[str, str]]:
    """Words and values on which all runs agree that have them."""
    told = [_facts(run) for run in runs]
    return [
        (words, found.pop())
        for name, words in _FACTS.items()
        if len(found := {facts[name] for facts in told if name in facts}) == 1
        and (name not in _VARIED or all(name in facts for facts in told))
    ]


def own_facts(runs: Sequence[RunStore], titles: Sequence[str]) -> pd.DataFrame:
    """The facts on which runs differ: a row a run, empty where it has none."""
    shared = {words for words, _ in shared_facts(runs)}
    told = [_facts(run) for run in runs]
    differing = {
        words: [facts.get(name, "") for facts in told]
        for name, words in _FACTS.items()
        if words not in shared and any(name in facts for facts in told)
    }
    return pd.DataFrame({"run": list(titles), **differing} if differing else {})


def _facts(run: RunStore) -> dict[str, str]:
    """Of a comparison, the model is the number of its runs: not told."""
    names = [name for name in _FACTS if name != "model" or "compared" not in run.record]
    return {name: fact for name in names if (fact := _fact(name, run.record.get(name)))}


def _fact(name: str, value: object) -> str:
    if name in _DIGESTS:  # one of them all: equal where they all are
        held = isinstance(value, dict) and any(value.values())
        return xxh3_64_hexdigest(json_bytes(value)) if held else ""
    if isinstance(value, dict):
        return ", ".join(
            f"{str(key).replace('_', ' ')}: {_fact('', item)}"
            for key, item in value.items()
            if item is not None
        )
    if isinstance(value, list):
        # Of samples the number is enough.
        return _command_line(value) if name == "argv" else str(len(value) or "")
    if isinstance(value, float):
        return significant(value)
    return "" if value is None else str(value)


def _command_line(argv: list[Any]) -> str:
    """Without the program's path; a run of the training callback was started by another one."""
    words = [str(word) for word in argv]
    program = Path(words[0]).name if words else ""
    return shlex.join(["normprobe" if program == "__main__.py" else program, *words[1:]])
