from types import SimpleNamespace

import pytest

from normprobe.data.sample import Sample, Turn
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import PLAIN_LAYOUTS, render_chat, render_plain

# Each template shows one habit of published ones.
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for c in m.content %}"
    "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
STRINGS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
TRIMMED_STRINGS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
STRING_SYSTEM = (  # a string as system prompt, parts from the user
    "{% if messages[0].role == 'system' %}{{ '[system]' + messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{% for c in m.content %}"
    "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}"
)
DEFAULT_SYSTEM = "{% if messages[0].role != 'system' %}[system]You are helpful.{% endif %}" + PARTS
NO_IMAGES = PARTS.replace("<image>", "")  # reads parts, leaves the image out
NO_SYSTEM_ROLE = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PARTS
)
SILENT_SYSTEM = PARTS.replace("%}[{{ m.role }}]", "if m.role != 'system' %}[{{ m.role }}]", 1)
HOISTS = PARTS.replace("<image>", "").replace(
    "[{{ m.role }}]",
    "[{{ m.role }}]{% for part in m.content if part.type == 'image' %}<image>{% endfor %}",
)
BROKEN = "{{ raise_exception('never') }}"


@pytest.fixture
def render(processor, photo):
    def render_with(template, system=None, images=(photo,), prompt="Which?"):
        processor.chat_template = template
        return render_chat(processor, [Sample("x/1", prompt, images)], system)[0]

    return render_with


@pytest.mark.parametrize("template", [PARTS, STRINGS, HOISTS])
def test_marks_say_where_images_stand_whatever_the_template_does(render, template, photo):
    rendered = render(template, images=(photo, photo), prompt="Is <image> like <image>?")
    assert rendered == "[user]Is <image> like <image>?[assistant]"


@pytest.mark.parametrize(
    ("template", "images", "expected"),
    [
        (PARTS, 1, "[user]<image>Which?[assistant]"),
        (STRINGS, 1, "[user]<image>\nWhich?[assistant]"),
        (TRIMMED_STRINGS, 1, "[user]<image>\nWhich?"),
        (DEFAULT_SYSTEM, 1, "[system]You are helpful.[user]<image>Which?[assistant]"),
        (PARTS, 2, "[user]<image><image>Which?[assistant]"),
        (HOISTS, 2, "[user]<image><image>Which?[assistant]"),
        (STRINGS, 2, "[user]<image>\n<image>\nWhich?[assistant]"),
        (PARTS, 0, "[user]Which?[assistant]"),
        (STRINGS, 0, "[user]Which?[assistant]"),
    ],
)
def test_images_come_first_whatever_the_template_reads(render, template, images, expected, photo):
    assert render(template, images=(photo,) * images) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PARTS, "[user]<image>Is it?[assistant]No.[user]And <image>?[assistant]"),
        (STRINGS, "[user]<image>Is it?[assistant]No.[user]And <image>?[assistant]"),
        (HOISTS, "[user]<image>Is it?[assistant]No.[user]And <image>?[assistant]"),
    ],
)
def test_turns_of_a_conversation(processor, template, expected, photo):
    processor.chat_template = template
    earlier = (Turn("<image>Is it?", "No."),)
    sample = Sample("x/1", "And <image>?", (photo, photo), earlier=earlier)
    assert render_chat(processor, [sample], None) == [expected]
    (text,) = render_chat(processor, [sample], None, ["Yes."])
    assert text == f"{expected}Yes." + "[assistant]" * (template == STRINGS)


@pytest.mark.parametrize(
    ("system", "template", "expected"),
    [
        ("Be brief.", PARTS, "[system]Be brief.[user]<image>Which?[assistant]"),
        ("Be brief.", STRINGS, "[system]Be brief.[user]<image>\nWhich?[assistant]"),
        ("Be brief.", STRING_SYSTEM, "[system]Be brief.[user]<image>Which?"),
        ("Be brief.", DEFAULT_SYSTEM, "[system]Be brief.[user]<image>Which?[assistant]"),
        ("none", DEFAULT_SYSTEM, "[system][user]<image>Which?[assistant]"),
        # Nothing to suppress, so no empty system turn either.
        ("none", PARTS, "[user]<image>Which?[assistant]"),
        ("none", STRINGS, "[user]<image>\nWhich?[assistant]"),
        ("none", NO_SYSTEM_ROLE, "[user]<image>Which?[assistant]"),
        ("none", SILENT_SYSTEM, "[user]<image>Which?[assistant]"),
    ],
)
def test_system_prompt(render, system, template, expected):
    assert render(template, system=system) == expected


@pytest.mark.parametrize("template", [NO_SYSTEM_ROLE, SILENT_SYSTEM])
def test_template_without_system_prompt_is_refused(render, template):
    with pytest.raises(NormprobeError, match="shows no system prompt"):
        render(template, system="Be brief.")


@pytest.mark.parametrize("template", [NO_IMAGES, BROKEN])
def test_template_that_does_not_show_the_prompt_is_refused(render, template):
    with pytest.raises(NormprobeError, match="chat template of LlavaProcessor does not show"):
        render(template)


def test_template_that_fails_on_one_prompt_names_it(render):
    template = PARTS + "{% if 'bad' in messages[0].content[1].text %}" + BROKEN + "{% endif %}"
    with pytest.raises(NormprobeError, match="fails on x/1"):
        render(template, prompt="bad")


def test_bare_tokenizer_gets_strings(processor, photo):
    processor.tokenizer.chat_template = STRINGS
    samples = [Sample("x/1", "Which?", (photo,))]
    assert render_chat(processor.tokenizer, samples, None) == ["[user]Which?[assistant]"]


def test_plain(processor, photo):
    samples = [Sample("x/1", "Which?", (photo,)), Sample("x/2", "Who?")]
    assert render_plain(processor, samples, "none") == ["<image>\nWhich?", "Who?"]
    assert render_plain(processor.tokenizer, samples, None) == ["Which?", "Who?"]
    with pytest.raises(NormprobeError, match="no chat template, so no system prompt"):
        render_plain(processor, samples, "Be brief.")
    with pytest.raises(ValueError, match="several turns"):
        render_plain(processor, [Sample("x/1", "Why?", earlier=(Turn("Is it?", "No."),))], None)


@pytest.mark.parametrize("model_type", PLAIN_LAYOUTS)
def test_plain_layouts_stand_around_the_turn(model_type):
    tokenizer = SimpleNamespace(chat_template=None)
    sample = Sample("a", "What is it?")
    (text,) = render_plain(tokenizer, [sample], None, PLAIN_LAYOUTS[model_type])
    assert text == PLAIN_LAYOUTS[model_type].format(turn="What is it?")
