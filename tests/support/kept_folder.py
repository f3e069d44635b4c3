"""A folder that a module of tests makes once, and that each test has as it was made."""

import shutil
from pathlib import Path


def keep(folder: Path) -> Path:
    """Keep a copy of a folder beside it."""
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


def restore(folder: Path) -> Path:
    """Make a folder again of what was kept: its runs name its path, so no copy would do."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("kept"), folder)
    return folder
