"""What is read of a checkpoint, where its parts are found only when all of it runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.remote_code.tokenizer import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from normprobe import Probe

#: A language model as it is built; what reads pictures is made by its own loader (VTimeLLM).
CODE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

class LaterConfig(LlamaConfig):
    model_type = "later"

class Later(LlamaForCausalLM):
    config_class = LaterConfig

    def forward(self, input_ids, images=None, **_):
        rows = self.model.embed_tokens(input_ids)
        if images is not None:
            seen = self.look(images.flatten(2).transpose(1, 2))
            rows = torch.cat([rows[:, :1], seen, rows[:, 1:]], 1)
        return super().forward(inputs_embeds=rows)
"""

INPUTS = """
import torch

def load_processor(path):
    import transformers
    return transformers.AutoTokenizer.from_pretrained(path)

def prepare(model, processor):
    torch.manual_seed(1)
    model.look = torch.nn.Linear(3, 16)

def build(model, processor, samples, system):
    ids = torch.tensor([[n + 40 + 3 * k for k in range(12)] for n in range(len(samples))])
    pixels = torch.rand(len(samples), 3, 4, 4, generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids, "images": pixels}
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tokenizer = byte_tokenizer((), None)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "vocab_size": len(tokenizer)}
    keys = {"AutoConfig": "later.LaterConfig", "AutoModelForCausalLM": "later.Later"}
    config = {"model_type": "later", "auto_map": keys, "architectures": ["Later"], **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "later.py").write_text(CODE)
    torch.manual_seed(0)
    weights = LlamaForCausalLM(LlamaConfig(**sizes)).state_dict()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "inputs.py").write_text(INPUTS)
    return tmp_path


def test_all_weights_are_read_where_a_trace_has_to_run(checkpoint: Path) -> None:
    """Of what runs before layer 1 alone a trace said that weights are missing."""
    probe = Probe(str(checkpoint), trust_remote_code=True, inputs=str(checkpoint / "inputs.py"))
    run = probe.interface("sample", limit=2, intervals=False, workers=0)
    assert probe.source.measured([]).parts.projector.name == "look"
    assert not any(weight.is_meta for weight in probe.source.model.parameters())
    torch.manual_seed(1)
    look = torch.nn.Linear(3, 16).double()
    pixels = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(2)).double()
    expected = look(pixels.flatten(2).transpose(1, 2)).norm(dim=-1).detach().numpy()
    found = run.wide("norm", "mean").loc["decoder_input", "visual"]
    np.testing.assert_allclose(found, expected.mean(), rtol=1e-6)


@pytest.mark.parametrize("calls", [True, False])
def test_a_mask_that_nothing_makes_is_a_doubt_of_the_run(
    calls: bool, repository: Callable[[str], Path], tmp_path: Path
) -> None:
    """ET Chat overrides how older transformers masked its layers."""
    folder = Path(shutil.copytree(repository("unseen"), tmp_path / f"masks_{calls}"))
    code = folder / "modeling_unseen.py"
    masks = "    def _update_causal_mask(self, *_):\n        return None\n\n    def forward("
    text = code.read_text().replace("    def forward(self, input_ids", f"{masks}self, input_ids", 1)
    asks = "        x = self.lexicon(input_ids)\n"
    assert asks in text
    code.write_text(text.replace(asks, asks + "        self._update_causal_mask(x)\n" * calls))
    run = Probe(str(folder), trust_remote_code=True, device="cpu").layers(
        "sample", limit=1, intervals=False, workers=0
    )
    told = "its code overrides UnseenForCausalLM._update_causal_mask, which this transformers never"
    assert (told in " ".join(run.record.get("doubts", []))) == (not calls)


@pytest.mark.parametrize(("runs_it", "doubted"), [(False, True), (True, False)])
def test_diffusion_is_a_doubt_unless_a_file_runs_the_model_itself(
    runs_it: bool, doubted: bool, checkpoint: Path
) -> None:
    """DiffusionVL takes other inputs than its processor makes, and reads a prompt by blocks."""
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "mask_token_id": 3}))
    own = "def forward(model, **inputs):\n    return model(**inputs)\n" * runs_it
    (checkpoint / "inputs.py").write_text(INPUTS + own)
    probe = Probe(str(checkpoint), trust_remote_code=True, inputs=str(checkpoint / "inputs.py"))
    run = probe.layers("sample", limit=1, intervals=False, workers=0)
    told = " ".join(run.record.get("doubts", []))
    assert ("may write answers by diffusion" in told) == doubted


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("shifts", [True, False])
def test_a_batch_that_own_code_reads_otherwise_is_a_doubt(
    shifts: bool, batch: int, repository: Callable[[str], Path], tmp_path: Path
) -> None:
    """Innovator-VL's vision encoder reads rows of the picture before, 3 % off."""
    folder = Path(shutil.copytree(repository("unseen"), tmp_path / f"of_batches_{shifts}"))
    code = folder / "modeling_unseen.py"
    text = code.read_text().replace("from torch import nn", "import torch\nfrom torch import nn")
    rows = "self.bridge(self.eye(pixel_values))"
    assert rows in text
    grows = f"({rows} * (1 + 0.05 * torch.arange(len(pixel_values)).view(-1, 1, 1)))"
    code.write_text(text.replace(rows, grows) if shifts else text)
    probe = Probe(str(folder), trust_remote_code=True, device="cpu", dtype="float32")
    run = probe.layers("sample", limit=3, batch_size=batch, intervals=False, workers=0)
    told = [each for each in run.record.get("doubts", []) if "in a batch of 2" in each]
    assert len(told) == (shifts and batch == 2)
    assert all("reads samples otherwise beside others" in each for each in told)
