"""Opens what a user names as MODEL: the bundled specimen, a local folder or a hub id."""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from typing import Any

from normprobe.errors import NormprobeError, did_you_mean, first_line, visible
from normprobe.failures import (
    code_failure,
    hidden_cause,
    hub_answers,
    install,
    is_native,
    is_newer,
    missing_packages,
    other_version,
    refuse_newer_files,
    register_in_setup,
)
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile, family_file
from normprobe.model.config import (
    ADAPTER_CONFIG,
    AlignmentSettings,
    NoForward,
    UnknownCode,
    adapter_settings,
    config_of,
    config_settings,
    read_config_file,
    refuse_kernels,
    refuse_original_llava,
    vision_fields,
)
from normprobe.model.find.overrides import overrides_of
from normprobe.model.gguf import checkpoint_folder, is_gguf
from normprobe.options import models_here
from normprobe.sandbox import READERS, begin, try_in_sandbox
from normprobe.schema import BARE_VISION_ENCODER, LANGUAGE_MODEL, VISION_LANGUAGE
from normprobe.specimen import SPECIMEN_DIR

SPECIMEN = "specimen"

#: How a kind is set by hand.
KINDS = {
    "vision-language": VISION_LANGUAGE,
    "vision-encoder": BARE_VISION_ENCODER,
    "language": LANGUAGE_MODEL,
}

_PEFT_CONFIG = "adapter_config.json"
# File systems refuse longer ones with errors of their own.
_LONGEST_PATH = 1000  # characters
_LONGEST_NAME = 255  # bytes between two slashes


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose config was read, but no weights yet."""

    name: str  # as typed; of a local folder its last part. It names the run folder.
    typed: str  # as typed: what opens it again
    source: str  # what ``from_pretrained`` takes: a local folder or a hub id
    revision: str | None  # the resolved commit of a hub checkpoint
    config: Any  # the config, of a transformers class or of the repository's own code
    kind: str  # one of the three kinds above
    trust_remote_code: bool  # whether the repository's own code may run
    # a PEFT adapter that is merged into the weights: a local folder or a hub id
    adapter: str | None = None
    adapter_revision: str | None = None  # the resolved commit of an adapter on the hub
    # the alignment norm that the checkpoint, or the adapter that opened it, holds
    alignment: AlignmentSettings | None = None
    gguf: str | None = None  # the GGUF file that the folder ``source`` was made of
    # what its class takes beside the config, of an inputs file
    keywords: Mapping[str, Any] = field(default_factory=dict, compare=False)
    # what its own code needed to run on this transformers, of ``remote_code_bridges.foreign_code``
    bridges: list[str] = field(default_factory=list, compare=False)
    doubt: str = ""  # of the class that its config names

    @property
    def argument(self) -> str:
        """What opens it on a command line, for a command that is printed."""
        return f"{self.typed} --trust-remote-code" if self.trust_remote_code else self.typed

    @property
    def own_code(self) -> bool:
        """Whether the code of the model is not that of transformers."""
        return is_own_code(self.config)

    @property
    def keywords_of_class(self) -> dict[str, Any]:
        """Those that its class takes, a copy; other names of tensors are for the loader."""
        named = {name: value for name, value in self.keywords.items() if name != "key_mapping"}
        return copy.deepcopy(named)

    @property
    def is_bounded(self) -> bool:
        """Whether its files are a stranger's and not trusted: they are read in a sandbox first."""
        return _is_bounded(self.source, self.trust_remote_code)

    @property
    def local_folders(self) -> list[str]:
        """The folders on this machine that it is read from, adapters last."""
        folders = [self.source, self.adapter, self.alignment and self.alignment.folder]
        return [str(folder) for folder in folders if folder and Path(folder).is_dir()]


