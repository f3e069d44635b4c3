"""Files of a folder that only a file beside imports."""

from pathlib import Path

from transformers.dynamic_module_utils import get_class_from_dynamic_module

from normprobe import remote_code_bridges


def test_all_files_that_a_class_needs_are_copied(tmp_path: Path) -> None:
    """transformers 4 looks no further than the file of the class (V2PE, FineVQ)."""
    folder = tmp_path / "of_three_files"
    folder.mkdir()
    (folder / "first_of_three.py").write_text("from .second_of_three import Second as First\n")
    (folder / "second_of_three.py").write_text("from .third_of_three import Third as Second\n")
    (folder / "third_of_three.py").write_text("class Third: ...\n")
    with remote_code_bridges.foreign_code(True, []):
        found = get_class_from_dynamic_module("first_of_three.First", str(folder))
    assert found.__name__ == "Third"
