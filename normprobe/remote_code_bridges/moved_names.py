"""Names that moved to another module, or went, and are found where older code imports them from."""

import importlib
import re
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import transformers
from transformers import dynamic_module_utils, modeling_utils
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import versions

from normprobe.remote_code_bridges.layers import BLOCKS, CALLED, AxisAngles
from normprobe.remote_code_bridges.noted import note_bridge

_require = versions.require_version


def modeling(name: str) -> str:
    """Where transformers has the classes of a model."""
    return f"transformers.models.{name.lower()}.modeling_{name.lower()}"


def _of_every_attention(name: str) -> dict[str, Any]:
    """The one class of a model's attention, by the names of what it looks up."""
    module = importlib.import_module(modeling(name))
    kinds = ("eager", "sdpa", "flash_attention_2")
    return dict.fromkeys(kinds, getattr(module, f"{name}Attention"))


#: Whose classes of attention became one.
_ONE_ATTENTION = ("Llama", "Qwen2", "Mistral", "Whisper")

#: Whose tower and the model around it became one class.
_ONE_CLASS = ("CLIP", "Siglip")


def one_class_towers() -> list[Any]:
    """The classes of such towers."""
    return [getattr(importlib.import_module(modeling(n)), f"{n}VisionModel") for n in _ONE_CLASS]


#: Whose forward returned, beside all else, how far places are from those of text alone.
_WITH_DELTAS = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "glm4v": "Glm4v"}


@dataclass
class _WithDeltas(CausalLMOutputWithPast):
    rope_deltas: Any = None


