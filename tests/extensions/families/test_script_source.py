"""A script that asks its model is measured, in the rows and numbers of its own run."""

import json
import logging
import pickle
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import invoke
from support.tiny_models import tiny_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from normprobe import NormprobeError, Probe, load_run
from normprobe.errors import FixedStates
from normprobe.extensions.families.script_calls import (
    _words_of,
    call_of,
    decoder_layers_in,
    with_what_it_changes,
)
from normprobe.extensions.families.script_prompt import _name_of_pixels
from normprobe.extensions.families.script_source import _tokenizer
from normprobe.specimen import SPECIMEN_DIR

#: A model of modules as one writes them, in the file that asks it; ``ANSWER`` is how it is asked.
_OWN = """
import sys
from dataclasses import dataclass, field
import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 8, 8)
        block = lambda: nn.TransformerEncoderLayer(48, 4, 96, dropout=0, batch_first=True)
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, pixels):
        rows = self.patch(pixels).flatten(2).transpose(1, 2)
        for block in self.blocks:
            rows = block(rows)
        return rows


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = dict(vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=4)
        heads = dict(num_attention_heads=4, num_key_value_heads=4)
        self.tower, self.projector, self.states = Tower(), nn.Linear(48, 64), []
        self.llm = LlamaForCausalLM(LlamaConfig(**sizes, **heads))

    def rows_of(self, ids, pixels):
        rows = self.projector(self.tower(pixels)) * 5
        table = self.llm.get_input_embeddings()
        return torch.cat([table(ids[:, :3]), rows, table(ids[:, 3:])], 1)

    def encode(self, pixels):
        return self.projector(self.tower(pixels)) * 5

    def forward(self, ids, pixels, *more, cache=None):
        assert more == ("as it is",)
        return self.llm(inputs_embeds=self.rows_of(ids, pixels))

    @torch.no_grad()
    def generate(self, ids, images=None, **how):
        return self.llm.generate(inputs_embeds=self.rows_of(ids, images), **how)

    @torch.no_grad()
    def in_pieces(self, picture, question, guided=False):
        side = torch.tensor(np.array(picture.resize((32, 32)))).permute(2, 0, 1)[None] / 255.0
        ids = torch.tensor([[ord(letter) for letter in question]])
        table, self.states = self.llm.get_input_embeddings(), []
        how = dict(past_key_values=DynamicCache(), use_cache=True, output_hidden_states=True)
        pieces = [table(ids[:, :3]), self.projector(self.tower(side)) * 5, table(ids[:, 3:])]
        beside = DynamicCache()
        for number in range(6):  # the last three are of the answer
            answer = self.llm(inputs_embeds=pieces[number], **how)
            if guided and number < 3:
                self.llm(inputs_embeds=table(ids[:, :3]), past_key_values=beside, use_cache=True)
            self.states.append(answer.hidden_states[:-1])  # the last one is normed
            pieces.append(table(answer.logits[:, -1:].argmax(-1)))

    @torch.no_grad()
    def layer_by_layer(self, ids, pixels, in_halves):
        # What is inside of layers is called, as where two decoders attend to each other.
        rows, llm = self.rows_of(ids, pixels), self.llm.model
        places = llm.rotary_emb(rows, torch.arange(rows.shape[1])[None])
        mask = torch.full((rows.shape[1],) * 2, -1e9).triu(1)[None, None]
        how, self.states = dict(position_embeddings=places, attention_mask=mask), []
        for layer in llm.layers:
            self.states.append(rows)
            if in_halves:
                rows = layer(rows, attended=layer(rows, **how))
            else:
                rows = rows + layer.self_attn(layer.input_layernorm(rows), **how)[0]
                rows = rows + layer.mlp(layer.post_attention_layernorm(rows))
        self.states.append(rows)
        return self.llm.lm_head(llm.norm(rows))

    @torch.no_grad()
    def loop(self, ids, pixels):
        # Layers are called by no module that holds them, for the prompt and for the answer.
        llm, read = self.llm.model, DynamicCache()
        closes = llm.embed_tokens(torch.tensor(9))  # one id by itself
        rows = self.rows_of(ids, pixels)
        rows = torch.cat([rows, closes.expand(1, 1, -1)], 1)
        for _ in range(3):
            before = read.get_seq_length()
            places = torch.arange(before, before + rows.shape[1])[None]
            how = dict(position_embeddings=llm.rotary_emb(rows, places), position_ids=places)
            for layer in llm.layers:
                rows = layer(rows, past_key_values=read, attention_mask=None, **how)
            rows = llm.embed_tokens(self.llm.lm_head(llm.norm(rows))[:, -1:].argmax(-1))

    @torch.no_grad()
    def packed(self, ids, pixels):
        rows, llm = self.rows_of(ids, pixels), self.llm.model
        places, self.states = llm.rotary_emb(rows, torch.arange(rows.shape[1])[None]), []
        for layer in llm.layers:
            self.states.append(rows)
            rows = layer(rows[0], position_embeddings=places, attention_mask=None)[None]
        self.states.append(rows)
        return llm.norm(rows[0])

    @torch.no_grad()
    def act(self, ids, images):
        longer = torch.cat([ids, torch.full((1, 2), 7)], 1)
        return self.llm.generate(inputs_embeds=self.rows_of(longer, images), max_new_tokens=2)

    @torch.no_grad()
    def chat(self, picture, question, history=None):
        side = np.array(picture.resize((32, 32)))
        pixels = torch.tensor(side).permute(2, 0, 1)[None].cuda().float() / 255 - 0.5
        ids = torch.tensor([[ord(letter) for letter in question]]).to("cuda")
        made = self.rows_of(ids, pixels)
        return self.llm.generate(inputs_embeds=made, max_new_tokens=3, do_sample=False)


class Talk:
    def __init__(self, model):
        self.model, self.said = model, []

    def answer(self, picture, question):
        self.said.append(question)
        return self.model.chat(picture, " ".join(self.said))


@dataclass
class Said:
    messages: list = field(default_factory=list)


class Chat:
    def __init__(self, model):
        self.model = model

    def upload(self, picture, said, seen):
        side = torch.tensor(np.array(picture.resize((32, 32)))).permute(2, 0, 1)[None] / 255.0
        self.model.settings = None
        seen.append(self.model.encode(side))
        self.model.settings = lambda rows: rows
        said.messages.append("see")
        return "received"

    def context(self, said, seen):
        table = self.model.llm.get_input_embeddings()
        words = [torch.tensor([[ord(letter) for letter in text]]) for text in said.messages]
        return torch.cat([table(words[0]), *seen, *map(table, words[1:])], 1)

    def answer_all(self, said, seen):
        return [self.answer(*each) for each in zip(said, seen)]

    def answer_of(self, said, images):
        return self.answer(said, images)

    def answer(self, said, seen):
        said.messages.append("so")
        made = self.model.settings(self.context(said, seen))
        answer = self.model.llm.generate(inputs_embeds=made, max_new_tokens=2, do_sample=False)
        said.messages[-1] = "it is"
        return answer


def ask(model, picture, question):
    side = torch.tensor(np.array(picture.resize((32, 32)))).permute(2, 0, 1)[None] / 255.0
    ids = torch.tensor([[ord(letter) for letter in question]])
    return model.llm.generate(inputs_embeds=model.rows_of(ids, side), max_new_tokens=2)


model = Reader().eval().cuda()
numbers = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
picture, question = Image.fromarray(numbers), "What is it?"
ids = torch.tensor([[ord(letter) for letter in question]])
pixels = torch.randn(1, 3, 32, 32, device="cuda")
print("asked", sys.argv[1:])
ANSWER
print("answered")
"""
_ASKED = {
    "chat": "model.chat(picture, question)",
    "generate": "model.generate(ids, images=pixels, max_new_tokens=3, do_sample=False)",
    "forward": "model(ids, pixels, 'as it is')",
    "of rows made before": (
        "rows = model.rows_of(ids, pixels)\n"
        "model.llm.generate(inputs_embeds=rows, max_new_tokens=2, do_sample=False)"
    ),
    "of what holds it": "Talk(model).answer(picture, question)",
    "of a function": "ask(model, picture, question)",
    "of a conversation": (
        "talk, said, seen = Chat(model), Said(), []\n"
        "talk.upload(picture, said, seen)\nsaid.messages.append('what?')\n"
        "talk.answer(said, seen)"
    ),
    "looped over": "model.loop(ids, pixels)",
    "of more words than it is given": "model.act(ids, pixels)",
    "by beams": "model.generate(ids, images=pixels, max_new_tokens=2, num_beams=3)",
    "of a function that uploads": (
        "def upload_and_ask(talk, said, images):\n"
        "    talk.upload(picture, said, images)\n    said.messages.append('what?')\n"
        "    return talk.answer_of(said, images)\n\n"
        "upload_and_ask(Chat(model), Said(), [])"
    ),
    "of talk in lists": (
        "from types import SimpleNamespace\n"
        "talk, said, seen = Chat(model), SimpleNamespace(messages=[]), []\n"
        "talk.upload(picture, said, seen)\nsaid.messages.append('what?')\n"
        "talk.answer_all([said], [seen])"
    ),
    "in a thread": (
        "from threading import Thread\n"
        "thread = Thread(target=model.chat, args=(picture, question))\n"
        "thread.start()\nthread.join()"
    ),
    "sampled": "model.generate(ids, images=pixels, max_new_tokens=3, do_sample=True)",
    "in bfloat16": (
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    model.generate(ids, images=pixels)"
    ),
}
#: Rows of the picture: four by four patches behind three letters.
_VISUAL = slice(3, 19)


