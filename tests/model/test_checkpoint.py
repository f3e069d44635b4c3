"""From a name to a checkpoint and the kind of model that it holds."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_models import tiny_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma2Config,
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PaliGemmaConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from normprobe.errors import NormprobeError
from normprobe.inputs.inputs_file import InputsFile
from normprobe.measurements.inspect import inspected
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.class_doubts import (
    attention_doubt,
    diffusion_doubt,
    inputs_doubt,
    other_class_doubt,
)
from normprobe.model.imported_code import absent_code, register_class, run_setup
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.model_kind import KINDS, auto_class
from normprobe.schema import BARE_VISION_ENCODER, LANGUAGE_MODEL, VISION_LANGUAGE
from normprobe.specimen import SPECIMEN_DIR
from normprobe.versions import is_line_5


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("llava", VISION_LANGUAGE),
        ("qwen2_vl", VISION_LANGUAGE),
        ("clip", BARE_VISION_ENCODER),
        ("siglip", BARE_VISION_ENCODER),
        ("llama", LANGUAGE_MODEL),
        ("qwen3", LANGUAGE_MODEL),
    ],
)
def test_a_saved_model_is_opened(model_type: str, kind: str, tmp_path: Path) -> None:
    tiny_model(model_type).save_pretrained(tmp_path / "saved")
    checkpoint = open_checkpoint(str(tmp_path / "saved"))
    assert checkpoint.kind == kind
    assert checkpoint.name == "saved"
    assert checkpoint.local_folders == [str(tmp_path / "saved")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_set_by_hand(kind: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    assert open_checkpoint(str(tmp_path), kind=kind).kind == KINDS[kind]


def test_an_unknown_kind_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NormprobeError, match="'video' is no kind of model") as failure:
        open_checkpoint(str(tmp_path), kind="video")
    assert "vision-language" in failure.value.remedy


def test_a_vision_part_of_any_name_makes_no_language_model(repository: Any) -> None:
    checkpoint = open_checkpoint(str(repository("inplace")), trust_remote_code=True)
    assert checkpoint.kind == VISION_LANGUAGE


@pytest.mark.parametrize(
    ("names", "doubted"),
    [
        (["PllavaForConditionalGeneration"], True),  # a package's, of the type of transformers' own
        (["LlavaForConditionalGeneration"], False),
        (["LLaVAForConditionalGeneration"], False),  # as it was once written
        ([], False),
    ],
)
def test_a_class_that_transformers_lacks_is_doubted(
    names: list[str], doubted: bool, tmp_path: Path
) -> None:
    tiny_model("llava").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": names}))
    opened = open_checkpoint(str(tmp_path))
    assert bool(opened.doubt) == doubted
    if doubted:
        assert "PllavaForConditionalGeneration, which transformers" in opened.doubt
        assert inspected(opened, {}).facts["doubt"] == opened.doubt


def test_an_original_llava_is_no_default_model(tmp_path: Path) -> None:
    config = {"model_type": "llava", "mm_vision_tower": "a/tower", "hidden_size": 5120}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NormprobeError, match="original LLaVA") as failure:
        open_checkpoint(str(tmp_path))
    assert "llava-hf/llava-1.5-13b-hf" in failure.value.remedy


@pytest.mark.parametrize("name", ["", "x" * 256, "x/" * 600, "a\0b", "\x1b[31m", "\udcff"])
def test_what_no_file_system_names_is_no_model(name: str) -> None:
    with pytest.raises(NormprobeError, match="is no model"):
        open_checkpoint(name)


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(NormprobeError, match="is a file") as failure:
        open_checkpoint(str(tmp_path / "weights.bin"))
    assert failure.value.remedy.endswith("without one is measured in Python: Probe(model)")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NormprobeError, match="is a file") as failure:
        open_checkpoint(str(tmp_path / "weights.bin"))
    assert failure.value.remedy == f"pass its folder: {tmp_path}"


def test_a_type_of_transformers_needs_no_code_that_its_config_still_names(tmp_path: Path) -> None:
    """As checkpoints whose type became one of transformers', copied without their code."""
    tiny_model("llava").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    code = {"AutoConfig": "gone.Config", "AutoModelForImageTextToText": "gone.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": code}))
    opened = open_checkpoint(str(tmp_path))
    assert type(opened.config).__name__ == "LlavaConfig"
    assert type(build_on_meta(opened)).__name__ == "LlavaForConditionalGeneration"
    with pytest.raises(NormprobeError, match=r"names gone\.py for its code \(auto_map\)"):
        open_checkpoint(str(tmp_path), trust_remote_code=True)


