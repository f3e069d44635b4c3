"""What a user is told of exceptions of other libraries, and why code of a checkpoint fails."""

import json
import linecache
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from traceback import walk_tb
from typing import Any
from urllib.parse import unquote

from normprobe.errors import NormprobeError, first_line

#: The two lines that normprobe runs on: the only one of transformers 4, the first of 5.
_OLDER, _NEWER = (4, 57), (5, 16)
_LATER = "a later --revision may hold newer code"
_MEND = "setup() of --inputs FILE.py can put back what it misses"

#: Where transformers puts the modules of repositories.
_OWN = "transformers_modules."
_OF_OTHERS = ("torch.", "transformers.")

#: Whose lines no message names: an error begins in code that calls them.
_LIBRARIES = {
    *("PIL", "accelerate", "datasets", "huggingface_hub", "normprobe", "numpy", "pandas"),
    *("safetensors", "tokenizers", "torch", "torchvision", "transformers"),
}

#: What ``normprobe[vision]`` brings.
VISION = ("torchvision", "timm", "scipy")
#: The extras and what they install.
EXTRAS = {"vision": VISION, "video": ("av", "torchvision"), "audio": ("soundfile", "soxr")}

#: A name that a package does not hold, and the file of the package.
_NO_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)' \((.+)\)")

#: How transformers and its users say that a package is missing.
_MISSING = re.compile(
    r"packages that were not found in your environment: (?P<many>[\w, .-]+?)\. Run"
    r"|requires the (?P<one>\w+) library but it was not found"
    r"|the package (?P<attention>\w+) seems to be not installed"
    r"|the package for (?P<named>\w+) doesn't seem to be installed"
    r"|[Rr]un `pip install (?:-U |--upgrade )?(?P<asked>[\w-]+)`"
)

#: A config for which nothing registers a model; one of transformers' own is of its version.
_UNREGISTERED = re.compile(
    r"Unrecognized configuration class <class '(?!transformers\.)(?:[\w.]+\.)?(\w+)'> "
    r"for this kind of AutoModel: (\w+)"
)

#: What transformers calls a package, and its name.
_CALLED = {"flashattention2": "flash_attn", "fla-core": "fla"}

#: Packages that code of checkpoints imports, by their names in the index. What is not here is not
#: looked for there: whoever may have taken the name of a research repository's package.
_IN_THE_INDEX = {
    **{"PIL": "pillow", "cv2": "opencv-python", "flash_attn": "flash-attn", "yaml": "pyyaml"},
    **{"qwen_vl_utils": "qwen-vl-utils", "skimage": "scikit-image", "sklearn": "scikit-learn"},
    **{
        name: name
        for name in [
            "accelerate",
            "attrdict",
            "av",
            "backoff",
            "bitsandbytes",
            "decord",
            "easydict",
            "einops",
            "ftfy",
            "imageio",
            "kornia",
            "librosa",
            "matplotlib",
            "omegaconf",
            "peft",
            "sentencepiece",
            "six",
            "soundfile",
            "tensorflow",
            "tiktoken",
            "torchaudio",
            "triton",
            "xformers",
        ]
    },
}

#: What files of a checkpoint are called.
_OF_CHECKPOINT = re.compile(
    r"(configuration|modeling|processing|image_processing|tokenization|conversation"
    r"|video_processing|feature_extraction|generation)(_|$)"
)

#: What models raise on inputs that they cannot take; code of a checkpoint's own may raise anything.
_REFUSALS = (
    *(ValueError, LookupError, TypeError, AttributeError, RuntimeError, AssertionError),
    UnboundLocalError,
)

#: What else ends a forward: no memory on a device or the host, a data worker that died beside it.
_NOT_ABOUT_INPUTS = ("out of memory", "can't allocate memory", "DataLoader worker")

#: What FSDP2 says where a part has run before the model that it belongs to.
_ROOT_FIRST = "forward through the root module first"

#: What torch says of operands of several float types, and not of several devices.
_SEVERAL_DTYPES = re.compile(r"same dtype|scalar type|type \((?!torch\.)\S+ should be the same")

#: What Python says of arguments that a module was not written for.
_OTHER_CALL = re.compile(r"(\w+)\.forward\(\) (?:got an unexpected keyword|missing \d+ required)")

