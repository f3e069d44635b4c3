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
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def charts(text: str) -> list[list[dict]]:
    """What the page's script draws: the charts of each place."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(chart) for chart in found]
