"""The figure that a notebook shows of a run: it is rendered here, unlike in ``test_run``."""

import base64
import io
import re

import pytest
from PIL import Image
from support.figure_cases import TABLES, write

from normprobe.run import Run


def test_the_figure_of_a_notebook_is_sharp_and_described(tmp_path):
    """More pixels than the 96 an inch that it is shown with."""
    run = Run(write(tmp_path, TABLES["layers"]))
    run.store.record |= {"command": "layers", "model": "org/model", "data": "mmbench"}
    (tag,) = re.findall(r"<img [^>]*>", run._repr_html_())
    data, width = re.search(r"base64,([^\"]*)", tag), re.search(r"width:([0-9.]+)in", tag)
    assert data and width
    image = Image.open(io.BytesIO(base64.b64decode(data[1])))
    assert image.width == pytest.approx(200 * float(width[1]), abs=1)
    assert 'alt="org/model, 56 samples of mmbench"' in tag
    assert "max-width:100%" in tag