def _script(folder: Path, answer: str, text: str = _OWN) -> str:
    path = folder / "ask it.py"
    path.write_text(text.replace("ANSWER", answer))
    return shlex.quote(str(path))


def _states_of_its_run(typed: str) -> list[np.ndarray]:
    """What enters the first decoder layer and leaves each, where the script runs by itself."""
    found: list[np.ndarray] = []

    def see(_: object, args: tuple[torch.Tensor, ...], state: torch.Tensor) -> None:
        for each in (state,) if found else (args[0], state):
            if each.shape[-2] > 1 and len(found) < 5:  # no state of the answer
                found.append(each.detach().double().numpy())

    kind = "transformers.models.llama.modeling_llama"
    layer = __import__(kind, fromlist=["_"]).LlamaDecoderLayer
    made = layer.__init__

    def watched(self: torch.nn.Module, *args: object, **kwargs: object) -> None:
        made(self, *args, **kwargs)
        self.register_forward_hook(see)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "__init__", watched)
        runpy.run_path(_on_a_cpu(typed))
    return found


def _on_a_cpu(typed: str) -> str:
    """The path of the script without a GPU in it."""
    (path,) = shlex.split(typed)
    text = Path(path).read_text().replace('"cuda"', '"cpu"').replace(".cuda()", "")
    Path(f"{path}.cpu.py").write_text(text)
    return f"{path}.cpu.py"


@pytest.fixture(autouse=True)
def _layers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaDecoderLayer, "forward", LlamaDecoderLayer.forward)  # put back


