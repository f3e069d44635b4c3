import json
from pathlib import Path

import numpy as np

from normprobe.runs.json_text import json_bytes, jsonable


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
