"""Opens what a user names as MODEL: the bundled specimen, a local folder or a hub id."""

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.failures import code_failure, refuse_newer_files
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile, family_file
from normprobe.model.checkpoint_place import (
    PEFT_CONFIG,
    SPECIMEN,
    cached,
    config_failure,
    is_model_name,
    not_trusted,
    refuse_bad_path,
    refuse_silent_hub,
)
from normprobe.model.class_doubts import class_doubt, scaling_doubt
from normprobe.model.config import (
    ADAPTER_CONFIG,
    AlignmentSettings,
    UnknownCode,
    adapter_settings,
    config_of,
    config_settings,
    read_config_file,
    refuse_kernels,
    refuse_original_llava,
)
from normprobe.model.gguf import checkpoint_folder, is_gguf
from normprobe.model.imported_code import (
    absent_code,
    find_bare_imports,
    import_bare,
    import_code,
    register_class,
    run_setup,
    unnamed_class,
)
from normprobe.model.model_kind import KINDS, auto_class, is_own_code, kind_of_config
from normprobe.sandbox import READERS, begin, try_in_sandbox
from normprobe.specimen import SPECIMEN_DIR


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
    if not is_model_name(model):
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
    refuse_bad_path(model, source)
    if _is_bounded(source, trust_remote_code):
        begin()
    refuse_silent_hub(model, source, revision)
    config_file = cached(source, "config.json", revision)
    adapter_file = None if config_file else cached(source, PEFT_CONFIG, revision)
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
    offered = dict[str, str]()
    try:
        if inputs_file.setup is None:
            refuse_original_llava(model, config_file)
        with foreign_code(trust_remote_code, bridges):
            raw = PretrainedConfig.get_config_dict(source, revision=revision)[0]
            if not trust_remote_code:
                refuse_kernels(raw, model)
            setup = inputs_file.over(family_file(raw)).setup
            absent = absent_code(raw, source) if trust_remote_code else ""
            if absent and setup is None:
                raise UnknownCode(
                    f"config.json of {model} names {absent} for its code (auto_map), and that is "
                    "not there",
                    "if a package has its code, import it in setup() of an --inputs file; else "
                    "fetch the checkpoint again, with its code",
                )
            if not trust_remote_code and setup != inputs_file.setup:
                raise not_trusted(model)
            if setup is not None:  # it may put back what the code imports (GME)
                run_setup(setup, inputs_file, raw, trust_remote_code)
            if trust_remote_code:
                offered = unnamed_class(raw, source, revision)
                if found := find_bare_imports(source, config_file if "auto_map" in raw else None):
                    bridges.append(f"{found}, by its bare name")
                if offered and found and setup is None:  # it is registered, not named
                    setup, offered = import_bare(offered["AutoModelForCausalLM"]), {}
                elif offered:
                    bridges.append("auto_map")
                    raw["auto_map"] = {**raw["auto_map"], **offered}
                import_code(raw, source, revision, is_run=inputs_file.forward is not None)
        if _is_bounded(source, trust_remote_code) and config_file is not None:
            build = partial(_build, config_file.parent.absolute(), kind)
            what = f"building what config.json of {model} asks for"
            try_in_sandbox(build, what, modules=[*READERS, *_modules_of(raw)])
        with foreign_code(trust_remote_code, bridges):
            if not ({"model_type", "auto_map"} & raw.keys()) and setup is None:
                # Transformers 4 would go by the name of its folder (AKI's holds "phi").
                raise ValueError(f"Unrecognized model in {model}")
            own = trust_remote_code and not absent
            reader = AutoConfig if setup is None else register_class(raw, own=own) or AutoConfig
            config = reader.from_pretrained(source, revision=revision, trust_remote_code=own)
            if absent or (not trust_remote_code and not is_own_code(config)):
                config.auto_map = {}  # what setup() imported has it, or it is not to run
            if offered:
                config.auto_map = raw["auto_map"]
            config = _that_reads(config)
            config.name_or_path = source  # a class that reads its config by itself leaves it empty
            if not is_own_code(config):
                refuse_original_llava(model, config_file)
            if trust_remote_code:
                bridge_missing_flash_attention(config)
                bridge_auto_map(config)
        kind_of_model = kind_of_config(config) if kind is None else KINDS[kind]
    except (NormprobeError, MemoryError):
        raise
    except Exception as error:  # a config class may do anything with fields of other types
        settings = read_config_file(config_file)
        not_found = isinstance(error, OSError) and not Path(source).is_dir()
        if not_found or not (trust_remote_code and settings.get("auto_map")):
            raise config_failure(error, model, revision, settings) from error
        raise code_failure(error, model, settings.get("transformers_version")) from error
    refuse_newer_files(model, getattr(config, "transformers_version", None))
    doubt = class_doubt(raw, config, auto_class(kind_of_model, config))
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
        doubt="; ".join(filter(None, [doubt, scaling_doubt(config)])),
    )


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
    kind = kind_of_config(config) if kind is None else KINDS[kind]
    made_on_meta(lambda: auto_class(kind, config).from_config(config))


def _that_reads(config: Any) -> Any:
    """Of a model that also speaks (Qwen-Omni) the part that reads and writes, which runs alone."""
    thinker = getattr(config, "thinker_config", None)
    if thinker is None or is_own_code(config):
        return config
    thinker.name_or_path, thinker.dtype = config.name_or_path, thinker.dtype or config.dtype
    return thinker


def _name_of(model: str) -> str:
    if is_gguf(model):
        return Path(model).stem
    return Path(model).resolve().name if Path(model).is_dir() else model


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
            f"{PEFT_CONFIG} of {source} {problem}",
            "set base_model_name_or_path to the hub id or folder of the model it was trained on",
        )
    return adapter


def _is_peft_adapter(source: str, revision: str | None) -> bool:
    whole = cached(source, "config.json", revision)
    return whole is None and cached(source, PEFT_CONFIG, revision) is not None


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
