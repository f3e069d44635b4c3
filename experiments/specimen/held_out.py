"""Write the held-out questions of `--data scenes` and `--data turns`: drawn pictures, no two alike.

python -m experiments.specimen.held_out benchmarks_data/scenes
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from experiments.specimen.accuracy import held_out_items
from experiments.specimen.scenes import render

#: The kinds that the specimen has learned; yes or no and multiple choice are at chance.
KINDS = ("color", "shape", "position", "count", "digit")
PER_KIND = 40
#: Half of the size of a PNG; the specimen answers the same questions rightly.
QUALITY = 95
#: Conversations about them, of as many turns. The kinds take turns: no turn has one of its own.
CONVERSATIONS, TURNS = PER_KIND, 3


def write(folder: Path) -> None:
    """Pictures of 64 x 64 pixels, ``scenes.jsonl`` and ``turns.jsonl`` beside them."""
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
    (folder / "turns.jsonl").write_text("\n".join(conversations(lines)) + "\n")


def conversations(lines: Sequence[str]) -> Iterator[str]:
    """Questions in turns, each with its picture; the lines of ``turns.jsonl``."""
    questions = [json.loads(line) for line in lines]
    for number in range(CONVERSATIONS):
        kinds = [(number + turn) % len(KINDS) for turn in range(TURNS)]
        asked = [questions[kind * PER_KIND + number] for kind in kinds]
        messages = []
        for question in asked:
            messages += [
                {"role": "user", "content": f"<image>{question['prompt']}"},
                {"role": "assistant", "content": question["answer"]},
            ]
        images = [question["image"] for question in asked]
        yield json.dumps({"id": f"turns-{number + 1}", "images": images, "messages": messages})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