def open_checkpoint(
    model: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    inputs_file: InputsFile = NO_INPUTS_FILE,
    kind: str | None = None,
) -> Checkpoint:
    """Read the config of a checkpoint and tell what kind of model it is."""
    from transformers import AutoConfig, PretrainedConfig
    from transformers.utils.hub import extract_commit_hash

    from normprobe.remote_code_bridges import foreign_code
    from normprobe.remote_code_bridges.attention import bridge_missing_flash_attention
    from normprobe.remote_code_bridges.configs import bridge_auto_map

    if kind is not None and kind not in KINDS:
        raise NormprobeError(
            f"{kind!r} is no kind of model",
            did_you_mean(kind, KINDS, f"expected one of {', '.join(KINDS)}"),
        )
    if not _is_name(model):
        raise NormprobeError(
            f"{model[:60]!r} is no model: expected a folder or a hub id", "pass its name"
        )
    alignment = adapter_settings(Path(model))
    if alignment is not None:
        base = _base_of(model, alignment, trust_remote_code, inputs_file, kind)
        return replace(base, name=_name_of(model), typed=model, alignment=alignment)
    gguf = model if is_gguf(model) else None
    source = str(SPECIMEN_DIR) if model == SPECIMEN else model
    if gguf is not None:
        source = str(checkpoint_folder(gguf))
    _refuse_bad_path(model, source)
    if _is_bounded(source, trust_remote_code):
        begin()
    _refuse_silent_hub(model, source, revision)
    config_file = cached(source, "config.json", revision)
    adapter_file = None if config_file else cached(source, _PEFT_CONFIG, revision)
    if adapter_file is not None:
        adapter = _adapter_config(adapter_file, source)
        base = open_checkpoint(
            adapter["base_model_name_or_path"],
            revision=_revision_in(adapter),
            trust_remote_code=trust_remote_code,
            inputs_file=inputs_file,
            kind=kind,
        )
        commit = extract_commit_hash(str(adapter_file), None) or revision
        base = replace(base, adapter=source, adapter_revision=commit)
        return replace(base, name=_name_of(model), typed=model)
    # One commit for all that follows, however the branch moves meanwhile.
    revision = extract_commit_hash(str(config_file), None) or revision
    if config_file is not None:
        config_of(config_file)  # a broken one is named before anything is built of it
    bridges: list[str] = []
    try:
        if inputs_file.setup is None:
            refuse_original_llava(model, config_file)
        with foreign_code(trust_remote_code, bridges):
            raw = PretrainedConfig.get_config_dict(source, revision=revision)[0]
            if not trust_remote_code:
                refuse_kernels(raw, model)
            setup = inputs_file.over(family_file(raw)).setup
            absent = _absent_code(raw, source) if trust_remote_code else ""
            if absent and setup is None:
                raise UnknownCode(
                    f"config.json of {model} names {absent} for its code (auto_map), and that is "
                    "not there",
                    "if a package has its code, import it in setup() of an --inputs file; else "
                    "fetch the checkpoint again, with its code",
                )
            if trust_remote_code:
                _import_code(raw, source, revision, is_run=inputs_file.forward is not None)
            elif setup != inputs_file.setup:
                raise _not_trusted(model)
            if setup is not None:
                _set_up(setup, inputs_file, raw, trust_remote_code)
        if _is_bounded(source, trust_remote_code) and config_file is not None:
            build = partial(_build, config_file.parent.absolute(), kind)
            what = f"building what config.json of {model} asks for"
            try_in_sandbox(build, what, modules=[*READERS, *_modules_of(raw)])
        with foreign_code(trust_remote_code, bridges):
            reader = AutoConfig if setup is None else _registered(raw) or AutoConfig
            config = reader.from_pretrained(
                source, revision=revision, trust_remote_code=trust_remote_code and not absent
            )
            if absent:  # what setup() imported has it
                config.auto_map = {}
            config = _that_reads(config)
            config.name_or_path = source  # a class that reads its config by itself leaves it empty
            if not is_own_code(config):
                refuse_original_llava(model, config_file)
            if trust_remote_code:
                bridge_missing_flash_attention(config)
                bridge_auto_map(config)
        kind_of_model = _kind_of(config) if kind is None else KINDS[kind]
    except (NormprobeError, MemoryError):
        raise
    except Exception as error:  # a config class may do anything with fields of other types
        settings = read_config_file(config_file)
        not_found = isinstance(error, OSError) and not Path(source).is_dir()
        if not_found or not (trust_remote_code and settings.get("auto_map")):
            raise _explained(error, model, revision, settings) from error
        raise code_failure(error, model, settings.get("transformers_version")) from error
    refuse_newer_files(model, getattr(config, "transformers_version", None))
    doubt = _class_doubt(raw, config, auto_class(kind_of_model, config))
    return Checkpoint(
        name=_name_of(model),
        typed=model,
        source=source,
        revision=revision,
        config=config,
        kind=kind_of_model,
        trust_remote_code=trust_remote_code,
        alignment=config_settings(config),
        gguf=gguf,
        keywords=inputs_file.keywords,
        bridges=bridges,
        doubt="; ".join(filter(None, [doubt, _scaling_doubt(config)])),
    )


