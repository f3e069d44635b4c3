import json
import platform
from pathlib import Path

import numpy

from normprobe.runs.begin import installed_version, provenance
from normprobe.schema import SCHEMA_VERSION


def test_the_record_is_complete_and_json_able():
    record = provenance(["normprobe", "layers"], {"limit": 5, "output": Path("x")}, model="a/b")
    assert json.loads(json.dumps(record)) == record
    assert record["schema_version"] == SCHEMA_VERSION
    assert record["argv"] == ["normprobe", "layers"]
    assert record["options"] == {"limit": 5, "output": "x"}
    assert record["model"] == "a/b"
    assert record["versions"]["numpy"] == numpy.__version__
    assert record["versions"]["python"] == platform.python_version()
    assert {"normprobe", "torch", "transformers", "accelerate", "datasets", "pandas"} <= set(
        record["versions"]
    )
    assert record["created"].endswith("+00:00")


def test_an_absent_package_has_no_version():
    assert installed_version("no-such-distribution-of-ours") is None
