import pytest

from data.published import RED


@pytest.fixture
def red_png() -> bytes:
    return RED
