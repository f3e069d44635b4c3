"""The processor of a checkpoint, its tokenizer and token ids."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, first_line
from normprobe.sandbox import try_in_sandbox


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a processor, or a bare tokenizer itself; None for an image processor.

    Where it is held under another name (Libra), whatever has a vocabulary.
    """
    # A bare tokenizer comes first: some hold another object under the name `tokenizer`.
    held = (
        processor,
        getattr(processor, "tokenizer", None),
        *getattr(processor, "__dict__", {}).values(),
    )
    return next((found for found in held if hasattr(found, "get_vocab")), None)


def classes_of(processor: Any) -> dict[str, str]:
    """The class of a processor and of each part of it: ``{"processor": "LlavaProcessor", ...}``.

    Which class reads pictures depends on what is installed: with torchvision, transformers takes
    another one, whose pixels are others.
    """
    names = getattr(processor, "attributes", None) or ("image_processor", "tokenizer")
    parts = {name: getattr(processor, name, None) for name in names}
    named = {"processor": processor, **parts}
    return {name: type(part).__name__ for name, part in named.items() if part is not None}


def padding_of(tokenizer: Any) -> int:
    """The id that pads prompts which a mask hides: of padding, else of an end, else 0."""
    names = ("pad_token_id", "eos_token_id")
    known = (getattr(tokenizer, name, None) for name in names)
    return next((int(number) for number in known if number is not None), 0)


def special_token_ids(tokenizer: Any) -> list[int]:
    """All ids that the tokenizer treats as special, ascending.

    ``all_special_ids`` holds the named ones (bos, eos, ...). Chat markers such as ``<|im_start|>``
    are often special in ``added_tokens_decoder`` alone.
    """
    named = getattr(tokenizer, "all_special_ids", [])
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*named, *(token_id for token_id, token in added.items() if token.special)}
    return sorted(special - {None})  # what is named, but is in no vocabulary, has no id


def vocabulary_ids(tokenizer: Any) -> list[int]:
    """All ids that the tokenizer can emit, ascending. An embedding table often has more rows."""
    return sorted(set(tokenizer.get_vocab().values()))


def decoded(tokenizer: Any, ids: int | Sequence[int], instead: str = "") -> str:
    """What a token id, or several, decode to; ``instead``, or the number, where that fails.

    Placeholders of own code may be no ids of its tokenizer, such as -1, and a mark may be refused
    where it stands alone (Qwen-VL).
    """
    try:
        return str(tokenizer.decode(ids))
    except Exception:
        return instead or str(ids)


def token_text(tokenizer: Any, token_id: int) -> str:
    """The text of a token, its leading space kept.

    Byte-level tokens are decoded. A token that is a fragment of a character decodes to nothing
    readable, or that is refused alone, keeps its spelling in the vocabulary.
    """
    spelling = str(tokenizer.convert_ids_to_tokens(token_id))
    if "\u2581" in spelling:  # SentencePiece's space; decoding would drop a leading one
        return spelling.replace("\u2581", " ")
    text = ""
    with suppress(ValueError):  # code of its own may refuse a mark that stands alone (Qwen-VL)
        text = str(tokenizer.decode([token_id]))
    return spelling if not text or "\ufffd" in text else text


#: What processors and tokenizers are made of; weights are not.
_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.py", "*.tiktoken", "*.txt"]


def load_processor(
    path_or_id: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    auto_class: str = "AutoProcessor",
    load: Callable[[str], Any] | None = None,
    bridges: list[str] | None = None,
    bounded: bool = False,
) -> Any:
    """Load what turns text and images into inputs of a checkpoint."""
    import transformers
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

    from normprobe.failures import (
        code_failure,
        install,
        missing_packages,
        other_version,
        raised_in_own_code,
    )
    from normprobe.inputs.chat import adopt_template
    from normprobe.remote_code_bridges import foreign_code

    auto: Any = getattr(transformers, auto_class)
    try:
        # AutoProcessor turns to AutoTokenizer and AutoImageProcessor by itself, but only where the
        # checkpoint names no processor: half a processor would measure half a model.
        with foreign_code(trust_remote_code, [] if bridges is None else bridges):
            if load is not None:
                processor = load(_folder_of(path_or_id, revision))
            else:
                if bounded:
                    folder = str(Path(_folder_of(path_or_id, revision)).absolute())
                    what = f"the processor of {path_or_id}"
                    try_in_sandbox(partial(_try, auto_class, folder), what)
                processor = auto.from_pretrained(
                    path_or_id, revision=revision, trust_remote_code=trust_remote_code
                )
    except (NormprobeError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises the bare class on a file that it cannot read
        if packages := missing_packages(error):
            raise NormprobeError(
                f"the processor of {path_or_id} needs {', '.join(packages)}, not installed here",
                install(packages),
            ) from error
        of_user = load is not None and not load.__module__.startswith("normprobe.")
        if of_user or (trust_remote_code and raised_in_own_code(error)):
            written_for = PretrainedConfig.get_config_dict(path_or_id, revision=revision)[0].get(
                "transformers_version"
            )
            if of_user:
                may = (
                    f"the config is of transformers {written_for}, and what it calls may need it: "
                )
                raise NormprobeError(
                    f"load_processor() of the inputs file fails: {type(error).__name__}: "
                    f"{first_line(error)}",
                    f"mend it; {may * bool(written_for)}{other_version(written_for)}",
                ) from error
            raise code_failure(error, f"the processor of {path_or_id}", written_for) from error
        raise NormprobeError(
            f"the processor of {path_or_id} cannot be loaded: {first_line(error)}",
            _remedy(error, path_or_id),
        ) from error
    if isinstance(processor, Tokenizer):  # as a model may hold it (Moondream)
        alone: Any = PreTrainedTokenizerFast
        processor = alone(tokenizer_object=processor)
    adopt_template(processor)
    return processor


def _try(auto_class: str, folder: str) -> None:
    """Load it and read a word, as is done in many places besides making inputs."""
    import transformers

    processor = getattr(transformers, auto_class).from_pretrained(folder)
    if tokenizer := tokenizer_of(processor):
        tokenizer("normprobe")


def _folder_of(path_or_id: str, revision: str | None) -> str:
    """A local folder; of a hub id, one with the small files of its repository."""
    from huggingface_hub import snapshot_download

    if Path(path_or_id).is_dir():
        return path_or_id
    return snapshot_download(path_or_id, revision=revision, allow_patterns=_SMALL_FILES)


def _remedy(error: Exception, path_or_id: str) -> str:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    from normprobe.failures import VISION, install

    if isinstance(error, OSError) and HF_HUB_OFFLINE and not Path(path_or_id).is_dir():
        return "unset HF_HUB_OFFLINE to fetch its files, or pass a local folder"
    message = str(error).lower()
    if any(library in message for library in VISION):
        return install(VISION)
    if "trust_remote_code" in message:
        return "read the code that comes with the checkpoint, then pass --trust-remote-code"
    if isinstance(error, ImportError):
        return "install the library that it names"
    return (
        "check the name, and that the checkpoint has its processor files (processor_config.json "
        "or preprocessor_config.json, tokenizer.json); where it has none, `normprobe inputs MODEL "
        "--write FILE.py` begins a file that makes inputs by itself"
    )