#: Where older code imports a name from, the name, and what has its place now or stands for it. What
#: moved under its own name is found by that (``import_moved``).
MOVED: tuple[tuple[str, str, str | Callable[[], Any]], ...] = (
    ("transformers.activations", "PytorchGELUTanh", "transformers.activations:GELUTanh"),
    ("transformers.cache_utils", "HybridCache", "transformers.cache_utils:StaticCache"),
    ("transformers.utils.import_utils", "is_torch_fx_available", lambda: _yes),
    ("transformers.utils", "is_torch_fx_available", lambda: _yes),
    *(
        ("transformers.utils", f"is_{name}_available", lambda: bool)
        for name in ("flash_attn", "flax", "tf")
    ),
    ("transformers", "AutoModelForVision2Seq", "transformers:AutoModelForImageTextToText"),
    *(
        ("transformers", f"{name}FeatureExtractor", f"transformers:{name}ImageProcessor")
        for name in ("Beit", "CLIP", "ConvNext", "DeiT", "VideoMAE", "ViT")
    ),
    # What training, sampling and downloads use, and no forward does.
    ("transformers", "LogitsWarper", "transformers:LogitsProcessor"),
    ("transformers", "TRANSFORMERS_CACHE", "huggingface_hub.constants:HF_HUB_CACHE"),
    ("transformers", "AdamW", "torch.optim:AdamW"),
    ("transformers", "is_torch_tpu_available", lambda: bool),
    ("transformers.utils", "is_safetensors_available", lambda: _yes),
    ("transformers.utils.import_utils", "is_safetensors_available", lambda: _yes),
    ("transformers.modeling_utils", "no_init_weights", lambda: no_init_weights),
    ("transformers.modeling_utils", "restore_default_torch_dtype", lambda: _as_it_is),
    # What prunes heads went; copies of BERT import it, and no forward calls it.
    ("transformers.modeling_utils", "find_pruneable_heads_and_indices", lambda: None),
    ("transformers.pytorch_utils", "find_pruneable_heads_and_indices", lambda: None),
    ("transformers.pytorch_utils", "is_torch_greater_or_equal_than_1_13", lambda: True),
    (
        "transformers.processing_utils",
        "_validate_images_text_input_order",
        lambda: _images_then_text,
    ),
    ("transformers.processing_utils", "CommonKwargs", lambda: _CommonKwargs),
    ("transformers.utils", "LossKwargs", "transformers.utils:TransformersKwargs"),
    (
        "transformers.models.paligemma.processing_paligemma",
        "make_batched_images",
        "transformers.image_utils:make_flat_list_of_images",
    ),
    *(
        (modeling(name), f"{name}VisionTransformer", f"{modeling(name)}:{name}VisionModel")
        for name in _ONE_CLASS
    ),
    *(
        (
            modeling(name),
            "_expand_mask",
            "transformers.modeling_attn_mask_utils:_prepare_4d_attention_mask",
        )
        for name in ("bert", "clip", "llama")
    ),
    *(
        (modeling(name), f"{called}CausalLMOutputWithPast", lambda: _WithDeltas)
        for name, called in _WITH_DELTAS.items()
    ),
    *((modeling(name), "VisionRotaryEmbedding", lambda: AxisAngles) for name in BLOCKS),
    *(  # what these imported themselves (WALL-OSS)
        (modeling(name), "Qwen2RMSNorm", f"{modeling('qwen2')}:Qwen2RMSNorm")
        for name in ("qwen2_vl", "qwen2_5_vl")
    ),
    (
        modeling("detr"),
        "generalized_box_iou",
        "transformers.loss.loss_for_object_detection:generalized_box_iou",
    ),
    (modeling("clip"), "clip_loss", f"{modeling('clip')}:image_text_contrastive_loss"),
    # What is imported for other language models than the one that is measured (LLaVA's MPT), or for
    # addresses of files.
    *(
        (modeling(kind), name, lambda: None)
        for kind in ("bloom", "opt")
        for name in ("_expand_mask", "_make_causal_mask")
    ),
    *(("transformers.utils.hub", name, lambda: None) for name in ("download_url", "is_remote_url")),
    # A class for each attention became one that looks it up.
    *(
        (modeling(name), f"{name.upper()}_ATTENTION_CLASSES", partial(_of_every_attention, name))
        for name in _ONE_ATTENTION
    ),
    *(
        (modeling(name), f"{name}{kind}", f"{modeling(name)}:{name}Attention")
        for name in _ONE_ATTENTION
        for kind in ("FlashAttention2", "SdpaAttention")
    ),
    # What a decorator writes into docstrings.
    *(
        (modeling(name), f"{name.upper()}_{kind}_DOCSTRING", lambda: "")
        for name in ("CLIP", *CALLED)
        for kind in ("INPUTS", "START")
    ),
    ("transformers.video_processing_utils", "BASE_VIDEO_PROCESSOR_DOCSTRING", lambda: ""),
    *((modeling(name), "_CONFIG_FOR_DOC", partial(str, f"{name}Config")) for name in CALLED),
    # Of caches and of checks that copies of generate() make (OpenOmni).
    *(
        ("transformers.generation.utils", name, lambda: None)
        for name in (
            *("GenerateNonBeamOutput", "NEED_SETUP_CACHE_CLASSES_MAPPING"),
            *("QUANT_BACKEND_CLASSES_MAPPING", "QuantizedCacheConfig"),
        )
    ),
    *(
        ("transformers.generation.utils", f"is_{name}", lambda: bool)
        for name in (
            *("deepspeed_zero3_enabled", "hqq_available", "quanto_available"),
            "torchdynamo_compiling",
        )
    ),
    # Private, and of no use to a forward (PIIP).
    ("transformers.modeling_utils", "_load_state_dict_into_model", lambda: None),
    ("torch.nn.functional", "List", lambda: typing.List),  # noqa: UP006 the name itself is asked for
    *(  # with all else of the module, by a star (MiniGPT-5)
        (module, name, partial(getattr, typing, name))
        for module in ("transformers.generation.utils", *map(modeling, CALLED))
        for name in ("Dict", "List", "Optional", "Tuple", "Union")
    ),
)

