"""Links that leave ``docs/`` go to the repository on the web; in a clone they are as written."""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?P<path>\.\./[^)#\s]+)")


def _lead_out(application: Sphinx, page: str, source: list[str]) -> None:
    folder = (DOCS / page).parent

    def led_out(link: re.Match[str]) -> str:
        target = (folder / link["path"]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({application.config.repository}/{kind}/main/{target.relative_to(ROOT)}"

    source[0] = LINK.sub(led_out, source[0])


def setup(application: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    application.add_config_value("repository", project["urls"]["Repository"], "env")
    application.connect("source-read", _lead_out)
    return {"parallel_read_safe": True}