def _class_doubt(raw: Mapping[str, Any], config: Any, auto: Any) -> str:
    """A doubt where transformers has a config's type, but none of the classes that it names.

    A package may give its config the type of transformers' own and save its model so (PLLaVA).
    """
    import transformers

    names = [name for name in raw.get("architectures") or () if isinstance(name, str)]
    every = transformers.__all__  # type: ignore[attr-defined]  # dir() of it takes 0.1 s
    there = {name.lower() for name in every}
    own = is_own_code(config) or raw.get("auto_map") or raw.get("model_type") != config.model_type
    if own or not names or any(name.lower() in there for name in names):
        return ""
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


def _scaling_doubt(config: Any) -> str:
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


def is_here(model: str) -> bool:
    """Whether a model is on this machine, and no hub is asked for it."""
    return model == SPECIMEN or Path(model).is_dir() or is_gguf(model)


def _is_bounded(source: str, trust_remote_code: bool) -> bool:
    return not trust_remote_code and source != str(SPECIMEN_DIR)


def _modules_of(raw: Any) -> list[str]:
    """What holds the classes that a config's models are built of, as types are registered now."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    found = []
    for config in [raw, *raw.values()]:
        model_type = config.get("model_type") if isinstance(config, Mapping) else None
        if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
            home = model_type_to_module_name(model_type)
            found += [CONFIG_MAPPING[model_type].__module__]
            found += [f"transformers.models.{home}.modeling_{home}"]
    return found


def _build(folder: Path, kind: str | None) -> None:
    """Make the config and the modules of a checkpoint, as ``build_on_meta`` does."""
    from transformers import AutoConfig

    from normprobe.versions import made_on_meta

    config = _that_reads(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    kind = _kind_of(config) if kind is None else KINDS[kind]
    made_on_meta(lambda: auto_class(kind, config).from_config(config))


def _that_reads(config: Any) -> Any:
    """Of a model that also speaks (Qwen-Omni) the part that reads and writes, which runs alone."""
    thinker = getattr(config, "thinker_config", None)
    if thinker is None or is_own_code(config):
        return config
    thinker.name_or_path, thinker.dtype = config.name_or_path, thinker.dtype or config.dtype
    return thinker


def _is_name(model: str) -> bool:
    """Whether a folder or a hub id may have that name."""
    if not model or len(model) > _LONGEST_PATH or visible(model) != model:
        return False
    return all(len(part.encode()) <= _LONGEST_NAME for part in Path(model).parts)


def is_own_code(config: Any) -> bool:
    """Whether a config is of a class that transformers does not bring."""
    return not type(config).__module__.startswith("transformers.")


def _import_code(
    raw: Mapping[str, Any], source: str, revision: str | None, *, is_run: bool
) -> None:
    """Import what a repository brings, all of it before its config is made.

    Imported one by one, from a folder whose copy grows meanwhile, the config's class exists twice,
    and what the model's file registers for one of them is not found for the other.
    """
    import transformers
    from torch import nn
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    classes: list[tuple[str, Any]] = []
    for key, reference in (raw.get("auto_map") or {}).items():
        if isinstance(reference, str):
            with suppress(Exception):  # said better when it is used
                found = get_class_from_dynamic_module(reference, source, revision=revision)
                classes.append((key, found))
    for key, found in classes:
        # Where the code registers another class than its auto_map names (Magma), that would win.
        offered = getattr(getattr(transformers, key, None), "_model_mapping", None)
        registered = getattr(offered, "_extra_content", {})
        reader = getattr(found, "config_class", None)
        if registered.get(reader, found) is not found:
            del registered[reader]
        if issubclass(found, nn.Module) and found.forward is nn.Module.forward and not is_run:
            raise NoForward(
                f"{found.__name__} has no forward: it computes in methods of its own",
                "write forward(model, **inputs), which calls them, in --inputs FILE.py, or pass it "
                "as Probe(model, forward=...)",
                found,
            )


def _absent_code(raw: Mapping[str, Any], folder: str) -> str:
    """The file of code of its own that a folder names and does not hold; else "" (Xmodel-VLM)."""
    for reference in (raw.get("auto_map") or {}).values() if Path(folder).is_dir() else ():
        if isinstance(reference, str) and "--" not in reference:
            file = reference.rpartition(".")[0].replace(".", "/") + ".py"
            if not (Path(folder) / file).is_file():
                return file
    return ""


def _set_up(
    setup: Callable[[], None], inputs_file: InputsFile, raw: Mapping[str, Any], trusted: bool
) -> None:
    """Let an inputs file import what it needs."""
    try:
        setup()
    except Exception as error:  # whatever the user's code raises
        if setup != inputs_file.setup:  # the package's own says what is missing
            raise
        file, written_for = inputs_file.record["path"], raw.get("transformers_version")
        in_package = Path(extract_tb(error.__traceback__)[-1].filename) != Path(file).absolute()
        error = (cause := hidden_cause(error)) or error
        way = _way_to(missing_packages(error))
        if (cause or in_package) and not missing_packages(error) and written_for:
            way = (
                f"its config is of transformers {written_for}, and the code that it imports may "
                f"need that: {other_version(written_for)}"
            )
        if (cause or in_package) and not missing_packages(error) and not trusted:
            bridges = "which bridges much of what transformers changed"
            way = f"pass --trust-remote-code, {bridges}; else {way}"
        raise NormprobeError(
            f"setup() of {file} fails: {type(error).__name__}: {first_line(error)}", way
        ) from error


def _registered(raw: Mapping[str, Any]) -> Any:
    """Register the class that a config names, where imported code defines it and did not.

    Such a package makes its models by name, as Yi-VL and Honeybee do.

    Returns:
        The class that reads its config, whatever type that names; None: there was nothing to do.
    """
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

    names, model_type = raw.get("architectures") or (), str(raw.get("model_type"))
    native = [getattr(getattr(transformers, n, None), "config_class", None) for n in names]
    # A config that was saved over that of its base names the class of that one (Robin).
    of_base = bool(native) and all(n is not None and n.model_type != model_type for n in native)
    known = CONFIG_MAPPING[model_type] if model_type in CONFIG_MAPPING else None  # noqa: SIM401 lazy
    pending, of_name = [PreTrainedModel], list[tuple[Any, Any]]()
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        reader = kind.config_class
        if not isinstance(reader, type):
            continue
        same_type = getattr(reader, "model_type", None) == model_type
        stands_in = of_base and same_type and kind.__name__.endswith("ForCausalLM")
        if kind.__name__ not in names and not stands_in:
            continue
        if not f"{kind.__module__}.".startswith("transformers."):
            of_name.append((kind, reader))
    if not of_name or any(reader is known for _, reader in of_name):
        return None  # it is registered; another class may have the same name (MoCHA)
    kind, reader = of_name[0]
    if not _is_registered(reader):
        AutoModelForCausalLM.register(reader, kind)
    return reader


def _is_registered(reader: type) -> bool:
    """Whether installed code offers a model by an auto class for configs of this class."""
    from transformers.models.auto import modeling_auto

    offered = [vars(modeling_auto).get(name) for name in dir(modeling_auto)]
    return any(reader in getattr(mapping, "_extra_content", ()) for mapping in offered)


def _way_to(packages: Sequence[str]) -> str:
    """What to do where an inputs file fails."""
    if not packages:
        return "mend the file; NORMPROBE_DEBUG=1 shows where"
    return f"put the folder that holds {packages[0]} on PYTHONPATH, or {install(packages)}"


def _name_of(model: str) -> str:
    if is_gguf(model):
        return Path(model).stem
    return Path(model).resolve().name if Path(model).is_dir() else model


def cached(source: str, file: str, revision: str | None) -> Path | None:
    """The path of a file; None where there is no such file, or no hub answers."""
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(
            source, file, revision=revision, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError):  # loading the config explains it better
        return None
    return None if path is None else Path(path)


def _adapter_config(path: Path, source: str) -> dict[str, Any]:
    """The adapter_config.json of a PEFT adapter."""
    adapter: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError):
        read = json.loads(path.read_text(encoding="utf-8"))
        adapter = read if isinstance(read, dict) else {}
    base = adapter.get("base_model_name_or_path")
    problem = ""
    if not isinstance(base, str):
        problem = "names no base model"
    elif adapter_settings(Path(base)) or _is_peft_adapter(base, _revision_in(adapter)):
        problem = f"names {base}, an adapter too, as its base model"
    if problem:
        raise NormprobeError(
            f"{_PEFT_CONFIG} of {source} {problem}",
            "set base_model_name_or_path to the hub id or folder of the model it was trained on",
        )
    return adapter


def _is_peft_adapter(source: str, revision: str | None) -> bool:
    whole = cached(source, "config.json", revision)
    return whole is None and cached(source, _PEFT_CONFIG, revision) is not None


def _revision_in(adapter: Mapping[str, Any]) -> str | None:
    return str(adapter["revision"]) if adapter.get("revision") else None


def _base_of(
    model: str,
    alignment: AlignmentSettings,
    trust_remote_code: bool,
    inputs_file: InputsFile,
    kind: str | None,
) -> Checkpoint:
    """The checkpoint that an adapter of ``normprobe align`` was made for."""
    assert alignment.base_model is not None
    if adapter_settings(Path(alignment.base_model)) is not None:
        raise NormprobeError(
            f"{ADAPTER_CONFIG} of {model} names {alignment.base_model}, an adapter too, as its "
            "base model",
            "set base_model to the hub id or folder of the model it was made for",
        )
    try:
        return open_checkpoint(
            alignment.base_model,
            revision=alignment.revision,
            trust_remote_code=trust_remote_code,
            inputs_file=inputs_file,
            kind=kind,
        )
    except NormprobeError as error:
        raise NormprobeError(
            f"the base model of the adapter {model} cannot be opened: {error.problem}",
            f"{error.remedy}; it stands in {ADAPTER_CONFIG} of the adapter as base_model",
        ) from error


def auto_class(kind: str, config: Any) -> Any:
    """The transformers auto class that builds the whole model of this kind."""
    import transformers

    if kind == BARE_VISION_ENCODER:
        return transformers.AutoModel
    if _is_image_text_to_text(config):
        return transformers.AutoModelForImageTextToText
    if _retrieves(config):
        return transformers.AutoModelForPreTraining
    if _brings(config, "AutoModel") and not _brings(config, "AutoModelForCausalLM"):
        return transformers.AutoModel
    if reads_sounds(config):
        return transformers.AutoModelForMultimodalLM
    return transformers.AutoModelForCausalLM


def _kind_of(config: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if _is_image_text_to_text(config) or _retrieves(config):
        return VISION_LANGUAGE
    is_causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    is_causal = is_causal or reads_sounds(config)
    if is_causal or _registers(config, "AutoModelForCausalLM") or _writes_text(config):
        return VISION_LANGUAGE if _has_vision_part(config) else LANGUAGE_MODEL
    if is_own_code(config) and not _registers(config, "AutoModel"):  # Phantom, by its import alone
        kind, names = type(config).__name__, getattr(config, "architectures", None) or ["CLASS"]
        raise NormprobeError(
            f"no class is registered that makes a model of {kind}",
            register_in_setup("AutoModelForCausalLM", kind, names[0]),
        )
    names_place = any(getattr(config, f"image_token_{end}", None) for end in ("id", "index"))
    if names_place and is_own_code(config) and _has_vision_part(config):  # Dimple
        return VISION_LANGUAGE
    if hasattr(config, "vision_config") or hasattr(config, "patch_size"):
        return BARE_VISION_ENCODER
    if _registers(config, "AutoModel") and _has_vision_part(config):  # VILA-U
        return VISION_LANGUAGE
    raise NormprobeError(
        f"model type {config.model_type!r} is no vision-language model, vision encoder or "
        "language model of this transformers version",
        "pass such a model, say what it is with --part kind=KIND, or upgrade transformers if the "
        "type is new",
    )


def reads_sounds(config: Any) -> bool:
    """Whether transformers 5 knows the type as one that reads sounds and writes text alone."""
    from transformers.models.auto import modeling_auto

    others = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
    known = set(getattr(modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", ()))
    known = known.difference(*(getattr(modeling_auto, name) for name in others))
    return config.model_type in known and not is_own_code(config)


def _is_image_text_to_text(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = () if is_own_code(config) else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return config.model_type in known or _registers(config, "AutoModelForImageTextToText")


def _retrieves(config: Any) -> bool:
    """Whether the type stands on a vision-language model, to search by its states (ColPali)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_PRETRAINING_MAPPING_NAMES

    inside = getattr(config, "vlm_config", None)
    known = config.model_type in MODEL_FOR_PRETRAINING_MAPPING_NAMES and not is_own_code(config)
    return known and inside is not None and _is_image_text_to_text(inside)


