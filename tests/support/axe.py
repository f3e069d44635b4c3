"""axe-core, which looks for what keeps people from using a page: fetched for tests alone.

It is no part of the project (its licence is MPL-2.0) and lies in a cache outside of it. Without npm
or a registry the tests that need it are skipped, and say so.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

_VERSION = "4.14.1"
_SHA256 = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"
_PATIENCE = 120  # seconds


def axe_script() -> str:
    """The script, for ``Browser.evaluate``: it defines ``axe``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normprobe-tests"
    file = cache / f"axe-core-{_VERSION}.tgz"
    if not file.exists():
        _fetch(cache)
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    assert found == _SHA256, f"{file} is not axe-core {_VERSION}: delete it"
    with tarfile.open(file) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def _fetch(cache: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm to fetch axe-core with: apt-get install npm")
    cache.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", "--ignore-scripts", "--silent", f"axe-core@{_VERSION}"]
    try:
        subprocess.run(command, cwd=cache, check=True, capture_output=True, timeout=_PATIENCE)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm does not fetch axe-core {_VERSION}: {error}")
