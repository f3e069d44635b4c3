import os
from pathlib import Path

from normprobe.runs.own_files import is_own, own_files


def test_links_out_of_a_folder_and_pipes_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("key")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.csv").write_text("key")
    run = tmp_path / "run"
    run.mkdir()
    (run / "layers.csv").write_text("layer\n")
    (run / "inside.csv").symlink_to(run / "layers.csv")
    (run / "link.csv").symlink_to(tmp_path / "secret.csv")
    (run / "broken.csv").symlink_to(tmp_path / "absent")
    (run / "folder.csv").mkdir()
    (run / "plots").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(run / "pipe.csv")
    assert [file.name for file in own_files(run, "*.csv")] == ["inside.csv", "layers.csv"]
    assert not is_own(run / "plots/a.csv", run)
    (tmp_path / "linked").symlink_to(run)  # the folder itself may be reached by a link
    assert is_own(tmp_path / "linked/layers.csv", tmp_path / "linked")