#: What code raises that does not fit its libraries.
_OF_VERSIONS = (ImportError, NameError, AttributeError, TypeError, NotImplementedError)

#: Rooms of normprobe in which other code runs.
_RUNS_OTHERS = ("normprobe.model.own_forward", "normprobe.remote_code_bridges")

#: Where a part is loaded that is not of the checkpoint's own modules.
PREPARED = "load it in prepare(model, processor) of --inputs FILE.py, as its own loader does"

#: How to come to inputs that a forward takes.
_OTHERS = "begin others: normprobe inputs MODEL --write FILE"

#: How long a hub may take to answer at all.
_PATIENCE = 6.0  # seconds


def hub_answers() -> bool:
    """Whether the hub answers: its library asks a silent one for a minute and more, file by file.

    Of a hub that does, it goes on to try again whatever breaks off.
    """
    from huggingface_hub import constants, get_session

    answers = []

    def ask() -> None:
        for pause in (0, 1, 2):  # a network may blink
            time.sleep(pause)
            with suppress(Exception):  # of the library's HTTP client, which has changed
                answers.append(get_session().head(constants.ENDPOINT, timeout=_PATIENCE))
                return

    asking = Thread(target=ask, daemon=True)  # to look a name up may take longer than all that
    asking.start()
    asking.join(_PATIENCE)
    return bool(answers)


@contextmanager
def offline_where_no_hub_answers() -> Iterator[None]:
    """Read from the cache alone, inside the block, where the hub is silent."""
    from datasets import config
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or hub_answers():
        yield
        return
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = False


def _running_version() -> str:
    """Of transformers, which is asked when something has failed: it takes long to import."""
    import transformers

    return str(transformers.__version__)


def brings_code(config: Any) -> bool:
    """Whether the repository of a config holds code of its own."""
    return bool(getattr(config, "auto_map", None))


def runs_own_code(model: Any) -> bool:
    """Whether the class of a model or config came out of a repository."""
    return type(model).__module__.startswith(_OWN)


def is_native(model: Any) -> bool:
    """Whether transformers itself holds the forward of a model."""
    holder = next(kind for kind in type(model).__mro__ if "forward" in vars(kind))
    return bool(holder.__module__.startswith("transformers.models."))


def version_of(model: Any) -> str | None:
    """The version of transformers that a model's code was written for, where its config says so."""
    version: str | None = getattr(getattr(model, "config", None), "transformers_version", None)
    return version


