"""Write the held-out questions that `--data scenes` asks: drawn pictures, no two alike.

python -m experiments.specimen.held_out benchmarks_data/scenes
"""

import json
import sys
from pathlib import Path

from PIL import Image

from experiments.specimen.accuracy import held_out_items
from experiments.specimen.scenes import render

#: The kinds that the specimen has learned; yes or no and multiple choice are at chance.
KINDS = ("color", "shape", "position", "count", "digit")
PER_KIND = 40
#: Half of the size of a PNG; the specimen answers the same questions rightly.
QUALITY = 95


def write(folder: Path) -> None:
    """Pictures of 64 x 64 pixels, and ``scenes.jsonl`` beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    items = held_out_items(PER_KIND)
    lines = []
    for kind in KINDS:
        for number, item in enumerate(items[kind], start=1):
            key = f"{kind}-{number}"
            picture = Image.fromarray(render(item.scene))
            picture.save(folder / f"{key}.jpg", quality=QUALITY, subsampling=0)
            said = {"prompt": item.question.text, "answer": item.question.answer}
            lines.append(json.dumps({"id": key, "image": f"{key}.jpg", **said}))
    (folder / "scenes.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
