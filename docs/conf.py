"""How Sphinx builds the documentation: ``make docs``."""

import os
import sys
from importlib.metadata import version as version_of
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
    "drawn",
    "outside",
    "pages",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "normprobe"
html_static_path = ["_static"]
html_css_files = ["normprobe.css"]
templates_path = ["_templates"]
html_show_copyright = False  # the footer says what these pages were made with
html_context = {"made_with": {name: version_of(name) for name in ("torch", "transformers")}}
html_math_renderer = "mathml"  # browsers draw it: no script, no network

#: The build fails where one of these holds none.
pages_with_pictures = [
    "index",
    "gallery/*",
    "tutorial/*",
    "explanation/quantities",
    "how-to/checkpoint-in-training",
    "how-to/compare-runs",
    "how-to/own-data",
    "how-to/own-number",
    "how-to/paper-tables",
    "how-to/relevant-pairs",
    "how-to/survey",
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"  # the package may have changed, if the page has not
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # of a cell, on a busy machine
nb_merge_streams = True
# In a kernel of the build nobody watches progress.
os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
