"""The directive ``{drawn}``: what commands make while the documentation is built, and shows it.

```{drawn} runs/both/plots/overlay.png
:alt: what is to be seen

normprobe layers specimen -o runs/one
normprobe layers specimen -o runs/other --align table
normprobe compare runs/one runs/other -o runs/both
```

A picture stands in the page, an HTML file in a frame with a link to it. The commands of a page run
in order in a folder of its own, which holds what the page marks with ``<!-- file: name -->``, and
two photographs. ``:quiet:`` leaves the commands out of the page.
"""

import os
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path

import imagesize
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from normprobe.report.figures.style import CSS_DPI, FILE_DPI

PHOTOGRAPHS = Path(__file__).resolve().parents[2] / "benchmarks_data/images"
FILE = re.compile(r"<!-- file: (?P<name>\S+) -->\n```\w*\n(?P<text>.*?)^```$", re.M | re.S)
LIVE = "live"  # the folder of the pages that stand in frames


class Drawn(SphinxDirective):
    """Commands, and the picture or page that they make."""

    required_arguments = 1
    has_content = True
    option_spec = {  # noqa: RUF012 - as docutils declares it
        "alt": directives.unchanged_required,
        "quiet": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Run the commands, unless notebooks are not run either."""
        commands = "\n".join(self.content)
        shown: list[nodes.Node] = []
        if commands and "quiet" not in self.options:
            shown.append(nodes.literal_block(text=commands, language="bash"))
        if self.config.nb_execution_mode == "off":
            return shown
        file = self._desk() / self.arguments[0]
        self._run(commands)
        if not file.is_file():
            raise self.error(f"{file} was not made")
        if file.suffix == ".html":
            return [*shown, self._frame(file)]
        place = f"/{os.path.relpath(file, self.env.srcdir)}"
        width = imagesize.get(file)[0] * CSS_DPI // FILE_DPI
        return [*shown, nodes.image(uri=place, alt=self.options["alt"], width=f"{width}px")]

    def _desk(self) -> Path:
        """The folder that the commands of this page run in; new when it is read again."""
        desk = Path(self.env.app.outdir).parent / "drawn" / self.env.docname
        if not self.env.temp_data.get("desk"):
            self.env.temp_data["desk"] = True
            shutil.rmtree(desk, ignore_errors=True)
            desk.mkdir(parents=True)
            page = Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8")
            for found in FILE.finditer(page):
                (desk / found["name"]).write_text(found["text"], encoding="utf-8")
            for name, photograph in zip(
                ("a.jpg", "b.jpg"), sorted(PHOTOGRAPHS.glob("*.jpg")), strict=False
            ):
                shutil.copy(photograph, desk / name)
        return desk

    def _run(self, commands: str) -> None:
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self._desk(),
            env=os.environ | {"PATH": programs, "DOCS": str(self.env.srcdir)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise self.error(f"{commands}\n{done.stdout}\n{done.stderr}")

    def _frame(self, file: Path) -> nodes.Node:
        """The page of a report, as it is, inside this one."""
        name = "-".join([*Path(self.env.docname).parts[-1:], file.name])
        folder = Path(self.env.app.outdir) / LIVE
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / name)
        address = "../" * self.env.docname.count("/") + f"{LIVE}/{name}"
        alt = escape(self.options["alt"], quote=True)
        html = (
            f'<iframe class="live" src="{address}" title="{alt}" loading="lazy"></iframe>'
            f'<p class="live"><a href="{address}">{alt}, in a window of its own</a></p>'
        )
        return nodes.raw(text=html, format="html")


def setup(application: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    application.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}
