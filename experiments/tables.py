"""Tables in Markdown, and where they stand in a page."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import typer

EXPLANATION = Path(__file__).resolve().parents[1] / "docs/explanation"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def publish(tables: Mapping[str, str], page: Path | None) -> None:
    """Print tables by name, and put them into a page where there is one."""
    for name, table in tables.items():
        typer.echo(f"{name}\n\n{table}\n")
    if page is not None:
        insert(page, tables)


def insert(page: Path, tables: Mapping[str, str]) -> None:
    """Put each table between ``<!-- name -->`` and ``<!-- /name -->`` of a page.

    Args:
        page: in Markdown.
        tables: by name.

    Raises:
        ValueError: the page has no such place.
    """
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        text, found = place.subn(lambda _, table=table: f"{table}\n", text)  # type: ignore[misc]
        if not found:
            raise ValueError(f"{page} has no <!-- {name} -->")
    page.write_text(text, encoding="utf-8")