def _brings(config: Any, auto_class: str) -> bool:
    """Whether other code than that of transformers offers a model by an auto class."""
    import transformers

    in_repository = auto_class in (getattr(config, "auto_map", None) or {})
    offered = getattr(transformers, auto_class)._model_mapping._extra_content
    return in_repository or type(config) in offered


def _registers(config: Any, auto_class: str) -> bool:
    """Whether code of its own offers a model by an auto class: in its repository, or installed."""
    import transformers

    mapping = getattr(transformers, auto_class)._model_mapping
    # Of transformers' own it looks at the name alone: LLaVA's code has a LlavaConfig, too.
    native = not is_own_code(config) and type(config) in mapping
    return native or _brings(config, auto_class)


def _writes_text(config: Any) -> bool:
    """Whether the class of a repository that offers a bare ``AutoModel`` says that it writes text.

    That of a vision encoder, or of a dual encoder such as CLIP, does not.
    """
    of_text = ("ForCausalLM", "ForConditionalGeneration")
    named = [str(name) for name in getattr(config, "architectures", None) or []]
    return _registers(config, "AutoModel") and any(name.endswith(of_text) for name in named)


def _has_vision_part(config: Any) -> bool:
    """Whether a model that is offered as a causal language model also reads images.

    Some configs do not mention the vision encoder; then the overrides know the model type.
    """
    known = ("vision_config", "vit_config")
    return (
        any(getattr(config, name, None) is not None for name in known)
        or bool(vision_fields(config))
        or _is_given_pixels(config)
        or overrides_of(config).get("vision_encoder") is not None
    )


