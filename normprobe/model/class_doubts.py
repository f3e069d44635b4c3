"""Doubts where the class that is made is not the one that was trained, or runs otherwise."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import isfunction, signature
from typing import Any

from torch import nn

from normprobe.failures import is_native, other_version
from normprobe.model.config import fields
from normprobe.model.find.parts import head_of
from normprobe.model.model_kind import is_own_code
from normprobe.remote_code_bridges.attention import uncalled_masks
from normprobe.remote_code_bridges.noted import source_of


def class_doubt(raw: Mapping[str, Any], config: Any, auto: Any) -> str:
    """A doubt where transformers has a config's type, but none of the classes that it names.

    A package may give its config the type of transformers' own and save its model so (PLLaVA).
    """
    import transformers

    names = [name for name in raw.get("architectures") or () if isinstance(name, str)]
    every = transformers.__all__  # type: ignore[attr-defined]  # dir() of it takes 0.1 s
    there = {name.lower() for name in every}
    offers = getattr(config, "auto_map", None)
    own = is_own_code(config) or offers or raw.get("model_type") != config.model_type
    if own or not names or any(name.lower() in there for name in names):
        return ""
    if raw.get("auto_map"):
        return (
            f"config.json names the class {names[0]}, whose code comes with it and is not run: "
            f"measured as transformers' own of the type {config.model_type!r}, whose forward may "
            "be another; read that code, then pass --trust-remote-code"
        )
    offered = auto._model_mapping.get(type(config), ())
    classes = offered if isinstance(offered, tuple) else [offered]
    if any(kind.__name__ in names for kind in classes):
        return ""  # a package registered its own
    return (
        f"config.json names the class {names[0]}, which transformers {transformers.__version__} "
        f"does not have: measured as its own of the type {config.model_type!r}, whose forward may "
        "be another; where a package has it, in setup() of an --inputs file, behind its import: "
        f"{auto.__name__}.register({type(config).__name__}, {names[0]}, exist_ok=True)"
    )


def scaling_doubt(config: Any) -> str:
    """A doubt where rows of images enter a Gemma or Gemma 2 decoder otherwise than it was trained.

    Transformers 4 multiplies all rows that enter by the root of the width, 5 those of words alone
    (LLaVA-Gemma). PaliGemma's class makes up for it.
    """
    from normprobe.versions import is_line_5

    text = config.get_text_config(decoder=True)
    written = str(getattr(config, "transformers_version", ""))
    gemma = any(kind.__name__ in ("GemmaConfig", "Gemma2Config") for kind in type(text).__mro__)
    alone = text is config and not is_own_code(config)
    makes_up = config.model_type in ("paligemma", "colpali") and not is_own_code(config)
    if not (gemma and is_line_5() and written.startswith("4.")) or alone or makes_up:
        return ""
    return (
        f"transformers 4 multiplies all rows that enter its decoder by sqrt({text.hidden_size}), 5 "
        f"those of words alone, and config.json was written by {written}: visual rows may be "
        f"{text.hidden_size**0.5:.0f} x louder in what was trained; to measure that: "
        f"{other_version('4.57.6')}"
    )


def other_class_doubt(model: Any, names: Sequence[str]) -> str:
    """A doubt where code offers another class for a config than the one that it names (LISA).

    ``names``: as its file has them; a class may write others into the config (VoRA).
    """
    built = type(model).__name__
    if is_native(model) or not names:
        return ""
    if built in names:
        offered = _offered(model.config.model_type)
        if offered is None or offered.forward is type(model).forward:
            return ""
        return (
            f"config.json names the class {built}, and the code that was imported offers "
            f"{offered.__name__} for its type: measured as {built}, whose forward may be another; "
            f"for the other, name it in architectures of config.json"
        )
    named: list[Any] = [each for each in type(model).__mro__ if each.__name__ in names]
    if any(each.forward is type(model).forward for each in named):
        return ""  # derived from it, and runs as it does (MoE-LLaVA)
    return (
        f"config.json names the class {names[0]}, and its code offers {built} for such a config: "
        f"measured as {built}, whose forward may be another; to offer the one, in setup() of an "
        f"--inputs file: AutoModelForCausalLM.register(CONFIG, {names[0]}, exist_ok=True)"
    )


def _offered(model_type: str) -> Any:
    """The class of a package that is made of configs of a type; None where there is none."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    known = CONFIG_MAPPING[model_type] if model_type in CONFIG_MAPPING else None  # noqa: SIM401 lazy
    if known is None or known.__module__.startswith("transformers."):
        return None
    return AutoModelForCausalLM._model_mapping.get(known, None)


#: What a method takes that makes inputs of a model by itself.
_PICTURES, _WORDS = re.compile("image|picture|pairs"), re.compile("text|query|queries|prompt|pairs")
_NOT_THEM = re.compile("^(_|forward$|generate$|prepare_|get_.*_features$|get_(text|image)_embeds$)")


