import pytest

from normprobe.data.data_set import open_data


@pytest.fixture(scope="session")
def samples():
    """Two questions of different length."""
    return list(open_data("sample", limit=2))