#: Where transformers has what several models share, and a line that defines a name there.
_SHARED = ("*.py", "utils/*.py", "generation/*.py", "integrations/*.py")
_DEFINES = r"^(?:class|def) {name}\b|^{name}(?:: [^=]+)? = |^    from \S+ import .*\b{name}\b"

#: Modules that moved, and where they are now.
MOVED_MODULES = {"transformers.deepspeed": "transformers.integrations.deepspeed"}


def bridge_moved_name(module_name: str, name: str, there: str | Callable[[], Any]) -> None:
    """A name that moved to another module, or went, is found where older code imports it from."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    if hasattr(module, name):
        return
    if callable(there):
        setattr(module, name, there())
        return
    new_module, _, new_name = there.partition(":")
    setattr(module, name, getattr(importlib.import_module(new_module), new_name))


def import_moved(importing: Any) -> Any:
    """An ``__import__`` that finds a name of transformers where it is now, under its own name.

    A model's own modules are asked for what its other modules had, and else what all share.
    """

    @wraps(importing)
    def find_and_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if fromlist and not level and name.partition(".")[0] == "transformers":
            for wanted in set(fromlist) - {"*"}:
                _find_moved(name, wanted)
        return importing(name, globals, locals, fromlist, level)

    return find_and_import


def _find_moved(module_name: str, wanted: str) -> None:
    """Put a name into a module of transformers that has it no more, if another one has it."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    with suppress(AttributeError, ImportError, RuntimeError):
        getattr(module, wanted)
        return
    folder = Path(transformers.__file__).parent
    beside = "/".join(module_name.split(".")[1:-1])
    own = [f"{beside}/*.py"] if ".models." in module_name else []
    defines = re.compile(_DEFINES.format(name=re.escape(wanted)), re.MULTILINE)
    for file in (each for place in [*own, *_SHARED] for each in sorted(folder.glob(place))):
        if file.name.startswith(("__", "dummy_")):
            continue
        if not defines.search(file.read_text(encoding="utf-8", errors="ignore")):
            continue
        there = ".".join(("transformers", *file.relative_to(folder).with_suffix("").parts))
        with suppress(ImportError, AttributeError):
            setattr(module, wanted, getattr(importlib.import_module(there), wanted))
            note_bridge(f"{module_name}.{wanted}")
            return


def all_that_are_imported(check: Any) -> Any:
    """A ``check_imports`` that also tells files which only a file beside imports.

    transformers 4 copies none of those out of a folder (V2PE, FineVQ).
    """

    @wraps(check)
    def check_all(filename: Any) -> list[str]:
        found: list[str] = check(filename)
        beside = Path(filename).parent
        for file in map(Path, dynamic_module_utils.get_relative_import_files(filename)):
            name = str(file.relative_to(beside).with_suffix(""))
            if file.is_file() and name not in found:
                note_bridge(f"{name}, imported by a file beside")
                found.append(name)
        return found

    return check_all


#: As it stands in 4.57.
_WITHOUT = getattr(modeling_utils, "no_init_weights", None)


def no_init_weights(_enable: bool = True) -> AbstractContextManager[None]:
    """It could be switched off, and stood elsewhere."""
    made: Any = _WITHOUT or importlib.import_module("transformers.initialization").no_init_weights
    return made() if _enable else nullcontext()


class _CommonKwargs(typing.TypedDict):
    """Of texts and pictures alike, for the annotations of a processor (jina-vlm)."""


def _as_it_is(function: Any) -> Any:
    """A dtype that nothing sets while a model is made need not be put back (UniWorld-V1)."""
    return function


def _yes() -> bool:
    return True


def require_others(requirement: str, hint: str | None = None) -> None:
    """Code may refuse all transformers but its own; which is right is seen by running it (GME)."""
    if requirement.startswith("transformers"):
        note_bridge(requirement)
    else:
        _require(requirement, hint)


def _images_then_text(images: Any, text: Any) -> tuple[Any, Any]:
    """Older transformers took both orders and sorted them out."""
    return images, text
