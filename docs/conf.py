"""How Sphinx builds the documentation: ``make docs``."""

import sys
from pathlib import Path

from normprobe import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "normprobe"
author = "The normprobe developers"
version = release = __version__

extensions = [
    "myst_nb",  # Markdown, and notebooks in it
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "commands",
    "outside",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "normprobe"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"  # the package may have changed, if the page has not
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