def _writes(model: nn.Module) -> bool:
    """Whether something in a model makes a number for each word."""
    told = any(True for _ in (head_of(model) or nn.Identity()).parameters())
    tables = (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
    words = max(tables, default=0)  # those of places are shorter
    return told or any(
        isinstance(m, nn.Linear) and m.out_features == words for m in model.modules()
    )


def own_methods(model: Any) -> Iterator[tuple[str, list[str]]]:
    """Methods that are of neither torch nor transformers: the name of each, and what it takes."""
    for kind in type(model).__mro__:
        if not kind.__module__.startswith(("transformers.", "torch.", "builtins")):
            for name, method in vars(kind).items():
                if isfunction(method):
                    yield name, [*signature(method).parameters]


#: What a method takes that writes an answer into masked places, block by block or all at once.
_BY_DIFFUSION = re.compile("block_(length|size)|denois|remasking|diffusion|mask_token_id")

_READ_OTHERWISE = (
    "{what}, and may write answers by diffusion: then it reads a prompt by blocks, or beside "
    "masked places; measured is the prompt alone, as forward reads it"
)


def diffusion_doubt(model: Any) -> str:
    """A doubt where an answer is written by diffusion (LLaDA-V, MinerU-Diffusion).

    The prompt is read beside masked places, or by blocks; its forward reads it alone.
    """
    if is_native(model):
        return ""
    settings: dict[str, Any] = getattr(getattr(model, "config", None), "to_dict", dict)()
    if any(name == "mask_token_id" and value is not None for name, value in fields(settings)):
        return _READ_OTHERWISE.format(what=f"{type(model).__name__} has a mask_token_id")
    for name, takes in own_methods(model):
        told = _BY_DIFFUSION.search(" ".join([name, *takes])) if "generate" in name else None
        if told is not None:
            what = f"{type(model).__name__}.{name}() takes {told[0]}"
            return _READ_OTHERWISE.format(what=what)
    return ""


def attention_doubt(model: Any) -> str:
    """A doubt where own code has another attention than the one that runs, or another mask."""
    first = {type(module): module for module in reversed([*model.modules()])}
    doubts = [_left_out(first), next(filter(None, map(_more_weights_elsewhere, first)), "")]
    if masks := uncalled_masks(model):
        doubts.append(
            f"its code overrides {', '.join(masks)}, which this transformers never calls: "
            "layers are masked as any decoder's, which may be otherwise"
        )
    return "; ".join(filter(None, doubts))


def _left_out(first: Mapping[type, nn.Module]) -> str:
    """A doubt where one attention of own code leaves out what another computes with (Emu3.5).

    A class for each way to attend derives from the first one; norms of queries may lack in some.
    """
    from transformers import PreTrainedModel

    for kind, module in first.items():
        base = kind.__mro__[1]
        own = not base.__module__.startswith(("torch.", "transformers."))
        whole = isinstance(module, PreTrainedModel)  # it may read a state and write nothing (MoCa)
        if not own or whole or "forward" not in vars(kind) or "forward" not in vars(base):
            continue
        ours, theirs = source_of(kind), source_of(vars(base)["forward"])
        weighs = [name for name, part in module.named_children() if [*part.parameters()]]
        used = [name for name in weighs if f"self.{name}(" in theirs]
        left = [name for name in used if f"self.{name}" not in ours]
        if left and len(left) < len(used):
            return (
                f"{kind.__name__} leaves out {', '.join(left)}, which {base.__name__} computes "
                "with: another attn_implementation may be that of its authors"
            )
    return ""


def _more_weights_elsewhere(kind: type) -> str:
    """A doubt where code has an attention with weights that the one which runs lacks (VideoNSA)."""
    if kind.__module__.startswith(("torch.", "transformers.")):
        return ""
    mine = "".join(map(source_of, kind.__mro__[:-1]))
    for table in list(getattr(sys.modules.get(kind.__module__), "__dict__", {}).values()):
        if not isinstance(table, dict) or "eager" not in table or kind not in table.values():
            continue
        for way, other in table.items():
            made = re.findall(r"self\.(\w+) = nn\.(?!Dropout)", source_of(other))
            if more := [name for name in made if f"self.{name} =" not in mine]:
                return (
                    f"{kind.__name__} runs, and {way!r} of its code is {other.__name__}, which has "
                    f"{', '.join(more)} besides: if the model was trained so, numbers are others"
                )
    return ""


def inputs_doubt(model: Any) -> str:
    """A doubt where a class that writes no text makes inputs by itself (GME, jina-reranker).

    What it asks is nobody's chat: its method may write other words around a picture.
    """
    if is_native(model) or _writes(model):
        return ""
    for name, taken in own_methods(model):
        takes = " ".join(taken)
        if not _NOT_THEM.search(name) and _PICTURES.search(takes) and _WORDS.search(takes):
            return (
                f"{type(model).__name__} has no head that writes text, and its {name}() takes "
                "pictures and words: it may ask with others than the chat template's; hold the "
                "prompt that `normprobe inputs` prints against it"
            )
    return ""
