"""The directive ``{commands}``: the help of every command, as the application prints it."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from normprobe.cli.app import COMMANDS, app


class Commands(SphinxDirective):
    """A section a command."""

    def run(self) -> list[nodes.Node]:
        """Build the sections."""
        sections: list[nodes.Node] = []
        for name in COMMANDS:
            section = nodes.section(ids=[f"normprobe-{name}"], names=[f"normprobe {name}"])
            section += nodes.title(text=f"normprobe {name}")
            section += nodes.literal_block(text=_help(name), language="text")
            sections.append(section)
        return sections


def _help(name: str) -> str:
    environment = {"TERMINAL_WIDTH": "96", "COLUMNS": "96", "NO_COLOR": "1"}
    printed = CliRunner().invoke(app, [name, "--help-all"], env=environment, prog_name="normprobe")
    assert printed.exit_code == 0, printed.output
    return "\n".join(line.rstrip() for line in printed.stdout.strip("\n").splitlines())


def setup(application: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    application.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
