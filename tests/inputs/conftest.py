import pytest
from PIL import Image

from normprobe.data.data_set import open_data
from normprobe.inputs.processor import load_processor
from normprobe.specimen import SPECIMEN_DIR


@pytest.fixture(scope="session")
def specimen_processor():
    """Shared: tests that change it take ``processor`` instead."""
    return load_processor(str(SPECIMEN_DIR))


@pytest.fixture
def processor():
    return load_processor(str(SPECIMEN_DIR))


@pytest.fixture(scope="session")
def samples():
    """Four questions of different length, images of different size and shape."""
    return list(open_data("sample", limit=4))


@pytest.fixture
def photo() -> Image.Image:
    return Image.effect_noise((90, 60), 80).convert("RGB")