def raised_in_own_code(error: BaseException) -> str | None:
    """Where code of a repository was when it was raised, such as ``forward of modeling_x.py``.

    None: no such code ran.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    own = [f.f_code for f in frames if _room(f).startswith(_OWN)]
    return f"{own[-1].co_name} of {Path(own[-1].co_filename).name}" if own else None


def code_failure(error: Exception, name: str, written_for: str | None) -> NormprobeError:
    """What to say when code that a checkpoint brings fails."""
    if packages := missing_packages(error):
        return NormprobeError(
            f"the code of {name} needs {', '.join(packages)}, not installed here",
            install(packages),
        )
    if isinstance(error, OSError) and "couldn't connect to" in str(error):
        return NormprobeError(
            f"the code of {name} asks a hub for what is not here: {first_line(error)}",
            "where auto_map of its config.json names another repository, fetch that one, too; or "
            "import its class in setup() of an --inputs file",
        )
    if unknown := _UNREGISTERED.search(str(error)):
        config, auto_class = unknown.groups()
        return NormprobeError(
            f"no class of {name} is registered, of which {auto_class} could make a model",
            register_in_setup(auto_class, config),
        )
    what = f"{type(error).__name__}: {_without_file(first_line(error))}{last_line_of(error)}"
    if other := other_package(error):
        return NormprobeError(f"the code of {name} fails: {what}", other)
    running = _running_version()
    if _line(written_for) in (None, _running()):
        return NormprobeError(
            f"the code of {name} fails on transformers {running}: {what}",
            other_version(written_for),
        )
    return NormprobeError(
        f"the code of {name} was written for transformers {written_for} and fails on {running}: "
        f"{what}",
        other_version(written_for),
    )


def register_in_setup(auto_class: str, config: str, model: str = "CLASS") -> str:
    """How an inputs file lets an auto class make a model of a config."""
    return (
        "in setup() of an --inputs file, behind the import of its class: "
        f"{auto_class}.register({config}, {model})"
    )


def forward_failure(model: Any, error: Exception) -> NormprobeError | None:
    """What to say when a forward fails on a batch; None: nothing, and it is raised as it is."""
    name = type(model).__name__
    if any(word in str(error) for word in _NOT_ABOUT_INPUTS):
        return None
    if missing_packages(error):
        return code_failure(error, name, version_of(model))
    of_checkpoint = bool(getattr(getattr(model, "config", None), "name_or_path", ""))
    if not (runs_own_code(model) or of_checkpoint or isinstance(error, _REFUSALS)):
        return None
    if _ROOT_FIRST in str(error):
        return NormprobeError(
            f"FSDP shards {name}, and a part of it ran before the whole",
            "run one forward of the whole model on all processes, then measure",
        )
    what = first_line(error)
    if isinstance(error, NotImplementedError) and str(error) == "forward":  # NEO
        return NormprobeError(
            f"the forward of {name} is not implemented: its layers run in generate() alone",
            "write forward(model, **inputs) in an --inputs file, which makes its layers run, as "
            "model.generate(**inputs, max_new_tokens=1) may; in Python: Probe(model, forward=...)",
        )
    if "SdpaAttention" in what and "unexpected keyword" in what:  # Arcana
        return NormprobeError(
            f"the attention that {name} runs is none of its code's: {what}",
            "--attn-implementation eager, which most code of its own extends; in Python: "
            'Probe(..., attn_implementation="eager")',
        )
    if place := _place_of_hook(error):
        return NormprobeError(
            f"normprobe cannot read what modules of {name} hand over: {what}, in {place}",
            "report it with the model's name; NORMPROBE_DEBUG=1 shows where",
        )
    if "device meta" in what or "meta tensor" in what:
        return NormprobeError(
            f"a part of {name} holds no weights: {what}",
            f"where its code keeps it in a plain list or adds it later, {PREPARED}",
        )
    if _SEVERAL_DTYPES.search(what):
        return NormprobeError(
            f"parts of {name} are of several dtypes{_rarer_dtype(model)}: {what}",
            "try the --dtype that its code casts to, or cast them to one in prepare(model, "
            "processor) of --inputs FILE.py, such as model.PART.float()",
        )
    if outside := _outside_table(error):
        return NormprobeError(
            f"the inputs of {name} hold {outside}",
            "pass ids of its own tokenizer; an id that stands for a picture has to be one that its "
            "forward replaces",
        )
    if part := _without_attention(error):  # VideoLLaMB's tower, on 4.57
        return NormprobeError(
            f"{part} in {name} looks up None, which is no attention of transformers",
            "where its part is made without one, name it in prepare(model, processor) of --inputs "
            'FILE.py: model.PART.config._attn_implementation = "eager"',
        )
    lacking = _none_there(error)
    if lacking:
        what += f", where {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} None"
    is_own = runs_own_code(model)
    of_inputs = bool(lacking) or _is_of_inputs(error)
    of_version = is_own and isinstance(error, _OF_VERSIONS) and not of_inputs
    if of_version or _calls_otherwise(model, what):
        failed = code_failure(error, name, version_of(model))
        others = f"; if its inputs do not fit, {_OTHERS}"
        return NormprobeError(failed.problem, failed.remedy + others)
    if is_own:
        version = other_version(version_of(model))
        unset = re.search(r"attention\w*( implementation)? None\b", what, re.IGNORECASE)
        said = "say which attention runs: add --attn-implementation sdpa, or eager; else "
        return NormprobeError(
            f"the code of {name} fails on these inputs: {what}{last_line_of(error)}",
            f"{said if unset else ''}{_OTHERS}; if they fit: {version}",
        )
    check = f"hold them against what its forward takes, or {_OTHERS}; what it asks beside, as code "
    check += "of a training does, a forward(model, **inputs) in that file can pass by"
    if isinstance(error, AttributeError):
        check = f"if that is a part that its code adds later, {PREPARED}; else {check}"
    if is_native(model):
        check = "check that model and processor belong together"
    return NormprobeError(
        f"{name} fails on these inputs: {what}{last_line_of(error)}",
        f"{check}, or try --batch-size 1; NORMPROBE_DEBUG=1 shows where{of_other_line(model)}",
    )


def last_line_of(error: BaseException) -> str:
    """The last line of code that is neither a library's nor normprobe's, for a message; or ""."""
    for frame, number in reversed([*walk_tb(error.__traceback__)]):
        library = _room(frame).partition(".")[0]
        if library not in sys.stdlib_module_names and library not in _LIBRARIES:
            return f" ({Path(frame.f_code.co_filename).name}, line {number})"
    return ""


def _without_attention(error: Exception) -> str:
    """The class of the module that looks its attention up by None; empty where none does."""
    if not isinstance(error, KeyError) or error.args != (None,):
        return ""
    for frame, number in reversed([*walk_tb(error.__traceback__)]):
        if hasattr(module := frame.f_locals.get("self"), "named_modules"):
            line = linecache.getline(frame.f_code.co_filename, number)
            return type(module).__name__ if "attention" in line.lower() else ""
    return ""


def _calls_otherwise(model: Any, what: str) -> bool:
    """Whether code of its own calls a part that transformers has with other arguments."""
    inner = _OTHER_CALL.match(what)
    kinds = {type(module) for module in model.modules()} - {type(model)} if inner else ()
    return not is_native(model) and any(
        inner and k.__name__ == inner[1] and k.__module__.startswith("transformers.") for k in kinds
    )


def _is_of_inputs(error: BaseException) -> bool:
    """Whether no other version would help: the code refuses a case, or lacks a name by itself."""
    if isinstance(error, NotImplementedError):
        *_, (frame, _) = walk_tb(error.__traceback__)
        return not _room(frame).startswith(_OF_OTHERS)
    known = [kind.__module__ for kind in type(getattr(error, "obj", error)).__mro__]
    return isinstance(error, AttributeError) and not any(
        room.startswith("transformers.") or room == "torch" for room in known
    )


def _none_there(error: BaseException) -> list[str]:
    """The arguments in the line that fails which are None, where that is what it says."""
    *_, (frame, number) = walk_tb(error.__traceback__)
    code = frame.f_code
    if "'NoneType'" not in str(error) or _room(frame).startswith(_OF_OTHERS):
        return []
    names = re.findall(r"[A-Za-z_]\w*", linecache.getline(code.co_filename, number))
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    there = frame.f_locals
    return [n for n in dict.fromkeys(names) if n in taken and there.get(n, n) is None]


def _room(frame: Any) -> str:
    """The module whose code a frame runs."""
    return str(frame.f_globals.get("__name__"))


def _rarer_dtype(model: Any) -> str:
    """Which weights are of another dtype than the most; "": all are of one."""
    names = defaultdict(list)
    for name, weight in model.named_parameters():
        names[str(weight.dtype).removeprefix("torch.")].append(name)
    first, *others = sorted(names, key=lambda dtype: -len(names[dtype])) or [""]
    if not others:
        return ""
    few = names[others[0]]
    return f" ({few[0]}{f' and {len(few) - 1} more' * (len(few) > 1)} in {others[0]}, not {first})"


def _place_of_hook(error: BaseException) -> str:
    """The function of normprobe's that failed while it read a state; "": a model's did."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)][1:]
    rooms = [(_room(frame), frame.f_code.co_name) for frame in frames]
    others = [(room, name) for room, name in rooms if not room.startswith("torch.")]
    if not others:
        return ""
    room, name = others[-1]
    ours = room.startswith("normprobe.") and not room.startswith(_RUNS_OTHERS)
    return f"{name} of {room}" if ours else ""