@pytest.mark.parametrize(
    ("make", "text", "written", "doubted"),
    [
        (LlavaConfig, GemmaConfig, "4.39.1", True),
        (LlavaConfig, Gemma2Config, "4.44.0", True),
        (LlavaConfig, GemmaConfig, "5.16.0", False),
        (LlavaConfig, LlamaConfig, "4.39.1", False),
        (PaliGemmaConfig, GemmaConfig, "4.41.0", False),
    ],
)
def test_rows_of_images_that_gemma_once_multiplied_are_in_doubt(
    make: Any, text: Any, written: str, doubted: bool, tmp_path: Path
) -> None:
    """LLaVA-Gemma: 73.4 on transformers 4.57, 9.18 on 5.23, by the root of its tests' width."""
    make(text_config=text(hidden_size=64)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"transformers_version": written}
    (tmp_path / "config.json").write_text(json.dumps(config))
    doubt = open_checkpoint(str(tmp_path)).doubt if is_line_5() or written[0] == "4" else ""
    assert ("may be 8 x louder in what was trained" in doubt) == (doubted and is_line_5())


def test_a_language_model_of_gemma_is_in_no_doubt(tmp_path: Path) -> None:
    GemmaConfig(hidden_size=64).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"transformers_version": "4.39.1"}))
    assert not open_checkpoint(str(tmp_path)).doubt


def test_the_class_that_auto_map_names_is_built(repository: Any, tmp_path: Path) -> None:
    """Magma's code registers another one, which transformers takes once it is imported."""
    del repository  # its cache of modules
    (tmp_path / "two.py").write_text(
        "from torch import nn\n"
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class TwoConfig(PretrainedConfig):\n"
        "    model_type = 'two'\n"
        "class NamedForCausalLM(PreTrainedModel):\n"
        "    config_class = TwoConfig\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.read = nn.Linear(2, 2)\n"
        "    def forward(self, input_ids): ...\n"
        "class SecondForCausalLM(NamedForCausalLM): ...\n"
        "AutoConfig.register('two', TwoConfig, exist_ok=True)\n"
        "AutoModelForCausalLM.register(TwoConfig, SecondForCausalLM, exist_ok=True)\n"
    )
    auto_map = {"AutoConfig": "two.TwoConfig", "AutoModelForCausalLM": "two.NamedForCausalLM"}
    config = {"model_type": "two", "auto_map": auto_map}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for _ in range(2):
        model = build_on_meta(open_checkpoint(str(tmp_path), trust_remote_code=True))
        assert type(model).__name__ == "NamedForCausalLM"


@pytest.mark.parametrize(("own_forward", "doubted"), [(False, False), (True, True)])
def test_a_class_that_runs_as_the_named_one_is_in_no_doubt(
    own_forward: bool, doubted: bool
) -> None:
    """MoE-LLaVA's README loads one of the same forward, LISA's another model around it."""
    config = type("DerivedConfig", (PretrainedConfig,), {"model_type": "derived"})
    members = {"config_class": config, "forward": lambda self, input_ids: None}
    named: Any = type("Named", (PreTrainedModel,), members)
    other = {"forward": lambda self, input_ids: None} if own_forward else {}
    model = type("Other", (named,), other)(config(architectures=["Named"]))
    assert bool(other_class_doubt(model, ["Named"])) == doubted
    assert not other_class_doubt(model, ["Other"])  # as its file says, whatever it wrote (VoRA)


