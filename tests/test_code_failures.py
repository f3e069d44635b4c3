"""Code of a checkpoint that fails is told in two lines: what it was written for, and a way out."""

import json
import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import pytest
import torch
import transformers
from huggingface_hub import constants
from support.commands import invoke
from torch import nn

from normprobe import failures
from normprobe.errors import NormprobeError
from normprobe.failures import (
    code_failure,
    install,
    missing_packages,
    offline_where_no_hub_answers,
    other_version,
    refuse_newer_files,
)
from normprobe.hooks import on_output, run_until
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.own_forward import run_by

CONFIG = """
from transformers import PretrainedConfig
{at_import}
class FailingConfig(PretrainedConfig):
    model_type = "failing"
    def __init__(self, **settings):
        {in_config}
        super().__init__(**settings)
"""
MODEL = """
from torch import nn
from transformers import PreTrainedModel
from .configuration_failing import FailingConfig
{at_import}
class FailingForCausalLM(PreTrainedModel):
    config_class = FailingConfig
    def __init__(self, config):
        super().__init__(config)
        {in_model}
        self.post_init()
    def forward(self, input_ids=None):
        raise NotImplementedError
"""
GONE = "from transformers.utils import a_name_that_went"
UNKNOWN = "unknown_name()"


@pytest.fixture
def checkpoint(repository: object, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A repository whose code has one of these lines."""

    def make(version: str | None = "4.51.3", **lines: str) -> Path:
        lines = {"at_import": "", "in_config": "pass", "in_model": "pass"} | lines
        folder = tmp_path / "failing"
        folder.mkdir()
        in_model = "in_model" in lines and lines["in_model"] != "pass"
        config = lines | ({"at_import": ""} if in_model else {})
        (folder / "configuration_failing.py").write_text(CONFIG.format(**config))
        (folder / "modeling_failing.py").write_text(MODEL.format(**lines))
        settings = {
            "model_type": "failing",
            "transformers_version": version,
            "auto_map": {
                "AutoConfig": "configuration_failing.FailingConfig",
                "AutoModelForCausalLM": "modeling_failing.FailingForCausalLM",
            },
        }
        (folder / "config.json").write_text(json.dumps(settings))
        return folder

    del repository
    yield make


@pytest.fixture(params=["4.57.6", "5.23.0"])
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(failures, "_where_from", lambda: "normprobe")
    with patch("transformers.__version__", request.param):
        yield request.param


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("inspect", {"at_import": GONE}),
        ("layers", {"at_import": GONE}),
        ("inspect", {"in_config": UNKNOWN}),
        ("embeddings", {"in_config": UNKNOWN}),
        ("inspect", {"in_model": UNKNOWN}),
    ],
)
def test_two_lines_and_no_traceback(
    command: str, lines: dict[str, str], checkpoint: Callable[..., Path]
) -> None:
    result = invoke(command, checkpoint(**lines), "--trust-remote-code")
    assert result.exit_code == 1
    assert "was written for transformers 4.51.3" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    assert "install the package" not in result.stderr


def test_a_package_of_the_code_is_named(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(at_import="import a_package_that_nobody_has")
    result = invoke("inspect", folder, "--trust-remote-code")
    assert "needs a_package_that_nobody_has, not installed here" in result.stderr
    assert "install a_package_that_nobody_has as the model's page says" in result.stderr
    assert "pip install" not in result.stderr  # whoever may have taken that name


def test_a_forward_that_fails_is_told() -> None:
    class Foreign(nn.Module):
        config = transformers.PretrainedConfig(transformers_version="4.51.3")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise NameError("name 'gone' is not defined")

    with pytest.raises(NameError):  # a mistake of the user's own model stays what it is
        run_until(Foreign(), {"x": torch.ones(1)})
    Foreign.__module__ = "transformers_modules.team.modeling_foreign"
    with pytest.raises(
        NormprobeError, match=r"Foreign was written for transformers 4\.51\.3"
    ) as told:
        run_until(Foreign(), {"x": torch.ones(1)})
    assert "if its inputs do not fit" in told.value.remedy


def test_a_package_that_fails_as_it_is_built_is_told_by_its_line(tmp_path: Path) -> None:
    """No file of the checkpoint is to be checked: its code reads what configs had (Vary)."""
    config_class = type(
        "BreakingConfig", (transformers.PretrainedConfig,), {"model_type": "breaking"}
    )

    def __init__(self: Any, config: Any) -> None:
        raise AttributeError("'BreakingConfig' object has no attribute 'gone'")

    members = {"config_class": config_class, "__init__": __init__}
    model_class = type("Breaking", (transformers.PreTrainedModel,), members)
    transformers.AutoConfig.register("breaking", config_class, exist_ok=True)
    transformers.AutoModelForCausalLM.register(config_class, model_class, exist_ok=True)
    (tmp_path / "config.json").write_text(
        '{"model_type": "breaking", "transformers_version": "4.32.1", "vision_config": {}}'
    )
    with pytest.raises(NormprobeError, match=r"was written for transformers 4\.32\.1"):
        build_on_meta(open_checkpoint(str(tmp_path), trust_remote_code=True))


@pytest.mark.parametrize("config", ["4.43.1", transformers.__version__, None])
def test_a_package_of_another_line_is_told_so(config: str | None) -> None:
    """Its layers may be called as they were then, without rotary tables (LLaVA-Mini)."""

    class Packaged(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise TypeError("cannot unpack non-iterable NoneType object")

    model = Packaged()
    model.config = transformers.PretrainedConfig(transformers_version=config)
    for each in (model, run_by(model, lambda m, x: m(x))):
        with pytest.raises(NormprobeError, match="fails on these inputs") as raised:
            run_until(each, {"x": torch.ones(1)})
        told = "its config is of transformers 4.43.1" in raised.value.remedy
        assert told == (config == "4.43.1"), raised.value.remedy


@pytest.mark.parametrize(
    ("written_for", "on_5", "on_4"),
    [
        ("4.38.2", "normprobe 'transformers==4.57.6'", "torch 'transformers==4.38.2'"),
        ("4.46.0.dev0", "normprobe 'transformers==4.57.6'", "torch 'transformers~=4.46.0'"),
        ("4.57.1", "normprobe 'transformers==4.57.6'", "NORMPROBE_DEBUG=1"),
        ("5.8.0", "a later --revision", "normprobe 'transformers>=5.16'"),
        ("5.19.0", "normprobe 'transformers==5.19.0'", "normprobe 'transformers==5.19.0'"),
        ("5.22.1", "normprobe 'transformers==5.22.1'", "normprobe 'transformers==5.22.1'"),
        ("5.23.0", "NORMPROBE_DEBUG=1", "normprobe 'transformers==5.23.0'"),
        (None, "NORMPROBE_DEBUG=1", "NORMPROBE_DEBUG=1"),
        ("unknown", "NORMPROBE_DEBUG=1", "NORMPROBE_DEBUG=1"),
    ],
)
def test_the_environment(written_for: str | None, on_5: str, on_4: str, running: str) -> None:
    assert (on_4 if running.startswith("4") else on_5) in other_version(written_for)


def test_code_that_fails_on_the_oldest_line_may_run_on_the_newer(monkeypatch: Any) -> None:
    """Honeybee, for 4.31, fails on 4.57 and is measured on 5.16."""
    monkeypatch.setattr(failures, "_running", lambda: (4, 57))
    monkeypatch.setattr(failures, "_where_from", lambda: "normprobe")
    told = other_version("4.31.0")
    assert "normprobe 'transformers>=5.16'" in told
    assert "torch 'transformers==4.31.0'" in told


def test_the_version_is_named_where_it_is_another(running: str) -> None:
    other = code_failure(NameError("gone"), "org/model", "4.45.0")
    assert other.problem == (
        f"the code of org/model was written for transformers 4.45.0 and fails on {running}: "
        "NameError: gone"
    )
    same = code_failure(NameError("gone"), "org/model", running)
    assert same.problem == (
        f"the code of org/model fails on transformers {running}: NameError: gone"
    )


@pytest.mark.parametrize(
    ("error", "packages"),
    [
        (ModuleNotFoundError("No module named 'attrdict'", name="attrdict"), ["attrdict"]),
        (ModuleNotFoundError("No module", name="transformers.models.gone"), []),
        (ImportError("cannot import name 'X' from 'transformers.utils'"), []),
        (NameError("torchvision"), []),
        (
            ImportError(
                "This modeling file requires the following packages that were not found in your "
                "environment: flash_attn, xformers. Run `pip install flash_attn xformers`"
            ),
            ["flash_attn", "xformers"],
        ),
        (
            ImportError("AThing requires the Torchvision library but it was not found in your"),
            ["torchvision"],
        ),
        (
            ImportError(
                "FlashAttention2 has been toggled on, but it cannot be used due to the following "
                "error: the package for FlashAttention2 doesn't seem to be installed."
            ),
            ["flash_attn"],
        ),
        (ImportError("Please run `pip install -U fla-core`"), ["fla"]),
    ],
)
def test_missing_packages_are_told_from_names_that_went(
    error: Exception, packages: list[str]
) -> None:
    assert missing_packages(error) == packages


def test_what_a_package_itself_lacks_is_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVLA-OFT's is beside its checkpoint, and draccus is nowhere."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_its_own_place.py").write_text("import nobodys_settings.of\n")
    (tmp_path / "of_a_failure.py").write_text("1 / 0\n")
    told = "requires the following packages that were not found in your environment: {}. Run `pip`"
    for package, lacks in (
        ("of_its_own_place, nobodys_layers", ["nobodys_settings", "nobodys_layers"]),
        ("of_a_failure", ["of_a_failure"]),
    ):
        assert missing_packages(ImportError(told.format(package))) == lacks


def test_what_reads_a_file_of_pieces_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original LLaVA's: transformers names the package that it tries in the second place."""
    said = (
        "`tiktoken` is required to read a `tiktoken` file. Install it with `pip install tiktoken`"
    )
    for there in (["sentencepiece", "tiktoken"], ["sentencepiece"], []):
        monkeypatch.setattr(
            "normprobe.failures.find_spec", lambda n, there=there: n in there or None
        )
        lacks = [name for name in ("sentencepiece", "tiktoken") if name not in there]
        assert missing_packages(ValueError(said)) == lacks
    assert not missing_packages(ValueError("another"))


def test_code_of_no_told_version_may_be_older(running: str) -> None:
    """H2OVL's config says null."""
    told = code_failure(TypeError("'NoneType' object is not subscriptable"), "org/model", None)
    assert ("if it was written for transformers 4: " in told.remedy) == running.startswith("5")


def test_code_in_another_repository_is_no_matter_of_the_version() -> None:
    """VLM2Vec's auto_map names that of Phi-3.5, and no hub answers."""
    error = OSError("We couldn't connect to 'https://huggingface.co' to load the files")
    told = code_failure(error, "org/model", "4.45.0")
    assert "asks a hub for what is not here: We couldn't connect" in told.problem
    assert "another repository, fetch that one, too" in told.remedy
    assert "pip" not in told.remedy


def test_a_class_that_nothing_registers_is_no_fault_of_its_code() -> None:
    """Another version of transformers would say the same (Phantom)."""
    error = ValueError(
        "Unrecognized configuration class <class 'model.config.PhantomConfig'> for this kind of "
        "AutoModel: AutoModelForCausalLM.\nModel type should be one of AConfig."
    )
    told = code_failure(error, "org/model", "4.45.0")
    assert told.problem == (
        "no class of org/model is registered, of which AutoModelForCausalLM could make a model"
    )
    assert told.remedy.endswith("AutoModelForCausalLM.register(PhantomConfig, CLASS)")
    assert "pip" not in told.remedy
    native = ValueError(
        str(error).replace("model.config.Phantom", "transformers.models.llava.Llava")
    )
    assert "ValueError: Unrecognized" in code_failure(native, "org/model", "4.45.0").problem


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (["cv2", "einops"], "pip install opencv-python einops"),
        (["einops", "flash_attn"], "einops flash-attn, or as the model's page says; flash_attn is"),
        (["timm"], "normprobe[vision]"),
        (["configuration_llava_qwen2"], "is a file of the checkpoint, no package"),
        (["llava"], "install llava as the model's page says"),
    ],
)
def test_packages_have_their_names_in_the_index(packages: list[str], expected: str) -> None:
    assert expected in install(packages)


