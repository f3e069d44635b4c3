"""Which versions resolve together: normprobe beside engines and trainers. `make environments`.

uv resolves each pair against the package index, without installing anything. The table goes into
docs/how-to/engines.md, with its date. Resolving says that the versions allow each other; what was
run is said on that page.
"""

import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/how-to/engines.md"
BESIDE = ("vllm", "sglang", "axolotl==0.21.0", "ms-swift", "llamafactory", "trl")
SHOWN = ("transformers", "torch", "numpy", "pandas")
PYTHON = "3.12"


def resolved(wheel: Path, beside: str) -> dict[str, str] | str:
    """The version of each package of an environment with both, or why there is none."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
    command += ["--no-annotate", "--python-version", PYTHON, "-"]
    wanted = f"normprobe @ {wheel.as_uri()}\n{beside}\n"
    done = subprocess.run(command, input=wanted, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = re.sub(r"\s*[^\x00-\x7f]+\s*|\s+", " ", done.stderr).strip()
        return reason.partition("we can conclude")[0].partition("Because ")[2].rstrip(", ")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE))


def table(wheel: Path) -> str:
    """A row an engine or trainer, in Markdown."""
    lines = ["| beside normprobe | " + " | ".join(SHOWN) + " |", "|---" * (1 + len(SHOWN)) + "|"]
    reasons = []
    for beside in BESIDE:
        found, name = resolved(wheel, beside), beside.partition("==")[0]
        if isinstance(found, str):
            lines.append(f"| {name} |" + " - |" * len(SHOWN))
            reasons.append(f"{name}: {found}")
        else:
            cells = [f"{name} {found[name]}", *(found.get(package, "-") for package in SHOWN)]
            lines.append("| " + " | ".join(cells) + " |")
    told = f"Resolved by uv for Python {PYTHON} on {datetime.now(UTC):%Y-%m-%d}."
    return "\n".join([*lines, "", " ".join([told, *reasons])]) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
        subprocess.run(build, check=True)
        text = table(next(Path(folder).glob("*.whl")))
    sys.stdout.write(text)
    block = re.compile(r"(?<=<!-- environments -->\n).*?(?=<!-- /environments -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: text, PAGE.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
