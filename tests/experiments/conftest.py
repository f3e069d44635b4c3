"""The bundled specimen, loaded once."""

from typing import Any

import pytest

from normprobe.specimen import SPECIMEN_DIR


@pytest.fixture(scope="session")
def specimen() -> tuple[Any, Any]:
    from experiments.specimen.evaluate import load

    return load(SPECIMEN_DIR)
