"""Write what the commands print and draw into the README.

Run by `make readme`; tests/test_readme.py holds the README to it.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from transformers import AutoModelForImageTextToText, LlavaConfig

ROOT = Path(__file__).resolve().parent.parent
#: What the README tells about weights, in the order of its rows.
ROWS = ("embeddings", "interface", "layers", "checkpoint")


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, block in {"layers": layers_block(), "weights": weights_block()}.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        text = place.sub(lambda _, block=block: block, text)
    readme.write_text(text, encoding="utf-8")


def printed_by(*words: str) -> str:
    command = [sys.executable, "-m", "normprobe", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def layers_block() -> str:
    """The table and the sentences of the specimen; its page goes beside this README."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        printed = printed_by("layers", "--output", str(run))
        picture_of(run, Path(folder) / "page.html")
    lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return f"```text\n{lines}\n```\n"


def picture_of(run: Path, page: Path) -> None:
    """What a browser shows first of the page of a run, as `.github/page.png`."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.stderr.write("no chromium: .github/page.png stays as it is\n")
        return
    printed_by("report", str(run), "--output", str(page))
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    shot = ("--window-size=900,1040", f"--screenshot={ROOT / '.github/page.png'}", page.as_uri())
    subprocess.run([browser, *flags, *shot], check=True, capture_output=True)


def weights_block() -> str:
    """What a 7B checkpoint makes each command read, by its headers."""
    with tempfile.TemporaryDirectory() as folder:
        write_headers(Path(folder))
        printed = printed_by("inspect", folder, "--weights", "--format", "json")
    found = {row["what"]: row for row in json.loads(printed)["weights"]}
    lines = ["| command | weights it reads | in files |", "|---|--:|--:|"]
    files = {what: len(row["files"].split()) for what, row in found.items()}
    for name in ROWS:
        label = "the whole checkpoint" if name == "checkpoint" else f"`{name}`"
        size, whole = found[name]["bytes"] / 1e9, files["checkpoint"]
        lines.append(f"| {label} | {size:.2f} GB | {files[name]} of {whole} |")
    return "\n".join(lines) + "\n"


def write_headers(folder: Path) -> None:
    """A checkpoint of LLaVA-1.5-7B's shape whose files are headers alone: the rest is a hole."""
    text = {"model_type": "llama", "vocab_size": 32_064}
    config = LlavaConfig(text_config=text, dtype="float16")
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float16)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tensors = model.state_dict()
    shards = split_torch_state_dict_into_shards(tensors)
    for name, keys in shards.filename_to_tensors.items():
        header, end = {}, 0
        for key in keys:
            begin, end = end, end + tensors[key].nbytes
            shape = list(tensors[key].shape)
            header[key] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
        written = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(len(written).to_bytes(8, "little") + written)
            file.truncate(8 + len(written) + end)
    index = {"metadata": {}, "weight_map": shards.tensor_to_filename}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


if __name__ == "__main__":
    main()