#: A layer that is called twice: for its attention, and to add it and the rest.
_HALVES = """
from transformers.models.llama import modeling_llama

def in_halves(self, rows, attended=None, **how):
    if attended is None:
        return self.self_attn(self.input_layernorm(rows), **how)[0]
    rows = rows + attended
    return rows + self.mlp(self.post_attention_layernorm(rows))

modeling_llama.LlamaDecoderLayer.forward = in_halves
"""
#: A layer whose rows have no batch.
_PACKED = """
from transformers.models.llama import modeling_llama

whole = modeling_llama.LlamaDecoderLayer.forward

def packed(self, rows, **how):
    return whole(self, rows.view(1, -1, 64), **how).view(-1, 64)

modeling_llama.LlamaDecoderLayer.forward = packed
"""
_OTHERWISE = {
    "without a batch": f"{_PACKED}model.packed(ids, pixels)",
    "in pieces": "model.in_pieces(picture, question)",
    "in pieces, and others beside": "model.in_pieces(picture, question, guided=True)",
    "what is inside": "model.layer_by_layer(ids, pixels, False)",
    "in halves": f"{_HALVES}model.layer_by_layer(ids, pixels, True)",
}
#: What a script keeps: states ``[1, seq, hidden]`` as they enter layers, and leave the last one.
_KEEPS = "\nimport pickle\npickle.dump(model.states, open(FILE, 'wb'))"


@pytest.mark.parametrize("asked", _OTHERWISE)
def test_layers_that_are_run_otherwise_show_the_states_of_the_whole_prompt(
    asked: str, tmp_path: Path
) -> None:
    kept = tmp_path / "states.pickle"
    keeps = _script(tmp_path, _OTHERWISE[asked] + _KEEPS.replace("FILE", repr(str(kept))))
    runpy.run_path(_on_a_cpu(keeps))
    typed = _script(tmp_path, _OTHERWISE[asked])
    table, stages = Probe(typed).layers().table, Probe(typed).interface().table
    states = pickle.loads(kept.read_bytes())
    if "in pieces" in asked:
        states = [torch.cat(pieces, 1) for pieces in zip(*states[:3], strict=True)]

    rows = table.set_index(["quantity", "group", "layer"])
    stages = stages.set_index(["quantity", "stage", "group"])
    for number, state in enumerate(states):
        x = state[0].double().numpy()
        words = np.delete(np.arange(len(x)), _VISUAL)
        turns = _cosine(states[number - 1][0].double().numpy(), x) if number else None
        for group, places in (("visual", _VISUAL), ("text", words)):
            norm = np.linalg.norm(x[places], axis=-1)
            row = rows.loc[("norm", group, number)]
            assert row["tokens"] == len(norm)
            assert row["mean"] == pytest.approx(norm.mean(), rel=1e-5)
            if turns is not None:
                cosine = rows.loc[("cosine", group, number), "mean"]
                assert cosine == pytest.approx(turns[places].mean(), rel=1e-5)
            if not number:
                entry = stages.loc[("norm", "decoder_input", group), "mean"]
                assert entry == pytest.approx(norm.mean(), rel=1e-5)


def _cosine(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(h, axis=-1)
    return (x * h).sum(-1) / lengths


def test_another_prompt_in_the_same_call_is_no_piece(tmp_path: Path) -> None:
    asks = "for each in (pixels, -pixels): model(ids, each, 'as it is')"
    twice = f"def both(model):\n    {asks}\n"
    table = Probe(_script(tmp_path, f"{twice}both(model)")).layers().table

    visual = table[(table["quantity"] == "norm") & (table["group"] == "visual")]
    assert set(visual["tokens"]) == {16}


def test_a_norm_behind_the_projector_reaches_layers_that_read_in_pieces(tmp_path: Path) -> None:
    run = Probe(_script(tmp_path, _OTHERWISE["in pieces"])).layers(align=1.0)

    norms = run.table.set_index(["quantity", "group", "layer"])["mean"]
    assert norms["norm", "visual", 0] == pytest.approx(5, rel=1e-4)  # the script's own factor


def test_what_runs_in_inference_mode_is_measured(tmp_path: Path) -> None:
    asks = (
        "import logging\nlogging.basicConfig(level=logging.INFO, force=True)\n"
        "def ask(ids):\n    return model.generate(ids, images=pixels, max_new_tokens=2)\n"
        "off = torch.inference_mode()\nask, Reader.rows_of = off(ask), off(Reader.rows_of)\n"
        "Reader.generate = off(Reader.generate)\n"
        "with torch.inference_mode():\n    ask(ids)\n    ask(ids.flip(-1))\n"
    )
    level = logging.getLogger().level
    whole = Probe(_script(tmp_path, asks)).layers(limit=2)
    assert logging.getLogger().level == level
    norms = whole.table.set_index(["quantity", "group", "layer"])
    assert norms.loc[("norm", "visual", 0), "tokens"] == 32
    assert "doubts" not in whole.record


def test_a_mask_that_is_shorter_than_its_rows_is_a_doubt(tmp_path: Path) -> None:
    asks = (
        "def ask(model, ids, pixels):\n"
        "    rows = model.rows_of(ids, pixels)\n"
        "    return model.llm(inputs_embeds=rows, attention_mask=torch.ones(1, 1))\n"
        "ask(model, ids, pixels)"
    )
    record = Probe(_script(tmp_path, asks)).layers().record
    assert "attention_mask of what holds the layers tells of 1 of 27 rows" in record["doubts"][0]


def test_rows_that_a_script_puts_together_are_said(tmp_path: Path) -> None:
    asks = (
        "import io\nfile = io.BytesIO()\npicture.save(file, 'png')\nImage.open(file).load()\n"
        "rows = model.projector(model.tower(pixels)) * 5\n"
        "rows = torch.cat([model.llm.get_input_embeddings()(ids), rows], 1)\n"
        "model.llm(inputs_embeds=rows)"
    )
    with pytest.raises(NormprobeError, match="put together before LlamaForCausalLM is called"):
        Probe(_script(tmp_path, asks)).layers()


def test_layers_are_those_of_the_language_model_inside_where_nothing_tells() -> None:
    inner = tiny_model("qwen2_vl").model.language_model
    width = inner.config.hidden_size
    blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(5))
    around = nn.ModuleDict({"a": nn.Embedding(9000, width), "blocks": blocks, "llm": inner})
    assert decoder_layers_in(around)[0] is inner.layers[0]
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    writes = LlamaForCausalLM(LlamaConfig(**sizes))
    around["writes"] = writes  # of fewer words than one that reads alone
    assert decoder_layers_in(around)[0] is writes.model.layers[0]
    adapter = nn.ModuleDict({"inner": writes.get_input_embeddings()})
    adapter.weight = nn.Parameter(torch.zeros(64, 16))
    writes.set_input_embeddings(adapter)
    assert _words_of(writes) == (True, 64)


