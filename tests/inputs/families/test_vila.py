"""NVILA is refused before anything of it is loaded."""

import json

import pytest

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import open_checkpoint


def test_it_says_what_can_be_measured_instead(tmp_path):
    auto_map = {"AutoConfig": "modeling_vila.VILAConfig"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vila", "auto_map": auto_map}))
    with pytest.raises(NormprobeError, match="neither weights nor positions") as refused:
        open_checkpoint(str(tmp_path), trust_remote_code=True)
    assert "FOLDER/llm" in refused.value.remedy
