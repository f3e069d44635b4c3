"""Code that comes with a checkpoint, or that setup() of an inputs file imports for it."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from normprobe.errors import NormprobeError, first_line
from normprobe.failures import (
    hidden_cause,
    install,
    missing_packages,
    other_package,
    other_version,
)
from normprobe.inputs.inputs_file import InputsFile
from normprobe.model.checkpoint_place import cached
from normprobe.model.config import NoForward


def import_code(raw: Mapping[str, Any], source: str, revision: str | None, *, is_run: bool) -> None:
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


#: What a file of code imports by a bare name.
_IMPORTS = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


def find_bare_imports(source: str, config_file: Path | None) -> str:
    """Let code find files beside it that it imports by bare names, as if run where it lies.

    Returns:
        The first of their names (Ming-flash-omni's); "" where all are imported as of a package.
    """
    folder = config_file.parent.absolute() if config_file and Path(source).is_dir() else None
    codes = {each.stem: each for each in folder.glob("*.py")} if folder else {}
    texts = (each.read_text(encoding="utf-8", errors="ignore") for each in codes.values())
    found = sorted({name for text in texts for name in _IMPORTS.findall(text) if name in codes})
    if found and str(folder) not in sys.path:
        sys.path.append(str(folder))
    return found[0] if found else ""


def import_bare(reference: str) -> Callable[[], None]:
    """Import the file of a class by its bare name, which asks for no more than runs.

    Returns:
        What does so again, as a ``setup`` of an inputs file.
    """

    def setup() -> None:
        import_module(reference.partition(".")[0])

    setup()
    return setup


def unnamed_class(raw: Mapping[str, Any], source: str, revision: str | None) -> dict[str, str]:
    """What ``auto_map`` lacks: the class that a config names, in the file beside its config's.

    Its page may import that file by itself (Ming).
    """
    named = raw.get("auto_map") or {}
    names = raw.get("architectures")
    reader, name = named.get("AutoConfig"), names[0] if names else ""
    if not isinstance(reader, str) or any(key.startswith("AutoModel") for key in named):
        return {}
    room = reader.rpartition(".")[0].replace("configuration_", "modeling_")
    file = cached(source, f"{room}.py", revision)
    text = file.read_text(encoding="utf-8", errors="ignore") if file else ""
    holds = name and re.search(rf"^class {re.escape(name)}\(", text, re.MULTILINE)
    return {"AutoModelForCausalLM": f"{room}.{name}"} if holds else {}


def absent_code(raw: Mapping[str, Any], folder: str) -> str:
    """The file of code of its own that a folder names and does not hold; else "" (Xmodel-VLM)."""
    for reference in (raw.get("auto_map") or {}).values() if Path(folder).is_dir() else ():
        # Without a file nobody reads it (InfiniteVL).
        if isinstance(reference, str) and "--" not in reference and "." in reference:
            file: str = reference.rpartition(".")[0].replace(".", "/") + ".py"
            if not (Path(folder) / file).is_file():
                return file
    return ""


@contextmanager
def imports_that_may_fail() -> Iterator[None]:
    """Where the block fails, let its imports be tried again.

    A folder that outlives the package around it cannot be imported twice (RBDash, Being-H).
    """
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in sorted(sys.modules.keys() - before):
            folder = getattr(sys.modules[name], "__file__", None) is None
            if folder and name.rpartition(".")[0] not in {"", *sys.modules}:
                del sys.modules[name]
        raise


def run_setup(
    setup: Callable[[], None], inputs_file: InputsFile, raw: Mapping[str, Any], trusted: bool
) -> None:
    """Let an inputs file import what it needs."""
    try:
        with imports_that_may_fail():
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
        way = other_package(error) or way  # OneCAT's is peft
        if (cause or in_package) and not missing_packages(error) and not trusted:
            bridges = "which bridges much of what transformers changed"
            way = f"pass --trust-remote-code, {bridges}; else {way}"
        raise NormprobeError(
            f"setup() of {file} fails: {type(error).__name__}: {first_line(error)}", way
        ) from error


def register_class(raw: Mapping[str, Any], *, own: bool) -> Any:
    """Register the class that a config names, where imported code defines it and did not.

    Such a package makes its models by name, as Yi-VL and Honeybee do. ``own``: whether the code
    that ``auto_map`` names is there, and may run.

    Returns:
        The class that reads its config, whatever type that names; None: there was nothing to do.
    """
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

    names, model_type = raw.get("architectures") or (), str(raw.get("model_type"))
    offered = [str(one) for one in (raw.get("auto_map") or {}).values()] if own else []
    if any(one.endswith(f".{name}") for one in offered for name in names):
        return None  # the repository has it; another class may have the same name
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
        # Code of a repository that this process met before is not what was imported.
        if kind.__module__.partition(".")[0] not in ("transformers", "transformers_modules"):
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