def _is_given_pixels(config: Any) -> bool:
    """Whether the class that a package offers for a type has an input for pictures (SAIL)."""
    from transformers import AutoModelForCausalLM

    offered = AutoModelForCausalLM._model_mapping._extra_content.get(type(config))
    inputs = signature(offered.forward).parameters if offered is not None else ()
    return any(re.search("pixel|image|picture|patches", name) for name in inputs)


_NO_CONFIG = (
    "pass the folder that holds config.json and the weights; a model that is built without one is "
    "measured in Python: Probe(model)"
)


def require_path(model: str) -> None:
    """Refuse a path where no model can be, before anything is loaded for it."""
    named = _is_name(model) and model != SPECIMEN and not is_gguf(model)
    if named and adapter_settings(Path(model)) is None:
        _refuse_bad_path(model, model)


def _refuse_bad_path(model: str, source: str) -> None:
    """Refuse a path that is no checkpoint folder, before it is looked up on a hub."""
    path = Path(source)
    if path.is_file():
        whole = (path.parent / "config.json").is_file()
        raise NormprobeError(
            f"{model} is a file; expected a checkpoint folder or a hub id",
            f"pass its folder: {path.parent}" if whole else _NO_CONFIG,
        )
    looks_local = model.startswith(("/", "./", "../", "~")) or model.count("/") > 1
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", _PEFT_CONFIG)):
            raise NormprobeError(
                f"{model} holds no config.json; expected a checkpoint saved by save_pretrained",
                _NO_CONFIG,
            )
    elif looks_local:
        raise NormprobeError(
            f"no such folder: {model}",
            did_you_mean(
                model,
                models_here(model),
                f"check the path, or pass a hub id such as org/name, or `{SPECIMEN}`",
            ),
        )