def _outside_table(error: BaseException) -> str:
    """The id that a table of embeddings has no row for, where its lookup failed; else ""."""
    from torch import nn

    for frame, _ in walk_tb(error.__traceback__):
        table, ids = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(table, nn.Embedding) and ids is not None:
            rows = table.num_embeddings
            outside = ids[(ids < 0) | (ids >= rows)]
            if len(outside):
                return (
                    f"the id {int(outside[0])}, and the table that it is looked up in {rows} rows"
                )
    return ""


def _without_file(message: str) -> str:
    """Without the file that Python looked for a name in: long, and not the repository's."""
    return re.sub(r" \(/[^ )]*\)?$", "", message)


def is_newer(written_for: str | None) -> bool:
    """Whether a version of transformers is of a later release line than the one that runs."""
    line = _line(written_for)
    return line is not None and line > _running()


def refuse_newer_files(name: str, saved_by: str | None) -> None:
    """Refuse a checkpoint that transformers 5 saved where 4.57 runs.

    4.57 would read it without a word, but passes over ``rope_parameters`` of its config, takes
    default rotary tables, and looks for weights of some vision encoders under other names.
    """
    if is_newer(saved_by) and _running() == _OLDER:
        raise NormprobeError(
            f"{name} was saved by transformers {saved_by}, whose config "
            f"{_running_version()} reads in part only",
            other_version(saved_by),
        )


