"""Print, for every model type, which of its checks pass. Run by `make types`."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Column, Table

TESTS = Path(__file__).resolve().parent.parent / "tests/model/test_every_type.py"
SIGNS = {"passed": "yes", "failed": "NO", "skipped": "skipped"}


class Outcomes:
    """Collects the outcome of each check by model type."""

    def __init__(self) -> None:
        self.of_type: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if "[" in name and (report.when == "call" or report.skipped):
            check, _, model_type = name.rstrip("]").partition("[")
            self.of_type[model_type][check.removeprefix("test_")] = SIGNS[report.outcome]


def main() -> None:
    outcomes = Outcomes()
    code = pytest.main(["--quiet", "--no-header", "--no-summary", str(TESTS)], plugins=[outcomes])
    checks = list(
        dict.fromkeys(check for of_type in outcomes.of_type.values() for check in of_type)
    )
    table = Table(
        Column("type", no_wrap=True), *(check.replace("_", " ") for check in checks), box=None
    )
    for model_type, of_type in sorted(outcomes.of_type.items()):
        table.add_row(model_type, *(of_type.get(check, "") for check in checks))
    console = Console()
    console.print(table)
    whole = sum("NO" not in of_type.values() for of_type in outcomes.of_type.values())
    console.print(f"{whole} of {len(outcomes.of_type)} types without a failed check")
    sys.exit(code)


if __name__ == "__main__":
    main()
