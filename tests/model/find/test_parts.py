"""Parts as they are shown to a reader."""

import torch
from support.cases import model_of
from torch import nn

from normprobe import find_parts
from normprobe.model.find.parts import Part, class_rows_of, guesses, largest, weight_of


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


def test_heads_of_a_detector_are_no_candidate_for_decoder_layers() -> None:
    """However large (Groma)."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(2), nn.Linear(2, 2)

    heads = nn.ModuleList(nn.Sequential(nn.Linear(64, 64)) for _ in range(6))
    model = nn.ModuleDict({"heads": heads, "layers": nn.ModuleList(Layer() for _ in range(2))})
    names = {id(module): name for name, module in model.named_modules()}
    assert largest(model, nn.ModuleList, names) == "layers"
    model["layers"].extend([None])  # a place that holds none (OpenFlamingo)
    assert largest(model, nn.ModuleList, names) == "layers"
    del model["layers"]
    assert largest(model, nn.ModuleList, names) == "heads"


def test_layers_beside_the_table_of_words_are_the_better_guess() -> None:
    """A detector's may be larger (ContextDET)."""
    detector = nn.ModuleList(nn.Sequential(nn.Linear(99, 99), nn.GroupNorm(3, 99)) for _ in "ab")
    layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in "ab")
    body = nn.ModuleDict({"words": nn.Embedding(5, 2), "layers": layers})
    model = nn.ModuleDict({"input_proj": detector, "llm": nn.ModuleDict({"body": body})})
    names = {id(module): name for name, module in model.named_modules()}
    assert guesses(model, names)["decoder_layers"] == "llm.body.layers"
    del body["layers"]
    assert guesses(model, names)["decoder_layers"] == "input_proj"
    del model["input_proj"]
    assert guesses(model, names)["decoder_layers"] == "NAME"


def test_layers_of_a_vision_encoder_beside_the_table_of_words_are_no_guess() -> None:
    """Apriel2's tiny vision encoder is larger than its decoder, and one module holds both."""

    def blocks(size: int) -> nn.Module:
        layers = nn.ModuleList(nn.Sequential(nn.Linear(size, 2), nn.LayerNorm(2)) for _ in "ab")
        return nn.ModuleDict({"blocks": layers})

    held = {"words": nn.Embedding(5, 2), "vision_encoder": blocks(9), "decoder": blocks(2)}
    model = nn.ModuleDict({"model": nn.ModuleDict(held)})
    names = {id(module): name for name, module in model.named_modules()}
    found = guesses(model, names)
    assert found["decoder_layers"] == "model.decoder.blocks"
    assert found["vision_encoder"] == "model.vision_encoder"


def test_a_table_of_positions_is_no_candidate_for_words() -> None:
    """However large (StarVector, whose tests' vocabulary is small)."""
    model = nn.ModuleDict({"wpe": nn.Embedding(9, 2), "wte": nn.Embedding(5, 2)})
    names = {id(module): name for name, module in model.named_modules()}
    assert largest(model, nn.Embedding, names) == "wte"
    del model["wte"]
    assert largest(model, nn.Embedding, names) == "wpe"


def test_class_and_register_tokens_are_counted_one_by_one() -> None:
    tower = nn.Module()
    shapes = {"class_embedding": [8], "cls_token": [1, 1, 8], "register_tokens": [1, 4, 8]}
    for name, shape in {**shapes, "position_embedding": [1, 9, 8]}.items():
        tower.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    assert class_rows_of(Part("tower", tower)) == 1 + 1 + 4
    both = nn.Module()  # of several encoders those of the first count (MoVA)
    both.first, both.other = nn.Module(), tower
    both.first.class_embedding = nn.Parameter(torch.zeros(8))
    assert class_rows_of(Part("both", both)) == 1


class TwoNames(nn.Module):
    """As jina-vlm's: ``weight`` is another name of the first of its two tables."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(5, 4))
        self.new_embedding = nn.Parameter(torch.randn(2, 4))

    @property
    def weight(self) -> torch.Tensor:
        return self.embedding


def test_a_table_of_two_names_is_counted_once() -> None:
    table = TwoNames()
    expected = torch.cat([table.embedding, table.new_embedding])
    assert torch.equal(weight_of(Part("words", table)), expected)


class RegisteredLate(nn.Module):
    """As Moondream: a table is made when it is first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(4, 4)

    def late(self) -> None:
        self.table = nn.Embedding(9, 4)


def test_a_module_that_is_registered_late_has_no_name_yet() -> None:
    model = RegisteredLate()
    names = {id(module): name for name, module in model.named_modules()}
    model.late()
    assert largest(model, nn.Embedding, names) == "NAME"
    names = {id(module): name for name, module in model.named_modules()}
    assert largest(model, nn.Embedding, names) == "table"