def missing_packages(error: BaseException) -> list[str]:
    """The packages that an import did not find, by the names they are imported as.

    None where a name of transformers itself is gone: then another version is wanted, not a package.
    """
    if isinstance(error, ValueError) and "`tiktoken` is required to read" in str(error):
        # A tokenizer.model is tried as one, too, where what reads SentencePiece's is not there.
        return [name for name in ("sentencepiece", "tiktoken") if find_spec(name) is None]
    if not isinstance(error, ImportError):
        return []
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return [] if package in ("transformers", "transformers_modules", "torch") else [package]
    found = _MISSING.search(str(error))
    if found is None:
        return []
    names = re.split(r",\s*", next(name for name in found.groups() if name).lower())
    return list(dict.fromkeys(_lacking_in(_CALLED.get(name, name)) for name in names))


def _lacking_in(package: str) -> str:
    """The package that one which is there does not find (prismatic of OpenVLA-OFT); else itself."""
    try:
        if find_spec(package) is not None:
            import_module(package)
    except ModuleNotFoundError as error:
        return (error.name or package).partition(".")[0]
    except Exception:  # it is there, and fails in another way
        return package
    return package


def other_package(error: BaseException) -> str:
    """What to do where an installed package holds no such name, as another version may; else ""."""
    found = _NO_NAME.match(str(error)) if isinstance(error, ImportError) else None
    if found is None:
        return ""
    package = found[2].partition(".")[0]
    if f"{package}." in (*_OF_OTHERS, _OWN):  # another transformers is named by itself
        return ""
    with suppress(PackageNotFoundError):
        held = distribution(package).version
        return f"install the {package} that the model's page or its requirements name: {held} runs"
    return ""


def hidden_cause(error: Exception) -> Exception | None:
    """Why a class is not in a package that passes over what its module raises, as LLaVA's does."""
    found = _NO_NAME.match(str(error))
    if not isinstance(error, ImportError) or found is None or not Path(found[3]).is_file():
        return None
    name, package, init = found.groups()
    defined = re.compile(rf"^class {name}\b", re.MULTILINE)
    for file in sorted(Path(init).parent.rglob("*.py")):
        if defined.search(file.read_text(encoding="utf-8", errors="ignore")):
            below = file.relative_to(Path(init).parent).with_suffix("").parts
            try:
                import_module(".".join([package, *below]))
            except Exception as cause:  # whatever its code raises
                return cause
    return None


def install(packages: Sequence[str]) -> str:
    """The command that installs packages."""
    for extra, held in EXTRAS.items():
        if set(packages) <= set(held):
            return f"pip install 'normprobe[{extra}]' ({', '.join(held)})"
    if files := [name for name in packages if _OF_CHECKPOINT.match(name)]:
        return (
            f"{files[0]} is a file of the checkpoint, no package: fetch all its files again, or "
            "those of the repository that it was saved from"
        )
    if unknown := [name for name in packages if name not in {*_IN_THE_INDEX, *VISION}]:
        return (
            f"install {' '.join(unknown)} as the model's page says: a package of that name in the "
            "index may be another one"
        )
    names = [_IN_THE_INDEX.get(name, name) for name in packages]
    said = f"pip install {' '.join(names)}, or as the model's page says"
    for kernels in (name for name in ("flash_attn", "triton") if name in packages):
        said += (
            f"; {kernels} is built for CUDA: without it, setup() of an --inputs file may say `from "
            f'normprobe.inputs.inputs_file import stand_in; stand_in("{kernels}")`'
        )
    return said


