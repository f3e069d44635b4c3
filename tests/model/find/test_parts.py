"""Parts as they are shown to a reader."""

from support.cases import model_of

from normprobe import find_parts


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parts_are_shown_as_a_table():
    model = model_of("llava")
    parts = find_parts(model)
    *table, ids, fusion = repr(parts).splitlines()
    assert [line.split()[:2] for line in table] == [[role, part.name] for role, part in parts]
    for line, (_, part) in zip(table, parts, strict=True):
        assert line.endswith(f" {count(part.module):,} parameters")
    shown = {line.split()[0]: line for line in table}
    assert " LlavaMultiModalProjector " in shown["projector"]
    layers = parts.decoder_layers.module
    assert f" {len(layers)} x LlamaDecoderLayer " in shown["decoder_layers"]
    starts = {line.index(part.name) for line, (_, part) in zip(table, parts, strict=True)}
    assert len(starts) == 1
    assert ids == f"image token ids: {model.config.image_token_id}"
    assert fusion.startswith("fusion: in-sequence, visual tokens take the place of")


def test_a_part_is_shown_as_its_line():
    parts = find_parts(model_of("llava"))
    for line, (role, part) in zip(repr(parts).splitlines(), parts, strict=False):
        assert f"{role} {part!r}".split() == line.split()


def test_a_bare_encoder_is_shown_without_tokens_and_fusion():
    (line,) = repr(find_parts(model_of("clip_vision_model"))).splitlines()
    assert line.startswith("vision_encoder  (the model itself)  CLIPVisionModel")


def test_a_language_model_is_shown_without_tokens_and_fusion():
    lines = repr(find_parts(model_of("llama"))).splitlines()
    assert [line.split()[0] for line in lines] == ["text_embedding", "decoder_layers"]


def test_a_model_without_image_token_ids_says_so():
    assert "image token ids: none" in repr(find_parts(model_of("mllama")))