def test_the_tokenizer_is_the_one_nearest_to_the_table_of_words() -> None:
    model = nn.ModuleDict({"places": nn.Embedding(900, 8), "words": nn.Embedding(500, 16)})
    used = [range(300), range(490), range(301), range(700)]
    assert _tokenizer(used, model, 16) == range(490)
    assert _tokenizer(used, model, None) == range(700)
    assert _tokenizer([range(501)], model, 16) == range(501)
    assert _tokenizer([range(10)], model, 16) is None


def test_a_script_of_a_launcher_runs_as_one_process(tmp_path: Path) -> None:
    begins = (
        "import torch.distributed as dist\n"
        "dist.init_process_group(backend='nccl')\n"
        "torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())\n"
        "dist.barrier()\nmodel.to(0)\n"
    )
    try:
        run = Probe(_script(tmp_path, begins + _ASKED["forward"])).layers()
    finally:
        torch.distributed.destroy_process_group()

    norms = run.table.set_index(["quantity", "group", "layer"])["tokens"]
    assert norms["norm", "visual", 0] == 16


def test_kernels_that_are_absent_are_stood_in_for_where_folders_hold_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without a file outlives the package around it, where that fails to import."""
    if find_spec("flash_attn"):
        pytest.skip("it is there")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    inside = tmp_path / "attends_by_kernels" / "llm"
    inside.mkdir(parents=True)
    (inside.parent / "__init__.py").write_text("from attends_by_kernels.llm import layers\n")
    (inside / "layers.py").write_text("from flash_attn import flash_attn_func\n")
    imports = f"import attends_by_kernels.llm.layers\n{_ASKED['forward']}"
    run = Probe(_script(tmp_path, imports), trust_remote_code=True).layers()
    assert run.record["status"] == "complete"
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        del sys.modules[name]


def test_what_is_wide_as_on_a_gpu_is_as_wide_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    wide = (
        "torch.set_default_tensor_type(torch.cuda.DoubleTensor)\n"
        "model, pixels = model.double(), pixels.double()\n"
    )
    try:
        run = Probe(_script(tmp_path, wide + _ASKED["forward"])).layers()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert run.record["status"] == "complete"


def test_why_it_fails_is_said_with_the_place_and_the_version(tmp_path: Path) -> None:
    fails = (
        "def load(config):\n    raise ValueError('no rope')\n"
        "config = LlamaConfig(transformers_version='4.44.0')\nload(config)"
    )
    typed = _script(tmp_path, fails)
    with pytest.raises(NormprobeError) as told:
        Probe(typed, trust_remote_code=True).layers()
    assert "ValueError: no rope (ask it.py, line" in told.value.problem
    assert "run it by itself first" in told.value.remedy
    assert "4.44.0" in told.value.remedy or "4.57.6" in told.value.remedy


def test_setup_imports_what_lies_beside_the_script_and_fails_in_words(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("seen = []\n")
    file = tmp_path / "inputs.py"
    file.write_text("def setup():\n    import beside_it\n    beside_it.seen.append(1)\n")
    typed = _script(tmp_path, _ASKED["forward"])
    Probe(typed, inputs=file).layers()
    assert __import__("beside_it").seen
    file.write_text("def setup():\n    import nothing_that_is_there\n")
    with pytest.raises(NormprobeError, match=r"setup\(\) of .* fails: ModuleNotFoundError"):
        Probe(typed, inputs=file).layers()


def test_what_was_bridged_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    newer = _ASKED["of rows made before"].replace("max_new", "mm_token_type_ids=ids, max_new")
    Probe(_script(tmp_path, newer), trust_remote_code=True).layers()
    assert "older than this transformers; bridged: " in caplog.text
    assert "mm_token_type_ids" in caplog.text


def test_pixels_are_of_a_video_where_the_prompt_has_its_places() -> None:
    model = tiny_model("qwen2_vl")
    config = model.config
    video, image = torch.tensor([[1, config.video_token_id]]), torch.tensor([[1]])
    assert _name_of_pixels(model, video) == "pixel_values_videos"
    assert _name_of_pixels(model, image) == _name_of_pixels(model, None) == "pixel_values"


@pytest.mark.parametrize("asked", _OTHERWISE)
def test_a_state_that_enters_such_layers_is_changed_or_it_is_said(
    asked: str, tmp_path: Path
) -> None:
    probe = Probe(_script(tmp_path, _OTHERWISE[asked]))
    (batch,) = probe.source.batches(None)
    model = probe.source.measured([])
    shown: list[torch.Tensor] = []
    first, *_, last = model.decoder_layers
    twice = first.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    leaving = last.register_forward_hook(lambda *call: shown.append(call[-1]))

    if asked in ("in halves", "what is inside"):
        with pytest.raises(FixedStates, match="nothing can be changed on the way"):
            model.model(**batch)
        return
    model.model(**batch)
    twice.remove()
    model.model(**batch)
    leaving.remove()

    changed, as_it_is = shown
    assert changed.shape == as_it_is.shape
    assert not torch.allclose(changed, as_it_is, rtol=0.1)


def test_such_layers_are_not_verified(tmp_path: Path) -> None:
    result = invoke("layers", _script(tmp_path, _OTHERWISE["in pieces"]), "--verify")

    assert result.exit_code == 1
    assert "leave out --verify" in result.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("asked", _ASKED)
def test_rows_and_norms_are_those_of_its_own_run(asked: str, tmp_path: Path) -> None:
    typed = _script(tmp_path, _ASKED[asked])
    states = _states_of_its_run(typed)
    assert len(states) == 5

    table = Probe(typed).layers().table

    norms = table[(table["quantity"] == "norm") & (table["layer"] < 5)]
    close = 2e-2 if "bfloat16" in asked else 1e-5
    for number, state in enumerate(states):
        norm = np.linalg.norm(state[0], axis=-1)
        words = np.delete(norm, _VISUAL)
        for group, expected in (("visual", norm[_VISUAL]), ("text", words)):
            (row,) = norms[(norms["layer"] == number) & (norms["group"] == group)].itertuples()
            assert row.tokens == len(expected)
            assert row.mean == pytest.approx(expected.mean(), rel=close)


@pytest.mark.parametrize("asked", ["chat", "of a conversation", "of a function that uploads"])
def test_the_interface_is_that_of_its_own_run(asked: str, tmp_path: Path) -> None:
    run = Probe(_script(tmp_path, _ASKED[asked])).interface()

    table = run.table[run.table["quantity"] == "norm"].set_index(["stage", "group"])
    visual = table.xs("visual", level="group")["tokens"]
    assert dict(visual) == {
        "vision_encoder": 16,
        "projector_input": 16,
        "projector_output": 16,
        "decoder_input": 16,
    }
    words = "What is it?" if asked == "chat" else "seewhat?so"
    assert table.loc[("decoder_input", "text"), "tokens"] == len(words)
    assert run.record["model"] == "ask it" and not run.record.get("doubts")


def test_rows_that_were_made_before_have_no_stages_and_it_is_said(tmp_path: Path) -> None:
    """Of two pictures each call would have to be made again."""
    second = "talk.upload(picture, said, seen)\nsaid.messages.append('what?')"
    asked = _ASKED["of a conversation"].replace("said.messages.append('what?')", second)
    run = Probe(_script(tmp_path, asked)).interface()
    rows = run.table[run.table["quantity"] == "norm"].set_index(["stage", "group"])["tokens"]
    assert dict(rows)["decoder_input", "visual"] == 32
    assert [stage for stage, group in dict(rows) if group == "visual"] == ["decoder_input"]
    assert "are left out: no part that makes them is known." in str(run.verdict).replace("\n", " ")


#: Of transformers, with its own processor, as the page of a checkpoint has it.
_NATIVE = """
import argparse
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