def test_files_of_transformers_5_are_refused_by_4(running: str) -> None:
    refuse_newer_files("org/model", "4.40.0")
    refuse_newer_files("org/model", None)
    if running.startswith("5"):
        refuse_newer_files("org/model", "5.30.0")
        return
    with pytest.raises(NormprobeError, match=r"saved by transformers 5\.22\.0") as refused:
        refuse_newer_files("org/model", "5.22.0")
    assert "pip install normprobe 'transformers==5.22.0'" in refused.value.remedy


@pytest.mark.parametrize("raised", [None, OSError("not in the cache")])
def test_a_hub_that_was_silent_once_is_asked_again(
    raised: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries, answers = (constants, datasets.config), iter([False, True])
    for library in libraries:
        monkeypatch.setattr(library, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("normprobe.failures.hub_answers", lambda: next(answers))
    with suppress(OSError), offline_where_no_hub_answers():
        assert [library.HF_HUB_OFFLINE for library in libraries] == [True, True]
        if raised is not None:
            raise raised
    assert [library.HF_HUB_OFFLINE for library in libraries] == [False, False]
    with offline_where_no_hub_answers():  # now it answers
        assert [library.HF_HUB_OFFLINE for library in libraries] == [False, False]
    assert list(answers) == []


def test_a_package_that_a_forward_imports_is_named() -> None:
    """DeepSeek-VL2's smaller decoder imports one as it runs."""

    class Importing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            import a_package_that_nobody_has  # type: ignore[import-not-found]

            return a_package_that_nobody_has.attend(x)

    for each in (Importing(), run_by(Importing(), lambda m, x: m(x))):
        with pytest.raises(NormprobeError, match="needs a_package_that_nobody_has, not installed"):
            run_until(each, {"x": torch.ones(1)})


@pytest.mark.parametrize("room", ["transformers_modules.team.modeling", "team.modeling"])
def test_an_id_that_no_row_has_is_no_fault_of_a_version(room: str) -> None:
    class Looking(nn.Module):
        config = transformers.PretrainedConfig(transformers_version="4.51.3")

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(8, 2)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.words(input_ids)

    Looking.__module__ = room
    for ids, told in (([3, 8, 9], "the id 8, and"), ([3, -200], "the id -200,")):
        with pytest.raises(NormprobeError, match=told) as raised:
            run_until(Looking(), {"input_ids": torch.tensor([ids])})
        assert "looked up in 8 rows" in raised.value.problem
        assert "4.51.3" not in str(raised.value)


def test_what_code_asserts_of_its_inputs_is_told_before_its_version() -> None:
    class Asserting(nn.Module):
        config = transformers.PretrainedConfig(transformers_version="4.51.3")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.sum() == 0, "one picture a prompt"
            return x

    Asserting.__module__ = "transformers_modules.team.modeling_asserting"
    with pytest.raises(NormprobeError, match=r"fails on these inputs: .*one picture") as raised:
        run_until(Asserting(), {"x": torch.ones(1)})
    assert raised.value.remedy.startswith("begin others: normprobe inputs MODEL --write FILE; if ")


class Reading(nn.Module):
    """Code of a repository; ``tower`` is a class that transformers knows nothing of."""

    config = transformers.PretrainedConfig(transformers_version="4.40.1")

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Identity()

    def forward(self, x: torch.Tensor, how: str, labels: Any = None, other: Any = None) -> Any:
        if how == "a case that it leaves out":
            raise NotImplementedError
        if how == "a method that it never had":
            return self.tower.encode_image(x)
        if how == "a name of nothing":
            return x.grad.squeeze()
        if how == "nothing to write to":
            labels[x == 0] = 0
        return self.config.encode_image(x)


@pytest.mark.parametrize(
    ("how", "blames_version"),
    [
        ("a case that it leaves out", False),
        ("a method that it never had", False),
        ("a name of nothing", False),
        ("nothing to write to", False),
        ("a method of transformers", True),
    ],
)
def test_what_no_version_ever_had_is_told_before_versions(
    how: str, blames_version: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the branches of VideoChat-Flash and Sa2VA for pixels of another shape."""
    monkeypatch.setattr(Reading, "__module__", "transformers_modules.team.modeling_reading")
    monkeypatch.setattr(nn.Identity, "__module__", "transformers_modules.team.modeling_tower")
    with pytest.raises(NormprobeError) as raised:
        run_until(Reading(), {"x": torch.ones(1), "how": how})
    assert ("was written for transformers 4.40.1 and fails" in raised.value.problem) == (
        blames_version
    )
    assert ("fails on these inputs" in raised.value.problem) != blames_version
    lacks = ", where labels is None (test_code_failures.py, line "
    assert (lacks in raised.value.problem) == (how == "nothing to write to")
    # The line of the model's code, and not one of torch or transformers that it called.
    place = re.search(r"\(test_code_failures\.py, line (\d+)\)$", raised.value.problem)
    assert place is not None
    line = linecache.getline(__file__, int(place[1]))
    assert line.strip().startswith(("raise NotImpl", "return self.", "return x.grad", "labels[x"))
    assert raised.value.remedy.startswith("begin others") != blames_version


def test_a_reader_of_states_that_fails_is_no_fault_of_the_inputs() -> None:
    """As pictures of several widths were none of LLaVA-UHD's."""
    layer = nn.Linear(2, 2)

    def see(_: torch.Tensor) -> None:
        raise ValueError("no room")

    ours = type(see)(see.__code__, {**globals(), "__name__": "normprobe.model.reader"}, "see")
    handle = on_output(layer, ours)
    with pytest.raises(
        NormprobeError, match=r"cannot read what modules of Linear.*no room"
    ) as told:
        run_until(layer, {"input": torch.ones(1, 2)})
    handle.remove()
    assert "see of normprobe.model.reader" in told.value.problem
    assert "inputs" not in told.value.remedy


@pytest.mark.parametrize(
    ("message", "told", "remedy"),
    [
        (
            "Tensor on device cpu is not on the expected device meta!",
            "holds no weights",
            "load it in prepare(model, processor)",
        ),
        (
            "mat1 and mat2 must have the same dtype, but got Half and Float",
            "of several dtypes",
            "try the --dtype that its code casts to, or cast them",
        ),
        (
            "Input type (c10::BFloat16) and bias type (float) should be the same",
            "of several dtypes",
            "try the --dtype that its code casts to, or cast them",
        ),
    ],
)
def test_what_a_part_lacks_is_no_fault_of_the_inputs(message: str, told: str, remedy: str) -> None:
    """A tower in a plain list (Shikra), or one that its loader halves (NExT-Chat)."""

    class Holding(nn.Module):
        config = transformers.PretrainedConfig(transformers_version="4.31.0")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(message)

    for room in ("team.modeling", "transformers_modules.team.modeling"):
        Holding.__module__ = room
        with pytest.raises(NormprobeError, match=told) as raised:
            run_until(Holding(), {"x": torch.ones(1)})
        assert remedy in raised.value.remedy
        assert "4.31" not in str(raised.value)


@pytest.mark.parametrize("of_transformers", [True, False])
def test_a_part_of_transformers_that_is_called_in_an_older_way_is_of_another_version(
    of_transformers: bool,
) -> None:
    """AuroraCap, which asks its CLIP tower for ``return_dict``."""

    class Tower(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Calling(nn.Module):
        config = transformers.PretrainedConfig(transformers_version="4.36.0")

        def __init__(self) -> None:
            super().__init__()
            self.tower = Tower()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise TypeError("Tower.forward() got an unexpected keyword argument 'return_dict'")

    Calling.__module__ = "team.modeling"
    Tower.__module__ = "transformers.models.tower" if of_transformers else "team.tower"
    told = "written for transformers 4.36.0" if of_transformers else "fails on these inputs"
    with pytest.raises(NormprobeError, match=told):
        run_until(Calling(), {"x": torch.ones(1)})


def test_an_attention_that_nothing_says_is_told_with_its_option() -> None:
    """MolmoAct's parts read theirs from a config that has none."""

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("Attention implementation None not supported")

    Asking.__module__ = "transformers_modules.team.modeling"
    with pytest.raises(NormprobeError, match="fails on these inputs") as raised:
        run_until(Asking(), {"x": torch.ones(1)})
    assert raised.value.remedy.startswith("say which attention runs: add --attn-implementation")


def test_an_attribute_that_a_bridge_looks_for_is_the_models() -> None:
    class Bridged(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.tower(x)

    def look_further(self: nn.Module, name: str) -> Any:
        raise AttributeError(f"'Bridged' object has no attribute {name!r}")

    rooms = {**globals(), "__name__": "normprobe.remote_code_bridges"}
    Bridged.__getattr__ = type(look_further)(look_further.__code__, rooms, "look_further")  # type: ignore[assignment]
    with pytest.raises(NormprobeError, match=r"on these inputs: .*no attribute 'tower'") as e:
        run_until(Bridged(), {"x": torch.ones(1)})
    assert "load it in prepare(model, processor) of --inputs FILE.py" in e.value.remedy


@pytest.mark.parametrize(
    ("told", "place"),
    [
        (
            '{"url": "file:///some/clone%20of/it", "dir_info": {"editable": true}}',
            "/some/clone of/it",
        ),
        ('{"url": "https://host/normprobe.whl", "archive_info": {}}', "normprobe"),
        (None, "normprobe"),
    ],
)
def test_another_environment_gets_it_from_where_this_one_did(told: str | None, place: str) -> None:
    held = type("Held", (), {"read_text": lambda self, name: told})()
    with patch.object(failures, "distribution", lambda name: held):
        assert f"pip install {place} 'transformers" in other_version("5.16.0")


@pytest.mark.parametrize(
    ("halved", "told"),
    [
        (("3.weight",), "several dtypes (3.weight in float16, not float32): mat"),
        (("0.bias", "3.weight"), "several dtypes (0.bias and 1 more in float16, not float32): m"),
        ((), "several dtypes: mat"),
    ],
)
def test_the_weights_of_a_rarer_dtype_are_named(halved: tuple[str, ...], told: str) -> None:
    """LaViDa's is the row that ends a picture."""

    class Mixed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("mat1 and mat2 must have the same dtype, but got Half and Float")

    model = Mixed(*(nn.Linear(2, 2) for _ in range(4)))
    for name, weight in model.named_parameters():
        weight.data = weight.half() if name in halved else weight
    with pytest.raises(NormprobeError) as raised:
        run_until(model, {"x": torch.ones(1)})
    assert told in raised.value.problem


def test_a_part_without_an_attention_of_its_own_is_named() -> None:
    """VideoLLaMB's tower is made by its class, which chooses none."""

    class Tower(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attention: Callable[..., torch.Tensor] = {"sdpa": torch.relu}[None]  # type: ignore[index]
            return attention(x)

    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return {"left": x}[None]  # type: ignore[index]

    with pytest.raises(NormprobeError, match="Tower in Sequential looks up None") as raised:
        run_until(nn.Sequential(Tower()), {"input": torch.ones(1)})
    assert 'model.PART.config._attn_implementation = "eager"' in raised.value.remedy
    with pytest.raises(NormprobeError) as raised:  # what it looks up is no attention
        run_until(nn.Sequential(Other()), {"input": torch.ones(1)})
    assert "there is no None" in raised.value.problem and "attention" not in str(raised.value)


def test_a_name_that_a_case_leaves_unbound_is_told() -> None:
    """TinyLLaVA-Video's forward binds its rows for clips alone."""

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dim() == 5:
                rows = x
            return rows

    class Lacking(nn.Module):
        """As ViLAMP's tower, whose attention is of a package that is not there."""

        config = transformers.PretrainedConfig(name_or_path="of/a-checkpoint")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return attention_of_a_package(x)  # type: ignore[name-defined,no-any-return]  # noqa: F821

    with pytest.raises(NormprobeError, match=r"Branching fails on these inputs: .*'rows'"):
        run_until(Branching(), {"x": torch.ones(1)})
    with pytest.raises(NormprobeError, match=r"Lacking fails .*'attention_of_a_package' is not"):
        run_until(Lacking(), {"x": torch.ones(1)})


@pytest.mark.parametrize(
    ("error", "told", "way"),
    [
        (NotImplementedError("forward"), "is not implemented", "max_new_tokens=1"),  # NEO
        (
            TypeError("LlamaSdpaAttention.forward() got an unexpected keyword argument 'im_mask'"),
            "none of its code's",
            "--attn-implementation eager",
        ),  # Arcana
    ],
)
def test_what_is_no_matter_of_the_inputs_is_told_so(error: Exception, told: str, way: str) -> None:
    class Telling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    with pytest.raises(NormprobeError, match=told) as raised:
        run_until(Telling(), {"x": torch.zeros(1)})
    assert way in raised.value.remedy
