"""Write the samples that `--data mixed` asks about: a picture, a clip, a sound, and text alone.

python -m experiments.specimen.mixed benchmarks_data/mixed
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.specimen.scenes import GRID_PITCH, Scene, SceneObject, render

FRAMES, FPS = 16, 8
QUALITY = 95
RATE, SECONDS = 16000, 1
#: Hertz of the three notes of the sound.
NOTES = (440.0, 554.37, 659.26)


def frame(number: int) -> Image.Image:
    """A red circle that passes from left to right below a blue square."""
    right = round(2 * GRID_PITCH * number / (FRAMES - 1))
    circle = SceneObject("circle", "red", cell=3, shift=(right, 0))
    return Image.fromarray(render(Scene((SceneObject("square", "blue", cell=1), circle))))


def sound() -> np.ndarray:
    """Three notes one after the other, each fading, as int16."""
    seconds = np.arange(RATE * SECONDS // len(NOTES)) / RATE
    notes = [np.sin(2 * np.pi * pitch * seconds) * np.exp(-6 * seconds) for pitch in NOTES]
    return np.round(np.concatenate(notes) * 0.5 * 2**15).astype(np.int16)


def write(folder: Path) -> None:
    """Frames of 64 x 64 pixels, a sound as NumPy holds it, and ``mixed.jsonl`` beside them."""
    (folder / "clip").mkdir(parents=True, exist_ok=True)
    for number in range(FRAMES):
        frame(number).save(folder / f"clip/{number:02}.jpg", quality=QUALITY, subsampling=0)
    np.save(folder / "notes.npy", sound())
    picture = {"image": "clip/00.jpg"}
    clip, notes = {"video": "clip", "fps": FPS}, {"audio": "notes.npy", "rate": RATE}
    lines = [
        {"id": "picture", **picture, "prompt": "What colour is the circle?"},
        {"id": "clip", **clip, "prompt": "Where does the circle go?"},
        {"id": "sound", **notes, "prompt": "How many notes are there?"},
        {
            "id": "all",
            **picture,
            **clip,
            **notes,
            "prompt": "Is the circle of <image> that of <video>? Is there a note in <audio>?",
        },
        {"id": "text", "prompt": "How many corners does a square have?"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n"
    (folder / "mixed.jsonl").write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