parser = argparse.ArgumentParser()
parser.add_argument("--model")
given = parser.parse_args()
model = AutoModelForImageTextToText.from_pretrained(given.model).to("cuda")
processor = AutoProcessor.from_pretrained(given.model)
words = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
text = processor.apply_chat_template([{"role": "user", "content": words}])
made = processor(text=text, images=Image.new("RGB", (90, 60), "red"), return_tensors="pt")
model.generate(**made.to("cuda"), max_new_tokens=3)
"""


def test_a_script_of_transformers_has_the_numbers_of_its_batch(tmp_path: Path) -> None:
    typed = f"{_script(tmp_path, '', _NATIVE)} --model {shlex.quote(str(SPECIMEN_DIR))}"
    probe = Probe(typed)
    (batch,) = probe.source.batches(None)

    by_script = probe.layers(intervals=False).table
    by_batch = Probe().layers(
        {name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values")},
        intervals=False,
    )

    assert len(probe.source.tokenizer) == len(Probe().source.tokenizer)
    assert by_script.equals(by_batch.table) or np.allclose(
        by_script["mean"], by_batch.table["mean"], rtol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("raise ValueError('no picture')", "fails before its model runs: ValueError: no picture"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that"),
        ("", "ran to its end, and no decoder layer was seen to run in it"),
        ("sys.exit(0)", "ran to its end, and no decoder layer was seen to run in it"),
        ("sys.exit('no such file')", "SystemExit: no such file"),
        ("model.tower(pixels)", "ran to its end, and no decoder layer was seen to run in it"),
    ],
)
def test_what_asks_no_model_is_said(answer: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(NormprobeError, match=said):
        _ = Probe(_script(tmp_path, answer)).parts


def test_no_such_script_is_said() -> None:
    with pytest.raises(NormprobeError, match=r"there is no script missing\.py"):
        Probe("missing.py --model a").layers()


def test_the_script_loads_and_asks_not_the_options(tmp_path: Path) -> None:
    typed = _script(tmp_path, _ASKED["chat"])
    with pytest.raises(NormprobeError, match="--dtype: a script loads and asks its model itself"):
        Probe(typed, dtype="bfloat16")
    probe = Probe(typed)
    with pytest.raises(NormprobeError, match=r"--data: .* asks its model itself"):
        probe.layers("scenes")
    with pytest.raises(NormprobeError, match=r"--batch-size: .* asks its model itself"):
        probe.layers(batch_size=2)


def test_other_commands_take_a_script_or_say_why_not(tmp_path: Path) -> None:
    typed = _script(tmp_path, _ASKED["chat"])
    probe = Probe(typed)
    table = probe.embeddings().table
    assert set(table[table["quantity"] == "norm"]["tokens"]) == {200}
    with pytest.raises(NormprobeError, match=r"cause measures samples, and .* asks its model"):
        probe.cause()
    verified = probe.layers(verify=True)  # which asks a forward for more than this takes
    assert verified.record["status"] == "complete"
    ran = invoke("inspect", shlex.split(typed)[0])
    assert ran.exit_code == 1
    assert "a script is run by normprobe interface, layers and embeddings" in ran.stderr


def test_what_it_prints_stays_out_of_the_table(tmp_path: Path) -> None:
    typed = _script(tmp_path, _ASKED["chat"])
    ran = invoke("layers", f"{typed} --picture a.png", "-o", tmp_path / "run", "--format", "json")
    assert ran.exit_code == 0, ran.output
    assert "asked" not in ran.stdout
    assert "asked ['--picture', 'a.png']" in ran.stderr
    assert load_run(tmp_path / "run").record["options"]["model"] == f"{typed} --picture a.png"


def test_what_it_draws_each_time_is_a_doubt(tmp_path: Path) -> None:
    noisy = _OWN.replace("(pixels)) * 5\n", "(pixels)) * 5 + 3 * torch.randn(64)\n")
    run = Probe(_script(tmp_path, _ASKED["chat"], noisy)).layers()
    doubt = run.record["doubts"][0]
    assert doubt == (
        "the model of the script draws rows at random before its first layer: measured is what the "
        "script drew"
    )
    assert not any("two forwards" in each for each in run.record["doubts"])
    assert "doubts" not in Probe(_script(tmp_path, _ASKED["chat"])).layers().record


def test_what_it_keeps_of_a_question_is_a_doubt(tmp_path: Path) -> None:
    asked = "(pixels)) * (5 + len(ASKED))\n        ASKED.append(rows)\n        table"
    kept = _OWN.replace("(pixels)) * 5\n        table", asked)
    kept = kept.replace("class Tower", "ASKED = []\n\n\nclass Tower")
    assert "ASKED.append" in kept
    run = Probe(_script(tmp_path, _ASKED["generate"], kept)).layers(intervals=False)
    assert any(doubt.startswith("asked the same again") for doubt in run.record["doubts"])


def test_what_is_made_when_it_is_first_asked_stays() -> None:
    """Settings of answers that a bridge makes, in place of None (SkinGPT-4)."""
    model = nn.Linear(2, 2)
    model.settings, model.seen, model.count = None, None, 0

    class Holder:
        def __init__(self) -> None:
            self.model, self.said = model, ["a"]

        def ask(self, question: str) -> None: ...

    holder = Holder()
    model.__class__ = type("Own", (nn.Linear,), {"__module__": "theirs"})
    call = call_of({"self": holder}, Holder.ask.__code__, [model], keeps=True)
    model.settings, model.seen, model.count = object(), torch.ones(2), 1
    holder.said.append("b")
    changed = dict(item for _, held in with_what_it_changes(call).kept for item in held.items())
    assert changed == {"said": ["a"], "seen": None, "count": 0}
    unmade = nn.Linear.__new__(nn.Linear)
    assert call_of({}, Holder.ask.__code__, [unmade], keeps=True).kept == []


@pytest.mark.parametrize("way", ["generate", "of what holds it"])
def test_what_a_model_keeps_of_a_question_is_as_it_was(way: str, tmp_path: Path) -> None:
    """As frames of a video that were seen; and what holds the model keeps what was said."""
    counts = "(pixels)) * (5 + len(self.states))\n        self.states.append(rows)\n        table"
    kept = _OWN.replace("(pixels)) * 5\n        table", counts)
    typed = _script(tmp_path, _ASKED[way], kept)
    states = _states_of_its_run(typed)
    run = Probe(typed).layers(intervals=False)
    assert "doubts" not in run.record
    norms = run.table[(run.table["quantity"] == "norm") & (run.table["group"] == "visual")]
    for number, state in enumerate(states):
        expected = np.linalg.norm(state[0, _VISUAL], axis=-1).mean()
        assert norms[norms["layer"] == number]["mean"].item() == pytest.approx(expected, rel=1e-5)


def test_what_it_draws_is_what_the_script_drew(tmp_path: Path) -> None:
    noisy = _OWN.replace("(pixels)) * 5\n", "(pixels)) * 5 + 3 * torch.randn(64)\n")
    typed = _script(tmp_path, _ASKED["generate"], noisy)
    states = _states_of_its_run(typed)
    table = Probe(typed).layers(intervals=False).table
    norms = table[(table["quantity"] == "norm") & (table["group"] == "visual")]
    for number, state in enumerate(states):
        expected = np.linalg.norm(state[0, _VISUAL], axis=-1).mean()
        assert norms[norms["layer"] == number]["mean"].item() == pytest.approx(expected, rel=1e-5)


def test_numbers_are_as_wide_as_the_script_has_them(tmp_path: Path) -> None:
    """Pixels of a float32 tower before a decoder of float16 are not rounded (Pink)."""
    mixed = _OWN.replace("(pixels)) * 5\n", "(pixels)).half() * 5\n")
    typed = _script(
        tmp_path, f"model.llm.half()\nmodel.dtype = torch.float16\n{_ASKED['forward']}", mixed
    )
    (first, *_) = _states_of_its_run(typed)
    probe = Probe(typed)
    taken: list[torch.dtype] = []
    probe.source.batches(None)
    probe.source.model.tower.register_forward_pre_hook(lambda m, a: taken.append(a[0].dtype))
    table = probe.layers(intervals=False).table
    assert set(taken) == {torch.float32}
    norms = table[(table["quantity"] == "norm") & (table["group"] == "visual")]
    expected = np.linalg.norm(first[0, _VISUAL], axis=-1).mean()
    assert norms[norms["layer"] == 0]["mean"].item() == pytest.approx(expected, rel=1e-7)


def test_halves_that_autocast_of_a_gpu_would_join_are_joined(tmp_path: Path) -> None:
    """Code asks for autocast by the device of its model, and on a CPU does without (BLIP-2)."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    halves = (
        "model.half()\nmodel.tower.norm = nn.LayerNorm(48)\n"
        "plain = model.tower.forward\n"
        "model.tower.forward = lambda x: model.tower.norm(plain(x)).half()\n"
    )
    tables = []
    ways = (_ASKED["forward"], "model.eval()(ids, pixels.half(), 'as it is')")
    for asked in ways:
        typed = _script(tmp_path, halves + asked)
        probe = Probe(typed)
        tables.append(probe.layers(intervals=False).table)
        assert ("autocast of a GPU" in probe.source.bridges) == (asked == ways[0])
    first, second = (table[table["quantity"] == "norm"]["mean"].to_numpy() for table in tables)
    np.testing.assert_allclose(first, second, rtol=1e-3)


