"""Write what `normprobe layers` prints and draws into the README.

Run by `make readme`; tests/test_readme.py holds the README to it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- /layers -->)", re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "normprobe", "layers", "--output", str(run)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        shutil.copy(run / "plots/layers.png", ROOT / ".github/layers.png")
    table_and_sentence = "\n\n".join(printed.strip().split("\n\n")[:2])  # the theory follows
    lines = "\n".join(line.rstrip() for line in table_and_sentence.splitlines())
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(BLOCK.sub(lambda _: f"```\n{lines}\n```\n", text), encoding="utf-8")


if __name__ == "__main__":
    main()
