"""``repository(family)``: written once a session; its code is cached beside it, not at home."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from transformers import dynamic_module_utils

from support.remote_code import make_repository


@pytest.fixture(name="repository", scope="session")
def repository_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    root = tmp_path_factory.mktemp("remote-code")
    with patch.object(dynamic_module_utils, "HF_MODULES_CACHE", str(root / "modules")):
        yield cache(lambda family: make_repository(family, root / family))
