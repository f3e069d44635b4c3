"""The entries of atlas/ that need no download: the specimen, and miniatures of random weights.

Run by `make atlas`; entries of released models stay. A miniature is a LLaVA of the specimen's shape
around another language model: the atlas and its page can be tried with it.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, LlavaForConditionalGeneration

from normprobe.extensions.sharing.atlas import entry_of, file_name, text_of
from normprobe.probe import Probe
from normprobe.specimen import SPECIMEN_DIR

ATLAS = Path(__file__).resolve().parent.parent / "atlas"
#: Language model, and how far the rows of its embedding table spread.
MINIATURES = {
    "llama": 0.02, "mistral": 0.05, "qwen2": 0.2, "qwen3": 1.0, "gemma2": 3.0,
}  # fmt: skip


def main() -> None:
    for name in ("specimen", *MINIATURES):
        entry = made(name)
        for before in ATLAS.glob(f"{entry['model'].replace('/', '--')}--*.json"):
            before.unlink()
        (ATLAS / file_name(entry)).write_text(text_of(entry), encoding="ascii")
        sys.stdout.write(f"{file_name(entry)}: {entry['numbers']}\n")


def made(name: str) -> dict[str, Any]:
    """The entry of the specimen, or of a miniature, over every bundled question."""
    with tempfile.TemporaryDirectory() as folder:
        if name != "specimen":
            save_miniature(name, Path(folder))
        model = "specimen" if name == "specimen" else folder
        probe = Probe(model, device="cpu", dtype="float32")
        run = probe.layers(data="sample", output=Path(folder) / "run")
        return entry_of(run, "" if name == "specimen" else name)


def save_miniature(name: str, folder: Path) -> None:
    """A checkpoint whose weights are drawn in the order of its parameters."""
    shutil.copytree(SPECIMEN_DIR, folder, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(SPECIMEN_DIR, dtype="float32")
    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "vocab_size", "pad_token_id", "bos_token_id",
            "eos_token_id", "max_position_embeddings")  # fmt: skip
    shape = {key: getattr(config.text_config, key) for key in kept}
    config.text_config = AutoConfig.for_model(name, dtype="float32", **shape)
    model = LlavaForConditionalGeneration(config)  # its own weights depend on the release
    random = torch.Generator().manual_seed([*MINIATURES].index(name))
    for key, weight in model.named_parameters():
        spread = MINIATURES[name] if "embed_tokens" in key else 0.05
        weight.data = spread * torch.randn(weight.shape, generator=random)
        if "norm" in key and key.endswith("weight"):
            weight.data += 1
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