def test_a_class_that_a_package_registers_for_a_type_of_transformers_is_built(
    tmp_path: Path,
) -> None:
    """PPLLaVA's has the config of LLaVA-NeXT."""
    named: Any = type("LlavaPackaged", (LlavaForConditionalGeneration,), {})
    config = json.loads((SPECIMEN_DIR / "config.json").read_text())
    config |= {"architectures": ["LlavaPackaged"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = open_checkpoint(str(tmp_path)).doubt
    assert "names the class LlavaPackaged, which transformers" in told
    register = "AutoModelForImageTextToText.register(LlavaConfig, LlavaPackaged, exist_ok=True)"
    assert told.endswith(f"behind its import: {register}")
    offered = AutoModelForImageTextToText._model_mapping._extra_content
    try:
        AutoModelForImageTextToText.register(LlavaConfig, named, exist_ok=True)
        opened = open_checkpoint(str(tmp_path))
        assert not opened.doubt
        assert type(build_on_meta(opened)) is named
    finally:
        offered.pop(LlavaConfig)


def test_a_config_that_transformers_did_not_save_is_told_so(tmp_path: Path) -> None:
    """TimeSuite's says how its own code builds it."""
    (tmp_path / "config.json").write_text('{"model": {"vit": "umt"}}')
    with pytest.raises(NormprobeError, match="neither a model_type nor a class") as told:
        open_checkpoint(str(tmp_path))
    assert "Probe(model, forward=...), see own-architecture.md" in told.value.remedy


@pytest.mark.parametrize(("own_forward", "doubted"), [(False, False), (True, True)])
def test_another_class_that_a_package_offers_for_the_type_is_a_doubt(
    own_forward: bool, doubted: bool
) -> None:
    """SparseVLM's package makes its sparse class, and config.json names that of LLaVA."""
    kind = f"sparse_{own_forward}"
    config, other = (type("SparseConfig", (PretrainedConfig,), {"model_type": kind}) for _ in "ab")
    members = {"config_class": config, "forward": lambda self, input_ids: None}
    named: Any = type("Named", (PreTrainedModel,), members)
    own = {"forward": lambda self, input_ids: None} if own_forward else {}
    sparse = type("Sparse", (named,), {**own, "config_class": other})
    AutoConfig.register(kind, other)
    AutoModelForCausalLM.register(other, sparse)
    told = other_class_doubt(named(config()), ["Named"])
    assert ("offers Sparse for its type: measured as Named" in told) == doubted
    assert bool(told) == doubted


def test_code_of_a_repository_is_found_again_beside_a_setup(repository: Any) -> None:
    """Its class reads the config by itself then, which says not where it comes from."""
    folder = str(repository("buffers"))
    for _ in range(2):  # the class is known the second time
        file = InputsFile(setup=lambda: None)
        opened = open_checkpoint(folder, trust_remote_code=True, inputs_file=file)
        assert opened.config.name_or_path == folder
        build_on_meta(opened)


@pytest.mark.parametrize("module", ["transformers_modules.others.modeling", "modeling_of_others"])
def test_a_class_of_the_same_name_that_was_met_before_is_not_taken(
    module: str, repository: Any
) -> None:
    """Copies of a repository, one of them changed, are measured one after the other."""
    folder = Path(repository("buffers"))
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    config = type("OthersConfig", (PretrainedConfig,), {"model_type": "others"})
    others = type(name, (PreTrainedModel,), {"config_class": config, "__module__": module})
    file = InputsFile(setup=lambda: others)
    opened = open_checkpoint(str(folder), trust_remote_code=True, inputs_file=file)
    assert type(build_on_meta(opened)).__module__.split(".")[1] == folder.name


def test_the_class_of_a_package_is_none_of_a_repository_that_was_met_before() -> None:
    """Copies of LLaVA's code name their classes alike."""
    kinds = []
    for module in ("package_of_this", "transformers_modules.others.modeling"):
        config = type("PackedConfig", (PretrainedConfig,), {"model_type": "packed"})
        fields = {"config_class": config, "__module__": module}
        kinds.append(type("PackedForCausalLM", (PreTrainedModel,), fields))
    raw = {"model_type": "packed", "architectures": ["PackedForCausalLM"]}
    assert register_class(raw, own=False) is kinds[0].config_class
    assert AutoModelForCausalLM._model_mapping[kinds[0].config_class] is kinds[0]


def test_a_class_that_only_auto_model_offers_is_built_by_it() -> None:
    """VILA registers no causal language model."""
    config = type("AloneConfig", (PretrainedConfig,), {"model_type": "alone"})
    model = type("Alone", (PreTrainedModel,), {"config_class": config})
    AutoModel.register(config, model)
    assert auto_class(VISION_LANGUAGE, config()) is AutoModel
    AutoModelForCausalLM.register(config, model)
    assert auto_class(VISION_LANGUAGE, config()) is AutoModelForCausalLM


def test_a_config_without_a_registered_class_says_how_to_register_it(tmp_path: Path) -> None:
    """An import that registers the config alone, or nothing (Phantom): no vision encoder."""
    fields = {"model_type": "unregistered", "vision_config": {}}
    config = type("UnregisteredConfig", (PretrainedConfig,), {**fields, "__module__": "mine"})
    AutoConfig.register("unregistered", config)
    stored = {"model_type": "unregistered", "architectures": ["PhantomForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(NormprobeError, match="makes a model of UnregisteredConfig") as refused:
        open_checkpoint(str(tmp_path), inputs_file=InputsFile(setup=lambda: None))
    told = "AutoModelForCausalLM.register(UnregisteredConfig, PhantomForCausalLM)"
    assert told in refused.value.remedy


def test_a_config_with_a_tower_that_auto_model_takes_is_of_a_vision_language_model(
    tmp_path: Path,
) -> None:
    """VILA-U's class is named neither in auto_map nor as one that writes text."""
    config = type("SeeingConfig", (PretrainedConfig,), {"model_type": "seeing"})
    model = type("Seeing", (PreTrainedModel,), {"config_class": config, "forward": lambda: None})
    AutoConfig.register("seeing", config)
    AutoModel.register(config, model)
    config(architectures=["Seeing"], vision_tower_cfg="clip").save_pretrained(tmp_path)
    assert open_checkpoint(str(tmp_path)).kind == VISION_LANGUAGE
    config(architectures=["Seeing"]).save_pretrained(tmp_path)
    with pytest.raises(NormprobeError, match="is no vision-language model"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("place", [{}, {"image_token_id": 7}])
def test_a_config_that_names_the_place_of_a_picture_is_of_a_vision_language_model(
    place: dict[str, int], tmp_path: Path
) -> None:
    """Dimple's class is offered as a bare model, and its name says no more."""
    kind = f"placing_{len(place)}"
    config = type("PlacingConfig", (PretrainedConfig,), {"model_type": kind})
    model = type("PlacingModel", (PreTrainedModel,), {"config_class": config})
    AutoConfig.register(kind, config)
    AutoModel.register(config, model)
    config(architectures=["PlacingModel"], vision_config={}, **place).save_pretrained(tmp_path)
    expected = VISION_LANGUAGE if place else BARE_VISION_ENCODER
    assert open_checkpoint(str(tmp_path)).kind == expected


@pytest.mark.parametrize("takes", ["vision_patches", "memory"])
def test_a_class_that_is_given_pixels_is_of_a_vision_language_model(
    takes: str, tmp_path: Path
) -> None:
    """SAIL's, for the type of Mistral, whose config says nothing of pictures."""
    names: dict[str, Any] = {}
    exec(f"def forward(self, input_ids, {takes}=None): pass", names)
    model: Any = type("Given", (LlamaForCausalLM,), {"forward": names["forward"]})
    tiny_model("llama").save_pretrained(tmp_path)
    offered = AutoModelForCausalLM._model_mapping._extra_content
    try:
        AutoModelForCausalLM.register(LlamaConfig, model, exist_ok=True)
        kind = open_checkpoint(str(tmp_path)).kind
    finally:
        offered.pop(LlamaConfig)
    assert kind == (VISION_LANGUAGE if takes == "vision_patches" else LANGUAGE_MODEL)


def test_a_model_without_a_forward_is_refused(repository: Any, tmp_path: Path) -> None:
    """It has no tokenizer either. A forward of the user's may call what it has."""
    del repository  # its cache of modules
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class OwnConfig(PretrainedConfig):\n"
        "    model_type = 'own'\n"
        "class OwnModel(PreTrainedModel):\n"
        "    config_class = OwnConfig\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.blocks = nn.ModuleList(nn.ModuleDict() for _ in range(2))\n"
        "    def query(self, image, question): ...\n"
    )
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    config = {"model_type": "own", "auto_map": auto_map}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(NormprobeError, match="OwnModel has no forward") as failure:
        open_checkpoint(str(tmp_path), trust_remote_code=True)
    assert "write forward(model, **inputs), which calls them" in failure.value.remedy
    run_by = InputsFile(forward=lambda model, input_ids: model.query(None, input_ids))
    assert open_checkpoint(str(tmp_path), trust_remote_code=True, inputs_file=run_by).own_code


_OF_A_NATIVE_TYPE = """
import torch
from transformers import LlavaForConditionalGeneration

class ScoringLlava(LlavaForConditionalGeneration):
    def __init__(self, config):
        super().__init__(config)
        self.score = torch.nn.Linear(2, 1)

    def forward(self, *args, **kwargs):
        return self.score(super().forward(*args, **kwargs).logits[:, -1, :2])
"""


@pytest.mark.parametrize("key", ["AutoModel", "AutoModelForSequenceClassification"])
def test_a_class_that_is_offered_beside_a_native_type_is_built(
    repository: Any, tmp_path: Path, key: str
) -> None:
    """jina-reranker's is offered for AutoModel alone, of the type of Qwen2-VL."""
    del repository  # its cache of modules
    folder = tmp_path / f"scoring_{key}"
    folder.mkdir()
    (folder / "scoring.py").write_text(_OF_A_NATIVE_TYPE)
    config = json.loads((SPECIMEN_DIR / "config.json").read_text())
    config |= {"architectures": ["ScoringLlava"], "auto_map": {key: "scoring.ScoringLlava"}}
    (folder / "config.json").write_text(json.dumps(config))
    opened = open_checkpoint(str(folder), trust_remote_code=True)
    assert type(build_on_meta(opened)).__name__ == "ScoringLlava"
    assert (opened.kind, opened.doubt) == (VISION_LANGUAGE, "")
    untrusted = open_checkpoint(str(folder))
    assert type(build_on_meta(untrusted)) is LlavaForConditionalGeneration
    assert "the class ScoringLlava, whose code comes with it and is not run" in untrusted.doubt
    config["architectures"] = ["LlavaForConditionalGeneration"]
    (folder / "config.json").write_text(json.dumps(config))
    assert not open_checkpoint(str(folder)).doubt


def test_a_setup_that_failed_for_want_of_a_package_can_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without __init__.py outlives the package around it (RBDash)."""
    inner = tmp_path / "nobodys_package" / "model" / "language_model"
    inner.mkdir(parents=True)
    (inner.parent.parent / "__init__.py").write_text("from .model import found\n")
    (inner.parent / "__init__.py").write_text("from .language_model.llama import found\n")
    (inner / "llama.py").write_text("from nobodys_package.model.arch import need\nfound = need\n")
    (inner.parent / "arch.py").write_text("import nobodys_kernels as need\n")
    monkeypatch.syspath_prepend(tmp_path)

    def setup() -> None:
        importlib.import_module("nobodys_package.model.language_model.llama")

    file = InputsFile(setup=setup, record={"path": str(tmp_path / "inputs.py")})
    with pytest.raises(NormprobeError, match="No module named 'nobodys_kernels'"):
        run_setup(setup, file, {}, trusted=True)
    (tmp_path / "nobodys_kernels.py").write_text("")
    importlib.invalidate_caches()
    run_setup(setup, file, {}, trusted=True)
    for name in [name for name in sys.modules if name.startswith("nobodys_")]:
        del sys.modules[name]


@pytest.mark.parametrize("classes", [["AKI"], []])
def test_the_name_of_a_folder_is_no_type(tmp_path: Path, classes: list[str]) -> None:
    """AKI's holds the name of its language model, and its config no type."""
    folder = tmp_path / "nobodys-llama-4b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": classes, "hidden_size": 8}))
    with pytest.raises(NormprobeError, match="of no type" if classes else "cannot read the config"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("held", "kind"), [("llm_config", VISION_LANGUAGE), ("more", BARE_VISION_ENCODER)]
)
def test_a_config_of_both_sides_is_of_a_model_that_reads_and_sees(
    repository: Any, tmp_path: Path, held: str, kind: str
) -> None:
    """Llama-Nemotron-Embed is offered for AutoModel alone, and writes no text."""
    del repository
    folder = tmp_path / f"embeds_{held}"
    folder.mkdir()
    (folder / "embeds.py").write_text(_OF_BOTH.format(held=held))
    auto_map = {"AutoConfig": "embeds.BothConfig", "AutoModel": "embeds.Both"}
    settings = {"model_type": f"both_{held}", "auto_map": auto_map, "architectures": ["Both"]}
    (folder / "config.json").write_text(json.dumps(settings | {"vision_config": {}, held: {}}))
    assert open_checkpoint(str(folder), trust_remote_code=True).kind == kind


_OF_BOTH = """
from transformers import PretrainedConfig, PreTrainedModel

class BothConfig(PretrainedConfig):
    model_type = "both_{held}"

class Both(PreTrainedModel):
    config_class = BothConfig

    def forward(self, input_ids): ...
"""


def test_a_class_that_writes_no_text_may_make_other_prompts() -> None:
    """GME's and jina-reranker's methods do; of a class with a head nothing is told."""

    class Embeds(nn.Module):
        def get_fused_embeddings(self, texts: Any = None, images: Any = None) -> None: ...

        def forward(self, input_ids: Any) -> None: ...

    class Writes(Embeds):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    class Inside(Embeds):
        """As MiniGPT-4: its language model is inside, and it names no head."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.language = nn.Embedding(7, 2), nn.Sequential(nn.Linear(2, 7))

    assert inputs_doubt(Inside()) == ""
    told = inputs_doubt(Embeds())
    assert told.startswith("Embeds has no head that writes text, and its get_fused_embeddings()")
    assert inputs_doubt(Writes()) == "" == inputs_doubt(tiny_model("llava"))


class _Eager(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.q_norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.1)  # of a training: the others do without

    def forward(self, x: Any) -> Any:
        return self.dropout(self.q_norm(self.q_proj(x)))


class _Faster(_Eager):
    def forward(self, x: Any) -> Any:
        return self.q_proj(x) if x.is_leaf else super().forward(x)


class _Whole(_Eager):
    def forward(self, x: Any) -> Any:
        return self.q_norm(nn.functional.linear(x, self.q_proj.weight))


class _Handed(_Eager):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


def test_an_attention_that_leaves_out_what_another_computes_with_is_a_doubt() -> None:
    """Emu3.5's of sdpa has the norms of queries and keys, and never runs them."""
    told = attention_doubt(nn.Sequential(_Eager(), _Faster()))
    assert told.startswith("_Faster leaves out q_norm, which _Eager computes with: another attn")
    assert attention_doubt(nn.Sequential(_Eager(), _Whole(), _Handed())) == ""
    assert attention_doubt(tiny_model("llava")) == ""


class _Writes(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.model, self.lm_head = nn.Linear(2, 2), nn.Linear(2, 4)

    def forward(self, x: Any) -> Any:
        return self.lm_head(self.model(x))


class _Retrieves(_Writes):
    def forward(self, x: Any) -> Any:
        return self.model(x)


def test_a_model_that_writes_nothing_is_no_attention_that_leaves_something_out() -> None:
    """MoCa's reads a state of a class that it derives, and has no use for its head."""
    assert attention_doubt(_Retrieves()) == ""


class _Gated(_Eager):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)


class _Plain(_Eager):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2


_ATTENTION = {"eager": _Plain, "flash_attention_2": _Gated}


def test_an_attention_with_weights_that_the_one_which_runs_lacks_is_a_doubt() -> None:
    """VideoNSA's of flash_attention_2 is sparse, with gates that were trained."""
    told = attention_doubt(nn.Sequential(_Plain()))
    assert told.startswith("_Plain runs, and 'flash_attention_2' of its code is _Gated, which has")
    assert "has gate besides" in told
    assert attention_doubt(nn.Sequential(_Gated())) == ""


def test_an_answer_by_diffusion_reads_its_prompt_otherwise() -> None:
    """MinerU-Diffusion reads it by blocks, Dream-VL beside masked places."""

    class Blocks(nn.Module):
        def generate(self, input_ids: Any, block_length: int = 32) -> None: ...

    class Steps(nn.Module):
        def diffusion_generate(self, inputs: Any, steps: int = 8) -> None: ...

    class Word(nn.Module):
        def generate(self, input_ids: Any, max_new_tokens: int = 8) -> None: ...

    for kind in (Blocks, Steps):
        told = diffusion_doubt(kind())
        assert told.startswith(f"{kind.__name__}.") and "may write answers by diffusion" in told
    Word.config = SimpleNamespace(to_dict=lambda: {"text_config": {"mask_token_id": 3}})  # SDAR-VL
    assert diffusion_doubt(Word()).startswith("Word has a mask_token_id, and may write")
    del Word.config
    assert diffusion_doubt(Word()) == "" == diffusion_doubt(tiny_model("llava"))


_BARE = """
from transformers import LlamaConfig, LlamaForCausalLM
from config_beside_{name} import WIDTH

class Class{name}Config(LlamaConfig):
    model_type = "bare_{name}"

    def __init__(self, **fields):
        super().__init__(**{{"hidden_size": WIDTH, **fields}})
"""
_UNNAMED = """
from transformers import LlamaForCausalLM
{imports} import Class{name}Config

class Class{name}(LlamaForCausalLM):
    config_class = Class{name}Config
"""


@pytest.mark.parametrize("bare", [True, False])
def test_a_class_that_auto_map_leaves_out_is_found_beside_its_config(
    bare: bool, tmp_path: Path
) -> None:
    """Ming's names its config alone; Ming-flash-omni's files are imported by bare names."""
    name = "Bare" if bare else "Part"
    room, folder = f"configuration_{name.lower()}", tmp_path / f"of_{name}"
    folder.mkdir()
    (folder / f"config_beside_{name}.py").write_text("WIDTH = 16\n")
    config = _BARE.format(name=name)
    if not bare:
        config = config.replace("from config_beside", "from .config_beside")
    (folder / f"{room}.py").write_text(config)
    imports = f"from {'' if bare else '.'}{room}"
    code = _UNNAMED.format(name=name, imports=imports)
    if bare:  # what runs seldom may be imported and not there
        code += "\n    def speak(self):\n        import a_voice_of_nobody\n"
    (folder / f"modeling_{name.lower()}.py").write_text(code)
    settings = {"num_hidden_layers": 1, "vocab_size": 8, "num_attention_heads": 2}
    settings |= {"auto_map": {"AutoConfig": f"{room}.Class{name}Config"}}
    settings |= {"architectures": [f"Class{name}"], "model_type": f"bare_{name}"}
    (folder / "config.json").write_text(json.dumps(settings))
    opened = open_checkpoint(str(folder), trust_remote_code=True)
    assert type(build_on_meta(opened)).__name__ == f"Class{name}"
    told = f"config_beside_{name}, by its bare name" if bare else "auto_map"
    assert told in opened.bridges


def test_an_entry_that_names_no_file_is_none_that_lacks(tmp_path: Path) -> None:
    """InfiniteVL's names a processor of transformers, which nobody reads there."""
    raw = {"auto_map": {"AutoProcessor": "LlavaProcessor"}}
    assert absent_code(raw, str(tmp_path)) == ""
    raw["auto_map"]["AutoModel"] = "modeling.Model"
    assert absent_code(raw, str(tmp_path)) == "modeling.py"


def test_setup_goes_before_the_code_that_it_mends(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that code imports from transformers may have become something else (GME)."""
    del repository
    folder = tmp_path / "mended_code"
    folder.mkdir()
    home = "transformers.models.llama.modeling_llama"
    code = f"from {home} import rotate_half\n" + _OF_BOTH.format(held="mended_code")
    (folder / "embeds.py").write_text(code)
    auto_map = {"AutoConfig": "embeds.BothConfig", "AutoModel": "embeds.Both"}
    settings = {"model_type": "both_mended_code", "auto_map": auto_map, "architectures": ["Both"]}
    (folder / "config.json").write_text(json.dumps(settings | {"vision_config": {}}))

    def setup() -> None:
        monkeypatch.setattr(f"{home}.rotate_half", len)

    file = InputsFile(setup=setup)
    opened = open_checkpoint(str(folder), trust_remote_code=True, inputs_file=file)
    assert vars(sys.modules[type(opened.config).__module__])["rotate_half"] is len
