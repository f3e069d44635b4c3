"""What is known of a model before an inputs file is begun: its forward, and what is made for it."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, NamedTuple

from torch import Tensor, nn

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.extensions.families.package_code import loading_text, processors_of
from normprobe.inputs.chat import image_token
from normprobe.inputs.inputs_file import read_inputs_file
from normprobe.inputs.processor import load_processor, tokenizer_of
from normprobe.inputs.standard import REFUSALS, build_documented
from normprobe.model.checkpoint_place import cached
from normprobe.model.config import read_config_file
from normprobe.model.load.partial_load import build_on_meta
from normprobe.options import Loading
from normprobe.runs.model_source import CheckpointSource

#: Parameters that an input can be given for by its name.
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

#: Of a forward that is not known yet.
_USUAL = ("input_ids", "attention_mask", "images")


class Known(NamedTuple):
    """What its files, its class and its processor tell."""

    place: str
    settings: dict[str, Any]  # of its config and of its processor's
    model: nn.Module  # without weights; without a module, where its class is not known
    keywords: dict[str, Any]  # what its class takes beside its config, guessed
    parameters: list[Parameter]  # of forward
    processor: Any
    made: dict[str, Any]  # of one sample, as without a file
    refused: str  # why nothing was made
    loads_processor: str  # the text that loads a processor of its package

    @property
    def names(self) -> list[str]:
        """The inputs that forward names."""
        if not self.parameters:
            return [*_USUAL]
        return [each.name for each in self.parameters if each.kind in BY_NAME]


def known_before(name: str, loading: Loading, source: CheckpointSource | None, kept: str) -> Known:
    """Of a source, or of a type whose code only a package has; ``kept``: what a file has of it."""
    place = name if source is None else source.checkpoint.source  # of `specimen`, its folder
    settings: dict[str, Any] = {}
    for each in ("processor_config.json", "preprocessor_config.json", "config.json"):
        settings |= read_config_file(cached(place, each, loading.revision))
    if source is None:  # of a type that nothing here knows
        return Known(place, settings, nn.Module(), {}, [], None, {}, "", "")
    model, keywords = _built(source, settings)
    parameters = list(signature(model.forward).parameters.values())
    if loading.inputs and (own := read_inputs_file(loading.inputs).forward):
        parameters = list(signature(own).parameters.values())[1:]  # its user's runs the model
    processor, made, refused = None, {}, "nothing"
    sample = [*open_data("sample", limit=1)]
    try:
        if loading.inputs and "def load_processor(" not in kept:
            # Not by what was begun before its code was known.
            load = partial(load_processor, revision=loading.revision)
            with suppress(NormprobeError):
                processor = load(place, trust_remote_code=loading.trust_remote_code)
        if processor is None:
            processor = source.builder.processor
        made = dict(build_documented(processor, sample, None))
    except NormprobeError as failure:
        refused = failure.problem
    except (*REFUSALS, ImportError) as error:
        refused = first_line(error)
    known = Known(place, settings, model, keywords, parameters, processor, made, refused, "")
    by_package = not made and "def load_processor(" not in kept
    return (_of_package(known, sample, loading) if by_package else None) or known


def _of_package(known: Known, sample: list[Sample], loading: Loading) -> Known | None:
    """The same with a processor that the model's own package has, if one makes inputs."""
    trust = loading.trust_remote_code
    for theirs in processors_of(known.model):
        with suppress(NormprobeError, OSError, ImportError, *REFUSALS):
            processor: Any = theirs.from_pretrained(known.place, trust_remote_code=trust)
            made = dict(build_documented(processor, sample, None))
            if word := _placeholder(known.settings, processor, made):
                processor.image_token = word
                made = dict(build_documented(processor, sample, None))
            text = loading_text(theirs, word)
            return known._replace(processor=processor, made=made, loads_processor=text)
    return None


def _built(
    source: CheckpointSource, settings: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """The model without weights; and what its class takes beside its config, guessed, if it does.

    A value is what the config holds by that name, or by LLaVA's for it; else 0.
    """
    checkpoint, guessed = source.checkpoint, dict[str, Any]()
    while True:
        try:
            return build_on_meta(checkpoint), {**checkpoint.keywords, **guessed} if guessed else {}
        except NormprobeError as failure:
            lacking = re.search(r"takes '(\w+)' beside its config", failure.problem)
            if lacking is None or lacking[1] in guessed:
                raise
            name = lacking[1]
            guessed[name] = settings.get(name, settings.get(f"mm_{name}", 0))
            checkpoint = replace(checkpoint, keywords={**checkpoint.keywords, **guessed})


def _placeholder(settings: Mapping[str, Any], processor: Any, made: Mapping[str, Any]) -> str:
    """The word of the config's id of a picture, where a processor wrote none; or "" (URSA)."""
    ids, tokenizer = made.get("input_ids"), tokenizer_of(processor)
    numbers = [settings.get(name) for name in ("image_token_index", "image_token_id")]
    number = next((each for each in numbers if isinstance(each, int) and each >= 0), -1)
    if number < 0 or tokenizer is None or not isinstance(ids, Tensor) or image_token(processor):
        return ""
    word = "" if number in ids else tokenizer.convert_ids_to_tokens(number)
    return word if isinstance(word, str) else ""
