"""Where visual tokens lie: told by a bright square, on real processors of many layouts."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from support.mapped import SIZE, photograph, with_square
from support.processors import RECIPES, make_processor
from support.tiny_inputs import SPECIAL_IDS
from support.tiny_models import tiny_model

from normprobe import find_parts
from normprobe.data.sample import Sample
from normprobe.extensions.pictures.attention.measure import measure_attention
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.processor import load_processor
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.image_places import (
    PlacesUnknown,
    _agreement,
    _tiles,
    image_places,
    places_of_rows,
)
from normprobe.model.load.loading import load_model
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.provenance import fitted
from normprobe.schema import TOKEN_GROUPS, VISUAL
from normprobe.tidy import select, wide

#: Visual tokens across and down the image, and what is special about each type.
GRIDS = {
    "llava": (4, 4),
    "paligemma": (4, 4),
    "gemma3": (2, 2),  # pooled
    "deepseek_vl": (4, 4),  # padded to a square: not all rows of tokens show the image
    "lighton_ocr": (4, 3),  # the image's own shape, merged patches
    "hunyuan_vl": (4, 3),  # patches in reading order, merged by the model; newlines
    "paddleocr_vl": (4, 3),  # four patches of a token follow each other
    "qwen2_vl": (4, 3),
    "qwen2_5_vl": (4, 3),
    "qwen3_vl": (4, 3),
    "glm4v": (4, 3),
    "mistral3": (4, 3),
}
#: A thumbnail beside tiles; those of the last three are cut to the image's shape, with newlines.
TILED = (
    "idefics3",
    "granite_docling",
    "ovis2",
    "aya_vision",
    "qianfan_ocr",
    "internvl",
    "llava_next",
    "granite4_vision",
    "llava_onevision",
)


class Setting:
    """A tiny model with its processor."""

    def __init__(self, model, processor):
        self.model, self.processor = model, processor
        self.measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)

    def build(self, image):
        model_type = self.model.config.model_type
        sample = Sample("square", "What?", (image,))
        return InputBuilder(self.processor, model_type=model_type).build([sample])

    def decoder_input(self, image):
        inputs = inputs_for(self.model, self.build(image))
        return self.measured.decoder_input(inputs)

    def visual(self, image):
        inputs = inputs_for(self.model, self.build(image))
        groups = self.measured.placed(inputs).groups
        groups = fitted(groups, self.decoder_input(image), self.measured.parts)
        return (groups[0] == TOKEN_GROUPS.index(VISUAL)).numpy()

    def moved(self, image):
        """Which of the visual tokens are no newlines, by running twice."""
        visual = self.visual(image)
        other = Image.eval(image, lambda value: 255 - value)
        change = self.decoder_input(image) != self.decoder_input(other)
        return visual & change.any(-1)[0].numpy()

    def places(self, image):
        visual = self.moved(image)
        return visual, *image_places(self.measured, self.build, image, visual)


@cache
def setting(model_type):
    if model_type not in RECIPES:
        pytest.skip("its processor needs torchvision")
    return Setting(tiny_model(model_type), make_processor(model_type))


@cache
def places_of(model_type):
    return setting(model_type).places(photograph())


@cache
def specimen():
    checkpoint = open_checkpoint("specimen")
    model = load_model(checkpoint, device="cpu", dtype="float32")
    return Setting(model, load_processor(checkpoint.source))


def most_moved(case, visual, x, y, size=SIZE):
    """The visual token that a white square moves most."""
    grey = Image.new("RGB", size, (100, 100, 100))
    change = case.decoder_input(with_square(x, y, size)) - case.decoder_input(grey)
    return int(change[0, torch.from_numpy(visual)].float().norm(dim=-1).argmax())


def assert_contains(box, x, y):
    left, top, right, bottom = box
    assert left - 1e-6 <= x <= right + 1e-6 and top - 1e-6 <= y <= bottom + 1e-6, (box, x, y)


@pytest.mark.parametrize("model_type", GRIDS)
def test_a_bright_square_moves_the_token_of_its_place(model_type):
    columns, rows = GRIDS[model_type]
    case = setting(model_type)
    visual, boxes, agreement = places_of(model_type)
    assert len(boxes) == visual.sum() == columns * rows
    assert 0.3 < agreement <= 1
    for box in boxes[(boxes[:, 3] - boxes[:, 1]) > 0.1]:  # not padding
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        assert_contains(boxes[most_moved(case, visual, x, y)], x, y)


def test_what_pads_a_tile_shows_none_of_the_image():
    tile = np.full((1, 3, 2, 4), np.nan)
    tile[..., :2] = [[0.2, 0.6], [0.2, 0.6]]
    tile[0, 0, 0, 0] = np.nan  # one channel is out of range there
    (across,) = _tiles(tile)
    np.testing.assert_allclose(across, [[0.2, 0.6, np.nan, np.nan]] * 2)
    assert not list(_tiles(np.full((1, 3, 2, 4), np.nan)))


def test_places_of_a_padded_picture_tile_it():
    _, boxes, _ = places_of("deepseek_vl")
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert areas.sum() == pytest.approx(1, abs=0.03)
    for x, y in np.random.default_rng(0).random((20, 2)) * 0.96 + 0.02:
        inside = (boxes[:, 0] <= x) & (x < boxes[:, 2]) & (boxes[:, 1] <= y) & (y < boxes[:, 3])
        assert inside.sum() == 1


@pytest.mark.parametrize("model_type", TILED)
def test_tiles_and_the_thumbnail_both_cover_the_image(model_type):
    case = setting(model_type)
    visual, boxes, _ = case.places(photograph())
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert areas.sum() == pytest.approx(2, abs=0.06)
    for x, y in ((0.125, 0.375), (0.875, 0.375), (0.125, 0.875), (0.625, 0.625)):
        assert_contains(boxes[most_moved(case, visual, x, y)], x, y)


def test_what_the_processor_cuts_off_has_no_token():
    """The shorter side is resized, the middle cut out: LLaVA-1.5."""
    processor = make_processor("llava")
    processor.image_processor.do_center_crop = True
    processor.image_processor.size = {"shortest_edge": 16}
    processor.image_processor.crop_size = {"height": 16, "width": 16}
    case = Setting(tiny_model("llava"), processor)
    _, boxes, _ = case.places(photograph((96, 48)))
    assert boxes[:, 0].min() == pytest.approx(0.25, abs=0.01)
    assert boxes[:, 2].max() == pytest.approx(0.75, abs=0.01)
    assert (boxes[:, 1].min(), boxes[:, 3].max()) == pytest.approx((0, 1), abs=0.01)


def test_the_trained_specimen_looks_where_the_square_is():
    case = specimen()
    visual, boxes, agreement = case.places(photograph((448, 300)))
    assert agreement > 0.5
    found = [
        most_moved(case, visual, (b[0] + b[2]) / 2, (b[1] + b[3]) / 2, (448, 300)) for b in boxes
    ]
    right = np.array(found) == np.arange(64)
    assert right.mean() > 0.9  # of 64 places


def grid(lefts, tops):
    """Boxes of a grid in reading order, from the edges of its columns and rows."""
    row, column = np.divmod(np.arange((len(lefts) - 1) * (len(tops) - 1)), len(lefts) - 1)
    boxes = [lefts[column], tops[row], lefts[column + 1], tops[row + 1]]
    return np.stack(boxes, axis=1).clip(0, 1)


@pytest.mark.parametrize("model_type", sorted(GRIDS.keys() - {"deepseek_vl"}))
def test_places_of_a_whole_picture_are_exact(model_type):
    columns, rows = GRIDS[model_type]
    expected = grid(np.linspace(0, 1, columns + 1), np.linspace(0, 1, rows + 1))
    np.testing.assert_allclose(places_of(model_type)[1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(448, 300), (300, 448), (640, 427), (500, 499)])
def test_places_of_the_specimen_are_those_of_its_resizing_and_cropping(size):
    """The shorter side becomes 64 pixels, of which the middle is cut: 8 x 8 patches."""
    edges = []
    for side in size:
        resized = int(64 * side / min(size))
        edges.append(((resized - 64) // 2 + np.linspace(0, 64, 9)) / resized)
    boxes = specimen().places(photograph(size))[1]
    np.testing.assert_allclose(boxes, grid(*edges), rtol=0, atol=2e-4)


def patched(side, named):
    """Pads a picture to whole squares of patches, in reading order, as MoonViT's processor does."""

    def build(picture):
        pixels = np.asarray(picture, dtype=np.float64) / 127.5 - 1
        down, across = (-(-length // (2 * side)) * 2 for length in pixels.shape[:2])
        padded = np.full((down * side, across * side, 3), -1.0)
        padded[: pixels.shape[0], : pixels.shape[1]] = pixels
        patches = padded.reshape(down, side, across, side, 3).transpose(0, 2, 4, 1, 3)
        tensor = torch.from_numpy(patches.reshape(-1, 3, side, side)).float()
        return {"pixel_values": tensor, named: torch.tensor([[down, across]])}

    return build


@pytest.mark.parametrize("size", [(84, 56), (70, 61), (83, 50), (60, 90)])
def test_the_grid_of_the_inputs_is_used_and_its_padding_seen(size):
    def states_of(inputs):
        """Squares of two by two patches, made by the model."""
        rows, columns = inputs["image_grid_hws"][0].tolist()
        means = inputs["pixel_values"].mean((2, 3)).reshape(rows // 2, 2, columns // 2, 2, 3)
        return [means.mean((1, 3)).reshape(-1, 3)]

    build = patched(7, "image_grid_hws")
    boxes, (agreement,) = places_of_rows(build, photograph(size), states_of)
    edges = [np.arange(0, -(-side // 14) * 14 + 1, 14) / side for side in size]
    np.testing.assert_allclose(boxes, grid(*edges), rtol=0, atol=2e-3)
    assert isinstance(agreement, float)


@pytest.mark.parametrize("order", ["mirrored", "transposed", "reversed", "shuffled"])
def test_tokens_in_another_order_are_refused(order):
    """The map is not believed, it is tested: here the projector hands its rows on in disorder."""
    grid = torch.arange(16).reshape(4, 4)
    orders = {
        "mirrored": grid.flip(1),
        "transposed": grid.T,
        "reversed": grid.flip(0, 1),
        "shuffled": torch.randperm(16, generator=torch.Generator().manual_seed(0)),
    }
    case = Setting(tiny_model("llava"), make_processor("llava"))
    projector = case.model.model.multi_modal_projector
    forward = projector.forward
    projector.forward = lambda features: forward(features)[:, orders[order].flatten()]
    with pytest.raises(PlacesUnknown, match="do not react to the places"):
        case.places(photograph())


def test_places_are_not_believed_where_wrong_ones_agree_better() -> None:
    right, mirrored = np.random.default_rng(0).random((2, 20, 16))
    agreement = _agreement([right, mirrored], right + 0.2 * mirrored)
    assert isinstance(agreement, float) and agreement > 0.9
    assert "correlation 0.5" in str(_agreement([right, mirrored], right + 2.0 * mirrored))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("blip-2", "do not react to the places"),  # queries look everywhere
        ("florence2", "5 visual tokens a tile form no grid"),
        ("pp_chart2table", "too few"),
    ],
)
def test_what_is_not_known_is_refused(model_type, reason):
    with pytest.raises(PlacesUnknown, match=reason):
        setting(model_type).places(photograph())


def test_numbers_come_without_places():
    case = setting("blip-2")
    measured = measure_attention(
        case.measured,
        lambda pictures: case.build(*pictures),
        [photograph()],
        decode=case.processor.tokenizer.decode,
        box=(0, 0, 48, 32),
    )
    assert measured.heatmaps is None
    assert "do not react" in measured.places[0]
    shares = select(measured.table, "share")
    assert len(shares) == len(case.measured.decoder_layers)
    assert shares["mean"].between(0, 1).all()
    assert select(measured.table, "signal_to_noise").empty


def in_the_box(case, **options):
    """One and a half of four columns."""
    return measure_attention(
        case.measured,
        lambda pictures: case.build(*pictures),
        [photograph()],
        decode=case.processor.tokenizer.decode,
        box=(0, 0, 36, 64),
        **options,
    )


def test_signal_to_noise_of_a_box_is_that_of_the_heat_map():
    measured = in_the_box(setting("llava"), layers=[2])
    assert measured.heatmaps["layer"].unique().tolist() == [2]
    columns = measured.heatmaps["attention"].to_numpy().reshape(4, 4).sum(0)
    expected = (columns[0] + columns[1] / 2) / 1.5 / ((columns[1] / 2 + columns[2:].sum()) / 2.5)
    found = wide(measured.table).set_index("layer")
    assert found["signal_to_noise"][2] == pytest.approx(expected, rel=0.01)
    assert measured.heatmaps["attention"].sum() == pytest.approx(found["share"][2])


def test_the_score_gap_is_that_of_the_logarithms_of_the_weights():
    """Within a row they differ from the scores by a constant."""
    model = copy.deepcopy(tiny_model("llava"))
    case = Setting(model, make_processor("llava"))
    found = wide(in_the_box(case).table)["score_gap"]
    inputs = inputs_for(model, case.build(photograph()))
    ids = inputs["input_ids"][0]
    visual = ids == model.config.image_token_id
    text = torch.arange(len(ids)) > visual.nonzero().max()
    text &= ~torch.isin(ids, torch.tensor([*case.measured.special_token_ids]))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(**inputs, output_attentions=True).attentions
    weight = np.array([1, 0.5, 0, 0] * 4)
    for layer, weights in enumerate(layers):
        logs = np.log(weights[0].double().numpy()[:, text.numpy()][..., visual.numpy()])
        expected = logs @ (weight / weight.sum()) - logs @ ((1 - weight) / (1 - weight).sum())
        assert found[layer] == pytest.approx(expected.mean(), rel=0.01)


def test_weights_that_a_model_returns_itself_have_no_scores():
    model = copy.deepcopy(tiny_model("llava"))
    model.set_attn_implementation("eager")
    table = in_the_box(Setting(model, make_processor("llava"))).table
    assert wide(table)["signal_to_noise"].notna().all()
    assert select(table, "score_gap").empty
