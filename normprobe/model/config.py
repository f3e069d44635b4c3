"""What config.json says and may not ask for, and what adapters say of alignment."""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError, first_line

if TYPE_CHECKING:
    from torch import nn

_LARGEST = 2**23  # bytes: a hundred times what a config has


def config_of(path: Path) -> dict[str, Any]:
    """The fields of a config.json."""
    remedy = "fetch or save the checkpoint again"
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise ValueError(f"expected {_LARGEST >> 20} MB at most, received {size >> 20} MB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NormprobeError(f"{path} is broken: {first_line(error)}", remedy) from error
    if not isinstance(found, dict):
        raise NormprobeError(
            f"{path} is broken: expected a JSON object, received {type(found).__name__}", remedy
        )
    return found


def read_config_file(path: Path | None) -> dict[str, Any]:
    """The content of a config.json."""
    try:
        return config_of(path) if path else {}
    except NormprobeError:
        return {}


#: transformers downloads and runs a kernel where one of these holds org/name.
_IMPLEMENTATIONS = re.compile(r"_?(attn|experts)_implementation(_internal)?$")


def refuse_kernels(config: Mapping[str, Any], model: str) -> None:
    """Refuse a config that fetches code that was not asked for."""
    for name, value in fields(config):
        if isinstance(value, str) and "/" in value and _IMPLEMENTATIONS.match(name):
            raise NormprobeError(
                f"config.json of {model} fetches the kernel {value} ({name}), code that is not "
                "run unless asked for",
                "read that code, then pass --trust-remote-code",
            )


def fields(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values at every depth, the outer ones first.

    Those of a list have its name, and those of a mapping that names an implementation a part.
    """
    left = deque[tuple[str, Any]]([("", config)])
    while left:
        name, value = left.popleft()
        if isinstance(value, Mapping):
            for key, item in value.items():
                left.append((str(key), item))
                if _IMPLEMENTATIONS.match(name):  # one a part of the model
                    left.append((name, item))
        elif isinstance(value, list):
            left += [(name, item) for item in value]
        else:
            yield name, value


class NoForward(NormprobeError):
    """A class computes in methods of its own: only a forward of its user's makes its layers run.

    Attributes:
        model_class: that class.
    """

    def __init__(self, problem: str, remedy: str, model_class: type) -> None:
        super().__init__(problem, remedy)
        self.model_class = model_class


class UnknownCode(NormprobeError):
    """Neither transformers nor the checkpoint has its code: ``setup()`` may import it."""


#: Fields that only configs of the original code have.
_FIELDS = ("mm_vision_tower", "mm_projector_type")

#: The conversions, below llava-hf/ on the hub, by language model and its hidden size.
_LLAVA_1_5: dict[Any, str] = {4096: "llava-1.5-7b-hf", 5120: "llava-1.5-13b-hf"}

_LLAVA_NEXT: dict[str, dict[Any, str]] = {
    "llama": {
        4096: "llava-v1.6-vicuna-7b-hf",
        5120: "llava-v1.6-vicuna-13b-hf",
        7168: "llava-v1.6-34b-hf",
    },
    "llama 3": {4096: "llama3-llava-next-8b-hf"},
    "mistral": {4096: "llava-v1.6-mistral-7b-hf"},
}

_ONEVISION: dict[Any, str] = {
    896: "llava-onevision-qwen2-0.5b-ov-hf",
    3584: "llava-onevision-qwen2-7b-ov-hf",
    8192: "llava-onevision-qwen2-72b-ov-hf",
}

#: Its classes and types; other code has names that begin likewise.
_ORIGINAL = re.compile(r"llava(_?(llama|mistral|mpt|qwen)|$)")

_LLAMA_3_VOCABULARY = 128_000


def refuse_original_llava(model: str, config_file: Path | None) -> None:
    """Refuse a checkpoint of the original LLaVA code."""
    config = read_config_file(config_file)
    held = [name for name in _FIELDS if config.get(name)]
    if not held or config.get("auto_map"):  # with its own code beside it, it may well run
        return
    kind = ", ".join(config.get("architectures") or [str(config.get("model_type"))])
    setup = (
        "pass --inputs FILE.py whose setup() imports its class: with its package's folder on "
        "PYTHONPATH, `normprobe inputs MODEL --trust-remote-code --write FILE.py` begins one"
    )
    told = (f"{kind}; {' and '.join(held)} in config.json", "which transformers does not load")
    # MobileVLM, Bunny, Video-LLaVA and others began from that code
    if not _ORIGINAL.match(kind.lower()) or "mm_vision_tower" not in held:
        raise UnknownCode(
            f"{model} is a checkpoint of code of its own ({told[0]}), {told[1]}", setup
        )
    names = [f"llava-hf/{name}" for name in _conversions(config)]
    raise UnknownCode(
        f"{model} is a checkpoint of the original LLaVA code or of one that began from it "
        f"({told[0]}), {told[1]}",
        f"{setup}; of LLaVA itself use {' or '.join(names)}, or convert it with a convert_llava "
        "script of transformers",
    )


def _conversions(config: Mapping[str, Any]) -> list[str]:
    """The checkpoint that was converted from one of this size; all of its kind if none fits.

    LLaVA-NeXT (1.6) cuts images into tiles (``anyres``), 1.5 does not.
    """
    told = " ".join([str(config.get("model_type")), *(config.get("architectures") or [])]).lower()
    if "qwen" in told:
        by_size = _ONEVISION
    elif "mistral" in told:
        by_size = _LLAVA_NEXT["mistral"]
    elif (config.get("vocab_size") or 0) >= _LLAMA_3_VOCABULARY:
        by_size = _LLAVA_NEXT["llama 3"]
    elif "anyres" in str(config.get("image_aspect_ratio")):
        by_size = _LLAVA_NEXT["llama"]
    else:
        by_size = _LLAVA_1_5
    fitting = by_size.get(config.get("hidden_size"))
    return list(by_size.values()) if fitting is None else [fitting]


#: The two files of an adapter.
ADAPTER_CONFIG = "norm_alignment.json"
ADAPTER_WEIGHTS = "norm_alignment.safetensors"
ADAPTER_FILES = (ADAPTER_WEIGHTS, ADAPTER_CONFIG)

#: The entry in the config of an aligned model.
CONFIG_ENTRY = "norm_alignment"


@dataclass(frozen=True)
class AlignmentSettings:
    """Where an alignment norm belongs."""

    after: str  # dotted name of the module whose output is normalised
    compensate: bool  # as in ``GlobalWeightCompensatedLayerNorm``
    # of an adapter; None: the norm is among the weights of the checkpoint itself
    folder: Path | None = None
    # of an adapter: the hub id or folder of the model that it was made for
    base_model: str | None = None
    revision: str | None = None  # commit of that hub id
    model_type: str | None = None  # of that model, if the adapter says it
    hidden_size: int | None = None  # how many gains an adapter holds, if it says so


def adapter_settings(folder: Path) -> AlignmentSettings | None:
    """What an adapter folder says; None where ``folder`` is no adapter."""
    path = folder / ADAPTER_CONFIG
    try:
        if not path.is_file():
            return None
    except OSError:  # a longer name than any file has
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        known = {"base_model", "revision", "after", "compensate"} <= settings.keys()
        if known and isinstance(settings["base_model"], str):
            return AlignmentSettings(
                after=settings["after"],
                compensate=settings["compensate"],
                folder=folder,
                base_model=settings["base_model"],
                revision=settings["revision"],
                model_type=settings.get("model_type"),
                hidden_size=settings.get("hidden_size"),
            )
        problem = "expected base_model, revision, after and compensate"
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        problem = first_line(error)
    raise NormprobeError(
        f"cannot read {path}: {problem}", "write it again with `normprobe align MODEL --output DIR`"
    )


def write_adapter_settings(settings: AlignmentSettings) -> None:
    """Write the JSON file of an adapter into ``settings.folder``, which exists."""
    assert settings.folder is not None
    written = {
        "base_model": settings.base_model,
        "revision": settings.revision,
        "model_type": settings.model_type,
        "hidden_size": settings.hidden_size,
        "after": settings.after,
        "compensate": settings.compensate,
    }
    text = json.dumps(written, indent=2) + "\n"
    (settings.folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def config_settings(config: Any) -> AlignmentSettings | None:
    """What the config of an aligned model says; None of any other model."""
    entry = getattr(config, CONFIG_ENTRY, None)
    if entry is None:
        return None
    if not isinstance(entry, Mapping) or not {"after", "compensate"} <= entry.keys():
        raise NormprobeError(
            f"{CONFIG_ENTRY} in config.json is broken: expected after and compensate",
            "fetch the checkpoint again, or save the aligned model again",
        )
    return AlignmentSettings(after=entry["after"], compensate=entry["compensate"])


#: In the name of a field or module: `img_processor`, `mm_vision_tower`, `image_token_id`.
_NAME = re.compile(r"(^|_)(vision|visual|images?|img|pixels?|vit)(_|\d|$)", re.IGNORECASE)

#: In a text: `clip_vision_model`, `google/siglip-so400m`, `image`.
_TEXT_FIELDS = re.compile(r"(?<![a-z])(vision|visual|image|siglip\d?|vit)(?![a-z])", re.IGNORECASE)

#: Fields that name files, classes and places: they say nothing of the model's parts.
_OF_FILES = re.compile(r"^_|^name_or_path$|^architectures$|^auto_map$|_class$|_path$")


def vision_fields(config: Any) -> list[str]:
    """The fields of a config that speak of images, by their names or by what they hold."""
    if type(config).__module__.startswith("transformers.models."):
        return []
    return [name for name, value in config.to_dict().items() if _speaks(name, value)]


def vision_modules(model: "nn.Module") -> list[str]:
    """The modules of a model with code of its own whose names speak of images, the outermost."""
    if type(model).__module__.startswith("transformers.models."):
        return []
    named = [name for name, _ in model.named_modules() if _NAME.search(name.rpartition(".")[2])]
    return [name for name in named if not any(name.startswith(f"{other}.") for other in named)]


def _speaks(name: str, value: Any) -> bool:
    if value is None or value is False or _OF_FILES.search(name):
        return False
    return _NAME.search(name) is not None or _holds_images(value)


def _holds_images(value: Any) -> bool:
    if isinstance(value, str):
        return _TEXT_FIELDS.search(value) is not None
    if isinstance(value, Mapping):
        return any(_speaks(str(name), inner) for name, inner in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_images, value))