def test_layers_that_nothing_tells_are_those_that_the_script_ran(tmp_path: Path) -> None:
    """Where two stacks read words, neither structure nor a trace tells."""
    run = Probe(_script(tmp_path, f"model = model.eval()\n{_ASKED['generate']}"))
    run.source.batches(None)
    assert run.source._layers == "llm.model.layers"


def test_what_a_script_passes_over_is_said(tmp_path: Path) -> None:
    failing = "try:\n    model.tower(pixels[:, :2])\nexcept Exception:\n    pass"
    with pytest.raises(NormprobeError, match=r"no decoder .* it passed over RuntimeError: Given"):
        Probe(_script(tmp_path, failing)).layers()


def test_a_folder_that_a_package_hides_is_said(tmp_path: Path) -> None:
    (tmp_path / "pandas" / "own").mkdir(parents=True)
    with pytest.raises(NormprobeError) as told:
        Probe(_script(tmp_path, "import pandas.own")).layers()
    assert "a package pandas hides the folder beside the script" in told.value.remedy
    (tmp_path / "nobody_hides_it").mkdir()
    (tmp_path / "nobody_hides_it" / "__init__.py").touch()
    with pytest.raises(NormprobeError) as told:
        Probe(_script(tmp_path, "import nobody_hides_it.own")).layers()
    assert "hides the folder" not in told.value.remedy


