"""The paper's draw from local copies, against the rule written out once more."""

import base64
import hashlib
import io
import random
from collections import Counter

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from data.published import write_mmbench
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

SHARES = {"mmbench": 334, "pope": 333, "mmstar": 333}


def png(number: int) -> bytes:
    """Pictures that differ in every number."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 2), (number % 256, number // 256, 7)).save(buffer, "PNG")
    return buffer.getvalue()


# (key, picture): some pictures are asked about twice, some in two benchmarks.
ROWS = {
    "mmbench": [(str(key), key % 390) for key in range(420)],
    "pope": [(str(key), 350 + key // 2) for key in range(1, 901)],
    "mmstar": [(str(key), 700 + key % 500) for key in range(600)],
}


def write(folder, rows, third="adversarial"):
    folder.mkdir()
    cells = [
        [key, "Which?", "", "a", "b", "", "", base64.b64encode(png(picture)).decode()]
        for key, picture in rows["mmbench"]
    ]
    copies = [["1000007", "Which?", "", "b", "a", "", "", "7"]]
    write_mmbench(folder / "MMBench_DEV_EN.tsv", *cells, *copies)
    for name, key in (("pope", "question_id"), ("mmstar", "index")):
        table = {
            key: [key for key, _ in rows[name]],
            "question": ["Is it?"] * len(rows[name]),
            "image": [{"bytes": png(picture), "path": ""} for _, picture in rows[name]],
        }
        if name == "mmstar":
            table["meta_info"] = [""] * len(rows[name])
        label = f"POPE_{third}" if name == "pope" else "mmstar"
        parquet.write_table(pa.table(table), folder / f"{label}.parquet")
    return open_data(f"paper:{folder}", seed=3)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return write(tmp_path_factory.mktemp("paper") / "data", ROWS)


def test_the_published_rule(drawn):
    seen, expected = set(), []
    for name, share in SHARES.items():
        order = sorted(
            ROWS[name], key=lambda row: hashlib.sha256(f"3|{name}|{row[0]}".encode()).hexdigest()
        )
        mine = []
        for key, picture in order:
            if picture not in seen and len(mine) < share:
                seen.add(picture)
                mine.append(f"{name}/{key}")
        expected += mine
    assert drawn.ids == expected
    assert Counter(sample_id.split("/")[0] for sample_id in drawn.ids) == SHARES


def test_every_picture_once(drawn):
    assert len({sample.image_hash for sample in drawn}) == len(drawn) == 1000


def test_row_order_does_not_matter(drawn, tmp_path):
    shuffled = {name: random.Random(name).sample(rows, len(rows)) for name, rows in ROWS.items()}
    assert write(tmp_path / "shuffled", shuffled).ids == drawn.ids


def test_limit_and_seed(drawn, tmp_path):
    folder = drawn.provenance["data"]
    few = open_data(folder, seed=3, limit=9)
    assert set(few.ids) < set(drawn.ids)
    assert few.ids == open_data(folder, seed=3, limit=20).ids[:9]
    assert set(open_data(folder, seed=4).ids) != set(drawn.ids)


def test_other_thirds_of_pope_are_left_alone(drawn, tmp_path):
    write(tmp_path / "data", ROWS)
    table = parquet.read_table(tmp_path / "data/POPE_adversarial.parquet")
    parquet.write_table(table, tmp_path / "data/POPE_random.parquet")
    assert open_data(f"paper:{tmp_path / 'data'}", seed=3).ids == drawn.ids
    # One table of all thirds, as the default configuration on the hub.
    (tmp_path / "data/POPE_adversarial.parquet").unlink()
    thirds = [
        table.append_column("category", pa.array([name] * len(table)))
        for name in ("random", "adversarial")
    ]
    parquet.write_table(pa.concat_tables(thirds), tmp_path / "data/POPE_random.parquet")
    assert open_data(f"paper:{tmp_path / 'data'}", seed=3).ids == drawn.ids


def test_a_bad_row_gives_its_place_to_the_next(drawn, tmp_path):
    first = drawn.ids[0].removeprefix("mmbench/")
    write(tmp_path / "data", ROWS)
    path = tmp_path / "data/MMBench_DEV_EN.tsv"
    lines = path.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{first}\t"))
    lines[at] = lines[at].rsplit("\t", 1)[0] + "\t" + "*" * 80
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(NormprobeError, match=f"row {at}, column image: expected base64"):
        open_data(f"paper:{path.parent}", seed=3)
    data = open_data(f"paper:{path.parent}", seed=3, skip_bad=True)
    assert len(data) == 1000
    assert drawn.ids[0] not in data.ids
    assert [row.sample for row in data.bad.skipped] == [drawn.ids[0]]


def test_too_little_to_draw_from(tmp_path):
    with pytest.raises(NormprobeError, match="expected a folder"):
        open_data(f"paper:{tmp_path}/none")
    few = ROWS | {"mmstar": ROWS["mmstar"][:300]}
    with pytest.raises(NormprobeError, match=r"mmstar: expected 333 questions .* received"):
        write(tmp_path / "few", few)
    (tmp_path / "few/mmstar.parquet").unlink()
    with pytest.raises(NormprobeError, match=r"expected one file of mmstar \(val\), received 0"):
        open_data(f"paper:{tmp_path / 'few'}")
