"""Answers behind prompts, token by token against whole conversations."""

import pytest
import torch
from PIL import Image
from support.tiny_inputs import collate, tiny_samples
from support.tiny_models import FIRST_TEXT, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from normprobe.data.sample import Answer, Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.answers import AnswerTokens, answer_tokens, with_tokens
from normprobe.inputs.builder import InputBuilder

TURNS = (
    "{% for m in messages %}[{{ m.role }}]BETWEEN{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for c in m.content %}{% if c.type == 'image' %}<image>{% else %}{{ c.text }}"
    "{% endif %}{% endfor %}{% endif %}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]OPENED{% endif %}"
)


def turns(between: str = "", opened: str | None = None) -> str:
    """A template whose turns begin so; ``opened``: what opens the model's turn, if not that."""
    return TURNS.replace("BETWEEN", between).replace(
        "OPENED", between if opened is None else opened
    )


THOUGHT = "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
TEMPLATES = {
    "its own": None,
    "nothing between": turns(),
    "a line": turns("\n"),
    "a space that is not opened": turns(" ", opened=""),
    "an empty block of thoughts": turns("\n" + THOUGHT, opened="\n"),
    "a begin token": "<s>" + turns("\n"),
    "trimmed": turns("\n").replace("c.text }}", "c.text | trim }}"),
}


@pytest.fixture
def builder(processor):
    return InputBuilder(processor, model_type="llava")


def asked(answer: str, *options: str, prompt: str = "What color is it?") -> Sample:
    picture = Image.effect_noise((32, 32), 80).convert("RGB")
    return Sample("x/1", prompt, (picture,), answer=Answer(answer, options))


def conversation(builder, sample):
    """The ids of the prompt as the model reads it, and those of the whole conversation."""
    prompt = builder.build([sample])["input_ids"][0].tolist()
    content = [{"type": "image", "image": sample.image}, {"type": "text", "text": sample.prompt}]
    turns = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": sample.answer.text}]},
    ]
    whole = builder.processor.apply_chat_template(turns, tokenize=True, return_dict=True)
    return prompt, torch.as_tensor(whole["input_ids"]).flatten().tolist()


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("answer", ["red", "A", "k", "blue circle", "left of the square"])
def test_token_by_token(builder, template, answer):
    builder.processor.chat_template = TEMPLATES[template] or builder.processor.chat_template
    sample = asked(answer)
    found = answer_tokens(builder, sample, sample.answer)
    prompt, whole = conversation(builder, sample)
    told = [*prompt, *found.given, *found.scored]
    assert whole[: len(told)] == told
    decode = builder.tokenizer.decode
    assert decode(found.scored).removeprefix(" ") == f"{answer}</s>"  # and no newline before it
    assert decode(whole[len(told) :]).strip() == ""


def test_where_the_prompt_ends_in_a_space_it_goes_on_as_it_would_in_generation(builder):
    """In the whole conversation the space would belong to the answer's first token."""
    builder.processor.chat_template = turns(" ")
    sample = asked("red")
    found = answer_tokens(builder, sample, sample.answer)
    assert builder.tokenizer.decode(found.scored) in ("red", "red</s>")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "options", [("A", "B", "C", "D"), ("no", "yes"), ("blue square", "blue circle")]
)
def test_options_are_told_apart_by_the_first_token_that_differs(builder, template, options):
    builder.processor.chat_template = TEMPLATES[template] or builder.processor.chat_template
    sample = asked(options[1], *options)
    found = answer_tokens(builder, sample, sample.answer)
    ids = [answer_tokens(builder, sample, Answer(option)).scored for option in options]
    first = next(n for n, at in enumerate(zip(*ids, strict=False)) if len(set(at)) > 1)
    assert found.place == first and (first > 0) == (" " in options[0])
    assert list(found.options) == [each[first] for each in ids]
    assert found.right == 1


@pytest.mark.parametrize(
    "options", [("blue circle", "blue square", "red circle"), ("blue", "blue circle")]
)
def test_options_that_no_one_token_tells_apart(builder, options):
    sample = asked(options[0], *options)
    assert answer_tokens(builder, sample, sample.answer).options == ()


@pytest.mark.parametrize("options", [("A", "B"), ("cup",), ("Cup", "mug")])
def test_an_answer_that_is_none_of_several_options_is_refused(builder, options):
    """It would be scored by other rules than those that the row asks for."""
    sample = Sample("s/1", "What is it?")
    with pytest.raises(NormprobeError, match="s/1: the answer 'cup' is none of several options"):
        answer_tokens(builder, sample, Answer("cup", options))


@pytest.mark.parametrize("right", [0, 1])
def test_options_that_begin_alike_are_compared_where_they_differ(right):
    """Before it, the ids by which they differ say the opposite."""
    logs = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.6, 0.3]]).log()
    answer = AnswerTokens(scored=(0, 1 + right), options=(1, 2), right=right, place=1)
    nll, is_right = answer.outcome(logs)
    assert bool(is_right) == (right == 0)
    assert float(nll) == pytest.approx(-(logs[0, 0] + logs[1, 1 + right]).item() / 2)


def test_a_tokenizer_that_marks_words_not_spaces():
    """Llama's kind: a text begins with a mark, which an answer in its midst does not have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator(["user What is it assistant red blue"] * 9, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = (
        "<s>user "
        + "{{ messages[0].content }} assistant"
        + ("{% if messages[1:] %} {{ messages[1].content }}</s>{% endif %}")
    )
    sample = Sample("x/1", "What is it", answer=Answer("red", ("red", "blue")))
    found = answer_tokens(InputBuilder(fast), sample, sample.answer)
    assert fast.convert_ids_to_tokens(found.scored) == ["\u2581red", "</s>"]
    assert fast.convert_ids_to_tokens(found.options) == ["\u2581red", "\u2581blue"]


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3", "paligemma"])
def test_a_batch_with_answers_is_the_samples_with_theirs(model_type, padding):
    model = tiny_model(model_type)
    samples = tiny_samples(model, 3)
    answers = [[FIRST_TEXT + 1], [FIRST_TEXT, FIRST_TEXT + 2, FIRST_TEXT + 3], [FIRST_TEXT + 4] * 2]
    given = collate(samples, padding)
    kept = {name: tensor.clone() for name, tensor in given.items()}
    made, starts = with_tokens(given, answers, model_type)
    assert all(torch.equal(given[name], kept[name]) for name in kept)
    for row, (sample, answer) in enumerate(zip(samples, answers, strict=True)):
        start, end = starts[row], starts[row] + len(answer)
        assert made["input_ids"][row, start:end].tolist() == answer
        seen = made["attention_mask"][row] > 0
        assert made["input_ids"][row][seen].tolist() == [*sample["input_ids"][0].tolist(), *answer]
        assert int(seen.nonzero()[-1]) == end - 1
        with torch.no_grad():
            alone, first = with_tokens(sample, [answer], model_type)
            expected = model(**alone).logits[0, first[0] - 1 :]
            found = model(**made).logits[row, start - 1 : end]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_positions_go_on_where_inputs_are_nested():
    """As MiniCPM-V's, inside ``data``."""
    ids = torch.tensor([[5, 6, 7]])
    held = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": ids - 5}
    made, starts = with_tokens({"data": held}, [[8, 9]], "minicpmv")
    assert starts == [3]
    assert made["data"]["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert made["data"]["attention_mask"].tolist() == [[1] * 5]
    assert made["data"]["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