def test_what_lies_on_a_gpu_is_read_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    reads = (
        "import io\nfile = io.BytesIO()\ntorch.save(model.state_dict(), file)\nfile.seek(0)\n"
        "place = torch.device(f'cuda:{torch.cuda.current_device()}')\n"
        "assert isinstance(place, torch.device) and torch.device(0) == torch.device('cpu')\n"
        "model.load_state_dict(torch.load(file, map_location=place))\n"
    )
    run = Probe(_script(tmp_path, reads + _ASKED["forward"])).layers()
    assert run.record["status"] == "complete"


def test_dropout_of_a_script_is_named(tmp_path: Path) -> None:
    asks = "model.projector = nn.Sequential(model.projector, nn.Dropout(0.5)).train()\n"
    record = Probe(_script(tmp_path, f"{asks}model.train()\n{_ASKED['forward']}")).layers().record
    assert "it is in training mode, and measured without; call its eval()" in record["doubts"][0]


def test_places_that_an_answer_fills_in_are_a_doubt(tmp_path: Path) -> None:
    masked = "model.config = LlamaConfig(mask_token_id=9, num_hidden_layers=4)\nids[:, 6:] = 9\n"
    record = Probe(_script(tmp_path, masked + _ASKED["forward"])).layers().record
    assert record["doubts"][0].startswith("5 rows are places of the answer (config.mask_token_id)")


def test_a_later_prompt_that_is_in_doubt_puts_the_run_in_doubt(tmp_path: Path) -> None:
    noise = "(pixels)) * 5 + 3 * (ids.shape[1] == 6) * torch.randn(64)\n"
    noisy = _OWN.replace("(pixels)) * 5\n", noise)
    twice = f"{_ASKED['chat']}\nmodel.chat(picture, 'Where?')"
    run = Probe(_script(tmp_path, twice, noisy)).layers(limit=2)
    assert any("draws rows at random" in doubt for doubt in run.record["doubts"])


#: A picture whose codes are ids of the text table, put into the prompt by the script.
_CODES = """
import tempfile

file = tempfile.mktemp(suffix=".png")
picture.save(file)
codes = torch.tensor(np.array(Image.open(file).resize((4, 4)))[..., 0]).flatten() // 16 + 150
prompt = torch.cat([ids[:, :3], codes[None], ids[:, 3:]], 1)
model.llm.generate(prompt, max_new_tokens=2, do_sample=False)
"""


