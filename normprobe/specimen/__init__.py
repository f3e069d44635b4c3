"""The specimen: a tiny, really trained vision-language model shipped with the package."""

from pathlib import Path

SPECIMEN_DIR: Path = Path(__file__).parent / "checkpoint"
"""Folder of the bundled checkpoint; ``from_pretrained`` reads it without a network."""
