"""The bundled specimen, loaded once."""

from typing import Any

import pytest

from normprobe.specimen import SPECIMEN_DIR
from normprobe.specimen.evaluate import load


@pytest.fixture(scope="session")
def specimen() -> tuple[Any, Any]:
    return load(SPECIMEN_DIR)
