"""Published data sets, through the ``datasets`` library and its cache."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import Place
from normprobe.data.benchmarks import Benchmark
from normprobe.data.formats import Rows
from normprobe.errors import NormprobeError, first_line

if TYPE_CHECKING:
    from datasets import Dataset


def load_hub_table(benchmark: Benchmark, subset: str) -> tuple[Rows, dict[str, str | None]]:
    """Load the rows of a published benchmark, images still encoded.

    Data sets move between organisations, so a benchmark may list several ids for the same rows;
    the first that can be loaded is recorded in the provenance.

    Returns:
        The table, memory-mapped from the cache, and its provenance: id, config, split, revision.
    """
    import datasets

    failures = []
    for source in benchmark.subsets[subset]:
        try:
            dataset = datasets.load_dataset(source.repo, source.config, split=source.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            failures.append(f"{source.repo}: {first_line(error, 160)}")
            continue
        provenance = {
            "hub": source.repo,
            "config": source.config,
            "split": source.split,
            "revision": _revision(dataset),
        }
        return rows_of(dataset, source.repo), provenance
    raise NormprobeError(
        f"data set {benchmark.name} could not be loaded ({'; '.join(failures)})",
        "offline, use --data sample (bundled questions) or --data PATH (a file or folder in the "
        "published format)",
    )


def rows_of(dataset: Dataset, source: str) -> Rows:
    """The rows of a loaded data set, images still encoded."""
    # The arrow format leaves images encoded: one bad image must not stop the whole table.
    table = dataset.with_format("arrow")[:]
    return Rows(table, source, [Place(source, row + 1) for row in range(table.num_rows)])


def _revision(dataset: Dataset) -> str | None:
    """Return the commit that the rows come from; ``None`` where the library did not record it."""
    sources: dict[str, Any] = dataset.info.download_checksums or {}
    commits = {match[1] for url in sources if (match := re.search(r"@([0-9a-f]{40})/", url))}
    return commits.pop() if len(commits) == 1 else None