def test_a_picture_that_is_seen_nowhere_is_a_doubt_until_its_ids_are_named(tmp_path: Path) -> None:
    typed, inputs = _script(tmp_path, _CODES), tmp_path / "inputs.py"
    inputs.write_text('parts = {"fusion": "discrete", "image_token_ids": tuple(range(150, 166))}')
    for measured in ("layers", "interface"):
        (doubt,) = Probe(typed).measure(measured).record["doubts"]
        assert doubt.startswith("the script opened a picture, and nothing that runs its layers")
        run = Probe(typed, inputs=inputs).measure(measured)
        assert "doubts" not in run.record
        assert run.record["inputs_file"]["path"] == str(inputs)
        rows = run.table[run.table["group"] == "visual"]
        assert set(rows["tokens"]) == {16}


def test_what_names_a_gpu_runs_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    text = "import torch\n" + _NATIVE.replace('.to("cuda")\np', "\np")
    text = text.replace("(given.model)\np", "(given.model, device_map='cuda:0')\np")
    asked = "with torch.autocast('cuda', dtype=torch.bfloat16):\n    model.generate(**made, "
    text = text.replace('model.generate(**made.to("cuda"), ', asked)
    typed = f"{_script(tmp_path, '', text)} --model {shlex.quote(str(SPECIMEN_DIR))}"
    seen: list[torch.dtype] = []
    probe = Probe(typed)
    probe.source.batches(None)
    layer = probe.source.model.get_submodule("model.language_model.layers.0.mlp.gate_proj")
    layer.register_forward_hook(lambda m, a, o: seen.append(o.dtype))
    probe.layers(intervals=False)
    assert set(seen) == {torch.bfloat16}


def test_a_notebook_is_a_script_too(tmp_path: Path) -> None:
    first, second = _OWN.replace("ANSWER", _ASKED["chat"]).split("class Talk:")
    cells = [("markdown", "# How to ask"), ("code", f"%matplotlib inline\n!pip list\n{first}")]
    cells.append(("code", f"class Talk:{second}"))
    held = [{"cell_type": kind, "source": text.splitlines(True)} for kind, text in cells]
    (tmp_path / "ask.ipynb").write_text(json.dumps({"cells": held}))
    table = Probe(str(tmp_path / "ask.ipynb")).layers().table
    assert set(table[table["group"] == "visual"]["tokens"]) == {16}


def test_a_script_inside_of_a_package_imports_what_is_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "answers_in_a_package" / "scripts"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    own, asked = _OWN.split("class Talk:")
    (package / "modules.py").write_text(own)
    text = f"from .modules import *\nclass Talk:{asked}"
    run = Probe(_script(package, _ASKED["chat"], text)).layers()
    assert run.record["status"] == "complete"


def test_layers_that_are_named_are_those_that_end_the_script(tmp_path: Path) -> None:
    """A larger stack nearer to the table hides them, in a model that is no PreTrainedModel."""
    typed = _script(
        tmp_path,
        _ASKED["generate"],
        _OWN.replace("LlamaForCausalLM(LlamaConfig(**sizes, **heads))", "Alone(**sizes, **heads)")
        .replace(
            "class Tower(nn.Module)",
            "class Alone(nn.Module):\n"
            "    def __init__(self, **sizes):\n"
            "        super().__init__()\n"
            "        whole = LlamaForCausalLM(LlamaConfig(**sizes))\n"
            "        self.layers, self.table = whole.model.layers, whole.model.embed_tokens\n"
            "        self.whole = [whole]\n\n"
            "    def get_input_embeddings(self):\n        return self.table\n\n"
            "    def generate(self, **how):\n        return self.whole[0].generate(**how)\n\n\n"
            "class Tower(nn.Module)",
        )
        .replace(
            "        self.tower, self.projector",
            "        self.more = nn.ModuleList(nn.Linear(64, 900) for _ in range(9))\n"
            "        self.words = nn.Embedding(999, 64)\n"
            "        self.tower, self.projector",
        ),
    )
    with pytest.raises(NormprobeError, match="no decoder layer was seen"):
        Probe(typed).layers()
    named = {"decoder_layers": "llm.layers", "text_embedding": "llm.table"}
    table = Probe(typed, named=[*named.items()]).layers().table
    assert set(table[table["group"] == "visual"]["tokens"]) == {16}


def test_the_first_prompt_with_a_picture_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """UNITE's script embeds words first."""
    words = "model.llm.generate(ids, max_new_tokens=2, do_sample=False)\n"
    both = Probe(_script(tmp_path, words + _ASKED["generate"])).layers().table
    (tmp_path / "b").mkdir()
    one = Probe(_script(tmp_path / "b", _ASKED["generate"])).layers().table
    assert both.equals(one)
    (tmp_path / "c").mkdir()
    many = "for number in range(99):\n    print('asked', number)\n    "
    alone = Probe(_script(tmp_path / "c", many + words)).layers().table
    assert set(alone["group"]) <= {"text", "special", "non_visual"}
    printed = capsys.readouterr().err
    assert "asked 16" in printed
    assert "asked 17" not in printed


#: The model asked four times: two questions about each of two pictures.
_FOUR_TIMES = """
for seed in (0, 1):
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    for words in ("What is it?", "Where?"):
        ids = torch.tensor([[ord(letter) for letter in words]])
        model.generate(ids, images=pixels, max_new_tokens=2, do_sample=False)
"""


def test_as_many_prompts_as_are_asked_for(tmp_path: Path) -> None:
    probe = Probe(_script(tmp_path, _FOUR_TIMES))

    once, whole = probe.layers(), probe.layers(limit=9)

    one, four = (run.wide("norm") for run in (once, whole))
    words = whole.table[(whole.table["layer"] == 0) & (whole.table["group"] == "text")]
    assert set(words["tokens"]) == {2 * len("What is it?") + 2 * len("Where?")}
    assert once.record["intervals"]["units"] == 1
    assert whole.record["intervals"]["units"] == 2  # pictures, whatever is asked about them
    assert not one.equals(four)