def _refuse_silent_hub(model: str, source: str, revision: str | None) -> None:
    """Refuse a model that is not here, where no hub answers that could have it."""
    if Path(source).is_dir():
        return
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        files = ("config.json", _PEFT_CONFIG)
        here = [try_to_load_from_cache(source, file, revision=revision) for file in files]
    except HFValidationError:
        raise _not_found(model, "no such folder, and no name that a hub knows") from None
    found = any(isinstance(path, str) for path in here)
    if not (found or constants.HF_HUB_OFFLINE or hub_answers()):
        raise _not_found(model, f"no such folder, and {constants.ENDPOINT} does not answer")


def _not_trusted(model: str) -> NormprobeError:
    return NormprobeError(
        f"{model} needs code of its own, which is not run unless asked for",
        "read that code, then pass --trust-remote-code",
    )


def _not_found(model: str, why: str) -> NormprobeError:
    return NormprobeError(
        f"cannot find the model {model!r}: {why}",
        did_you_mean(
            model,
            models_here(model),
            f"check the name and the network (HF_HUB_OFFLINE, HF_TOKEN), or use `{SPECIMEN}`",
        ),
    )


def _explained(
    error: Exception, model: str, revision: str | None, settings: Mapping[str, Any]
) -> NormprobeError:
    """Why a config cannot be loaded, and what to do."""
    import transformers
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError
    from transformers import CONFIG_MAPPING

    if "trust_remote_code" in str(error):
        return _not_trusted(model)
    if isinstance(error.__cause__, GatedRepoError):
        return NormprobeError(
            f"{model} is gated, and the hub does not let this account in",
            f"ask for access on {ENDPOINT}/{model}, then `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error.__cause__, RevisionNotFoundError):
        return NormprobeError(
            f"{model} has no revision {revision!r}",
            "pass a branch, tag or commit that it has, or leave --revision out",
        )
    if settings and not {"model_type", "architectures", "auto_map"} & settings.keys():
        return NormprobeError(
            f"config.json of {model} names neither a model_type nor a class (architectures)",
            "of a checkpoint that transformers did not save, make the model as its own code does, "
            "then measure it in Python: Probe(model, forward=...), see own-architecture.md",
        )
    not_found = isinstance(error, OSError) and not Path(model).is_dir()
    if not_found and HF_HUB_OFFLINE:
        return NormprobeError(
            f"config.json of {model} is not in the cache, and HF_HUB_OFFLINE is set",
            did_you_mean(
                model,
                models_here(model),
                f"check the name, unset HF_HUB_OFFLINE, pass a local folder, or use `{SPECIMEN}`",
            ),
        )
    if not_found:
        return _not_found(model, "no such folder, and no hub answered for that id")
    model_type, written_for = settings.get("model_type"), settings.get("transformers_version")
    classes = [name for name in settings.get("architectures") or () if isinstance(name, str)]
    unknown = isinstance(model_type, str) and model_type not in CONFIG_MAPPING
    if unknown or (not model_type and classes):
        told = f"of the type {model_type!r}" if model_type else f"a {classes[0]}, of no type"
        class_name = classes[0] if classes else "its class"
        return UnknownCode(
            f"{model} is {told}, which transformers {transformers.__version__} does not have; "
            "config.json names no code for it",
            other_version(written_for)
            if is_newer(written_for)
            else "upgrade transformers if the type is new; if a package has its code, import the "
            f"module of {class_name} in setup() of an --inputs file, which `normprobe inputs "
            f"{model} --write FILE.py` begins"
            + f", and where that registers no config: AutoConfig.register({model_type!r}, CONFIG)"
            * (not classes),
        )
    return NormprobeError(
        f"cannot read the config of {model}: {first_line(error)}",
        other_version(written_for) if is_newer(written_for) else "check config.json",
    )