def other_version(written_for: str | None) -> str:
    """What to do about code or files of another transformers than the one that runs."""
    line, running = _line(written_for), _running()
    if written_for is None and running >= _NEWER:  # H2OVL's config says null
        older = _environment("normprobe", "==4.57.6")
        return f"NORMPROBE_DEBUG=1 shows where; if it was written for transformers 4: {older}"
    if written_for is None or line is None or line == running:
        return f"NORMPROBE_DEBUG=1 shows where; {_LATER}"
    if line >= _NEWER:
        return _environment("normprobe", _exactly(written_for))
    newer = _environment("normprobe", ">=5.16")
    if line > _OLDER:
        return _LATER if running >= _NEWER else newer
    if running == _OLDER:
        alone = _environment("torch", _exactly(written_for))
        return (
            f"{_MEND}; unless it fails there, transformers 5, for which more is bridged: {newer}"
            f"; {_LATER}; for the model alone, as normprobe runs on none older: {alone}"
        )
    note = "" if line == _OLDER else f" (the oldest that normprobe runs on); if it fails, {_MEND}"
    return _environment("normprobe", "==4.57.6") + note


def of_other_line(model: Any) -> str:
    """What else to do where a package's code fails whose config another line wrote; else ""."""
    model = getattr(type(model), "run_by_function", model)
    written_by = version_of(model)
    if _line(written_by) in (None, _running()) or is_native(model):
        return ""
    return (
        f"; its config is of transformers {written_by}, and its code may need that: "
        f"{other_version(written_by)}"
    )


def _environment(package: str, version: str) -> str:
    package = _where_from() if package == "normprobe" else package
    return f"python -m venv other && other/bin/pip install {package} 'transformers{version}'"


def _where_from() -> str:
    """What installs normprobe again: the folder that it was installed from, or its name."""
    with suppress(PackageNotFoundError):
        return installed_from(distribution("normprobe")) or "normprobe"
    return "normprobe"


def installed_from(package: Distribution) -> str:
    """The folder that a package was installed from; empty where it came from elsewhere."""
    told = json.loads(package.read_text("direct_url.json") or "{}")
    folder = str(told.get("url", ""))
    if "dir_info" in told and folder.startswith("file://"):
        return unquote(folder.removeprefix("file://"))
    return ""


def _exactly(version: str) -> str:
    """A requirement that an index can meet: it holds no development versions."""
    if re.fullmatch(r"[0-9.]+", version):
        return f"=={version}"
    return "~={}.{}.0".format(*version.split("."))


def _running() -> tuple[int, int]:
    line = _line(_running_version())
    assert line is not None
    return line


def _line(version: str | None) -> tuple[int, int] | None:
    """Major and minor number; None where the version is unknown or has none."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return None if found is None else (int(found[1]), int(found[2]))


def known_failure(error: BaseException, *, resumes: bool = False) -> NormprobeError | None:
    """The two lines that explain an exception; None: it is not known, and a traceback is due."""
    if isinstance(error, NormprobeError):
        return error
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate" in text:
        return NormprobeError(
            f"out of memory: {first_line(error) if text else 'no room for the model'}",
            "try --batch-size auto or a smaller one, --dtype bfloat16 or --device balanced",
        )
    if "DataLoader worker" in text:
        return NormprobeError(
            f"a process that makes inputs was ended: {first_line(error)}",
            "free some memory"
            + "; --resume goes on from what is measured" * resumes
            + ", unless the checkpoint's own files ask for more than there is",
        )
    return _of_foreign_code(error)


def _of_foreign_code(error: BaseException) -> NormprobeError | None:
    """An exception that a checkpoint's own code raised; None: it was another's."""
    place = raised_in_own_code(error)
    if place is None:
        return None
    return NormprobeError(
        f"the model's own code fails in {place}: {type(error).__name__}: {first_line(error)}",
        "it may need another version of transformers or a package; NORMPROBE_DEBUG=1 shows the "
        "traceback",
    )
