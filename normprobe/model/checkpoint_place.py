"""Where a model lies: names and paths, and why one that is not there cannot be had."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, did_you_mean, first_line, visible
from normprobe.failures import hub_answers, is_newer, other_version
from normprobe.model.config import UnknownCode, adapter_settings
from normprobe.model.gguf import is_gguf
from normprobe.options import models_here

SPECIMEN = "specimen"

PEFT_CONFIG = "adapter_config.json"

# File systems refuse longer ones with errors of their own.
_LONGEST_PATH = 1000  # characters
_LONGEST_NAME = 255  # bytes between two slashes

_NO_CONFIG = (
    "pass the folder that holds config.json and the weights; a model that is built without one is "
    "measured in Python: Probe(model)"
)


def is_here(model: str) -> bool:
    """Whether a model is on this machine, and no hub is asked for it."""
    return model == SPECIMEN or Path(model).is_dir() or is_gguf(model)


def is_model_name(model: str) -> bool:
    """Whether a folder or a hub id may have that name."""
    if not model or len(model) > _LONGEST_PATH or visible(model) != model:
        return False
    return all(len(part.encode()) <= _LONGEST_NAME for part in Path(model).parts)


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


def require_path(model: str) -> None:
    """Refuse a path where no model can be, before anything is loaded for it."""
    named = is_model_name(model) and model != SPECIMEN and not is_gguf(model)
    if named and adapter_settings(Path(model)) is None:
        refuse_bad_path(model, model)


def refuse_bad_path(model: str, source: str) -> None:
    """Refuse a path that is no checkpoint folder, before it is looked up on a hub."""
    path = Path(source)
    if path.is_file():
        whole = (path.parent / "config.json").is_file()
        way = f"pass its folder: {path.parent}" if whole else _NO_CONFIG
        if path.suffix == ".py":
            way = "a script is run by normprobe interface, layers and embeddings"
        raise NormprobeError(f"{model} is a file; expected a checkpoint folder or a hub id", way)
    looks_local = model.startswith(("/", "./", "../", "~")) or model.count("/") > 1
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", PEFT_CONFIG)):
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


def refuse_silent_hub(model: str, source: str, revision: str | None) -> None:
    """Refuse a model that is not here, where no hub answers that could have it."""
    if Path(source).is_dir():
        return
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        files = ("config.json", PEFT_CONFIG)
        here = [try_to_load_from_cache(source, file, revision=revision) for file in files]
    except HFValidationError:
        raise _not_found(model, "no such folder, and no name that a hub knows") from None
    found = any(isinstance(path, str) for path in here)
    if not (found or constants.HF_HUB_OFFLINE or hub_answers()):
        raise _not_found(model, f"no such folder, and {constants.ENDPOINT} does not answer")


def not_trusted(model: str) -> NormprobeError:
    """Of a model that cannot be had without its own code."""
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


def config_failure(
    error: Exception, model: str, revision: str | None, settings: Mapping[str, Any]
) -> NormprobeError:
    """Why a config cannot be loaded, and what to do."""
    import transformers
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError
    from transformers import CONFIG_MAPPING

    if "trust_remote_code" in str(error):
        return not_trusted(model)
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
