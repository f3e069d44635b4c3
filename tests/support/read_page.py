"""A page of runs, read as a browser reads it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from normprobe.run import load_run, page_of


def page_of_folders(*folders: Path) -> str:
    """The page of run folders."""
    return page_of([load_run(folder) for folder in folders])


class Reader(HTMLParser):
    """Elements, attributes and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._hidden = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._hidden = tag in ("style", "script")
        self.attributes += attrs

    def handle_endtag(self, tag):
        self._hidden = False

    def handle_data(self, data):
        if not self._hidden:
            self.text += data


def drawn(text: str, kind: str) -> list:
    """What the page's script draws in the places of a kind: curves, panels, dots or grid."""
    script = rf'<div class="{kind}"><script type="application/json">(.*?)</script>'
    return [json.loads(data) for data in re.findall(script, text, re.DOTALL)]


def charts(text: str) -> list[list[dict]]:
    """The charts of each place of which one is shown at a time."""
    return drawn(text, "curves")
