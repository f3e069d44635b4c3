import json
from pathlib import Path

import numpy as np
from support import made_tables

from normprobe.runs.files import json_bytes, jsonable, table_json


def test_values_of_every_origin():
    value = {
        "path": Path("a/b"),
        "nan": float("nan"),
        "numpy": np.float32(0.5),
        "integer": np.int64(3),
        "flag": np.bool_(True),
        "array": np.array([1.0, np.inf]),
        "float64": np.float64("nan"),
        "tuple": (1, 2),
        "set": {"b", "a"},
        3: None,
    }
    assert jsonable(value) == {
        "path": "a/b",
        "nan": None,
        "numpy": 0.5,
        "integer": 3,
        "flag": True,
        "array": [1.0, None],
        "float64": None,
        "tuple": [1, 2],
        "set": ["a", "b"],
        "3": None,
    }


def test_arguments_that_are_no_utf8_survive():
    argv = ["--data", "question\udce9", "café"]
    assert json.loads(json_bytes(argv)) == argv


def test_floats_keep_full_precision():
    assert json.loads(json_bytes([0.1 + 0.2])) == [0.1 + 0.2]


def test_tables_are_strict_and_exact():
    table = made_tables.layers()
    rows = json.loads(table_json(table))
    assert len(rows) == len(table)
    assert rows[0]["angle_mean"] is None
    assert rows[1]["cosine_mean"] == np.cos(made_tables.VISUAL_ANGLE[1])
    assert rows[1]["angle_below_resolution"] is False
