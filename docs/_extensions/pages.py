"""What holds of every page: formulas without a network, pictures where they belong, no warnings."""

from fnmatch import fnmatch
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOG = logging.getLogger(__name__)


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _displayed(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def _words_around(image: nodes.image) -> str:
    """The heading and the first paragraph above a picture that a cell draws."""
    section = image.parent
    while not isinstance(section, nodes.section):
        section = section.parent
    first = next(section.findall(nodes.paragraph))
    return f"{section.next_node(nodes.title).astext()}: {first.astext()}"


def _check(application: Sphinx, tree: nodes.document, page: str) -> None:
    """Say which page holds no picture where it should, and which shows a warning.

    A picture without a description gets one: people who do not see it read on.
    """
    if application.builder.format != "html" or application.config.nb_execution_mode == "off":
        return
    raw = "".join(node.astext() for node in tree.findall(nodes.raw))
    images = list(tree.findall(nodes.image))
    told = [fnmatch(page, pattern) for pattern in application.config.pages_with_pictures]
    if any(told) and not images and "<img" not in raw and "<iframe" not in raw:
        _LOG.warning("the page should hold a picture", location=page)
    for image in images:
        if not image.get("alt"):
            image["alt"] = _words_around(image)
    for block in tree.findall(nodes.literal_block):
        if "output" in block["classes"] and "Warning" in block.astext():
            _LOG.warning("an output shows a warning: %s", block.astext(), location=page)


def _all_there(application: Sphinx, failure: Exception | None) -> None:
    """Every source has its page: a process that writes some of them may have failed unheard."""
    if failure is not None or application.builder.format != "html":
        return
    builder = application.builder
    pages = {page: Path(builder.get_outfilename(page)) for page in application.env.found_docs}
    if lost := sorted(page for page, file in pages.items() if not file.is_file()):
        raise ExtensionError(f"{len(lost)} of {len(pages)} pages are lost: {', '.join(lost)}")


def setup(application: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    application.add_config_value("pages_with_pictures", [], "env")
    application.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    application.connect("doctree-resolved", _check)
    application.connect("build-finished", _all_there)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
