"""What processors of older code are given, and give on, against what they expect."""

from typing import Any, ClassVar

import pytest
import torch
from support.remote_code.tokenizer import byte_tokenizer
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, ProcessorMixin
from transformers.processing_utils import ProcessingKwargs

from normprobe import remote_code_bridges
from normprobe.versions import is_line_5


class KwargsOfSomebody(ProcessingKwargs, total=False):
    _defaults = {"text_kwargs": {"return_mm_token_type_ids": False, "padding": False}}  # noqa: RUF012


class OlderProcessor(ProcessorMixin):
    """As SpatialVLA's and MolmoAct's: it hands on what is made of all keywords."""

    attributes: ClassVar = ["tokenizer"]
    optional_attributes: ClassVar = ["chat_template", "turns"]
    tokenizer_class = "PreTrainedTokenizerFast"

    def __init__(self, tokenizer: Any = None, turns: str = "", **more: Any) -> None:
        super().__init__(tokenizer, turns=turns, **more)

    def __call__(self, text: str, **more: Any) -> Any:
        init = self.tokenizer.init_kwargs
        made = self._merge_kwargs(KwargsOfSomebody, tokenizer_init_kwargs=init, **more)
        made["text_kwargs"].pop("return_tensors", None)
        kind = made["common_kwargs"].get("return_tensors")
        return self.tokenizer(self.turns + text, return_tensors=kind, **made["text_kwargs"])


def test_a_processor_gets_what_its_transformers_gave_it() -> None:
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):
        remote_code_bridges._bridge_class(OlderProcessor)
        processor = OlderProcessor(byte_tokenizer((), None), turns="Q: ")
        ids = processor("why?", return_tensors="np")["input_ids"]
    assert processor.tokenizer.decode(ids[0]) == "Q: why?"
    assert "return_mm_token_type_ids" in needed
    assert {"optional_attributes", "common_kwargs"} <= set(needed) or not is_line_5()


class CheckedOfSomebody(GenerationConfig):
    """As Dream's."""

    def validate(self, is_init: bool = False) -> None:
        self.checked = is_init


def test_settings_of_an_answer_are_checked_as_their_code_checks_them() -> None:
    remote_code_bridges._bridge_class(CheckedOfSomebody)
    settings = CheckedOfSomebody()
    settings.validate(user_set_attributes={"top_k"})
    assert settings.checked is False


class HeadlessOfSomebody(PreTrainedModel):
    """As X-VLA's, which takes the head away that its class names."""

    config_class = PretrainedConfig

    def get_output_embeddings(self) -> Any:
        return self.lm_head


def test_a_head_that_a_model_lacks_is_none() -> None:
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):
        remote_code_bridges._bridge_class(HeadlessOfSomebody)
        assert HeadlessOfSomebody(PretrainedConfig()).get_output_embeddings() is None
    assert "get_output_embeddings" in needed


@pytest.mark.skipif(not is_line_5(), reason="4.57 has them")
@pytest.mark.parametrize(
    ("name", "value"), [("forced_bos_token_id", None), ("num_beams", 1), ("top_p", 1.0)]
)
def test_settings_of_an_answer_are_in_a_config_while_code_runs(name: str, value: Any) -> None:
    class AskingConfig(PretrainedConfig):
        model_type = "asking"

    remote_code_bridges._bridge_class(AskingConfig)
    config = AskingConfig()
    with remote_code_bridges.foreign_code(True, []):
        assert getattr(config, name) == value
    assert not hasattr(config, name)


def test_lists_of_optional_parts_begin_with_that_of_all() -> None:
    """QQMM-embed's adds to it, and tells a tokenizer to keep the special tokens that it has."""
    with remote_code_bridges.foreign_code(True, []):

        class Adds(ProcessorMixin):
            optional_attributes = [*ProcessorMixin.optional_attributes, "turns"]  # noqa: RUF012

        assert Adds.optional_attributes[0] == "chat_template"
        tokenizer = byte_tokenizer(("<one>",), None)
        more = {"additional_special_tokens": ["<two>"]}
        tokenizer.add_special_tokens(more, replace_additional_special_tokens=False)
    assert len(tokenizer("<one><two>").input_ids) == 2


def test_a_tokenizer_has_the_names_and_the_template_of_before() -> None:
    tokenizer = byte_tokenizer(["<its>"], "{% for m in messages %}{{ m.content }}{% endfor %}")
    talk = [{"role": "user", "content": "as it was"}]
    bridged: list[str] = []
    with remote_code_bridges.foreign_code(True, bridged):
        assert tokenizer.encode_plus("as").input_ids == tokenizer("as").input_ids
        pairs = tokenizer.batch_encode_plus(["as", "it"], padding=True)
        assert pairs.input_ids == tokenizer(["as", "it"], padding=True).input_ids
        assert tokenizer.additional_special_tokens == ["<its>"]
        its = tokenizer.convert_tokens_to_ids(["<its>"])
        assert tokenizer.additional_special_tokens_ids == its
        ids = tokenizer.apply_chat_template(talk, return_tensors="pt")
        assert ids.shape == (1, len("as it was"))
        held = tokenizer.apply_chat_template(talk, return_tensors="pt", return_dict=True)
        assert torch.equal(held["input_ids"], ids)
        assert tokenizer.apply_chat_template(talk, tokenize=False) == "as it was"
    if is_line_5():
        assert {"encode_plus", "apply_chat_template(return_dict=False)"} <= set(bridged)
    tokenizer.additional_special_tokens = ["<eos>"]
    assert tokenizer.additional_special_tokens == ["<eos>"]
