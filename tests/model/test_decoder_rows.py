"""Plain modules, rows inserted inside forward, embeddings alone: beside float64 NumPy."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from support.capture import Layer, States
from support.flat import flat
from support.plain_modules import (
    PLACE,
    SPECIAL,
    VOCABULARY,
    WIDTH,
    Block,
    Embedded,
    Inserting,
    Plain,
    Tokenizing,
    made,
)
from support.reference import layers_table, observe_layers
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn

from normprobe import NormprobeError, Probe, probe_interface, probe_layers, schema

PATCHES = 4


def pictures(count: int) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def prompts(rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    """Ids and their mask, padded with 0 on a side."""
    longest = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), longest).long(), torch.zeros(len(rows), longest).long()
    for number, row in enumerate(rows):
        at = slice(longest - len(row), None) if side == "left" else slice(len(row))
        ids[number, at], mask[number, at] = torch.tensor(row), 1
    return ids, mask


def assert_right(module: Plain, inputs: dict, groups, found: pd.DataFrame) -> None:
    """Every norm, cosine, angle and update by layer and group, to 1e-6."""
    with torch.no_grad():
        module(**inputs)  # the measurement stops at its last layer
    pairs = zip(module.seen[:-1], module.seen[1:], strict=True)
    expected = layers_table(observe_layers(States([Layer(*pair) for pair in pairs]), groups))
    measured = flat(found).set_index(["layer", "group"])
    assert set(measured.index) == set(expected)
    for key, row in expected.items():
        assert measured.loc[key, "tokens"] == row["tokens"], key
        for name, value in row.items():
            if name.endswith("_mean") and not name.startswith("pooled") and key[0]:
                assert measured.loc[key, name] == pytest.approx(value, rel=1e-6, abs=1e-7), key
        assert measured.loc[key, "norm_mean"] == pytest.approx(row["norm_mean"], rel=1e-6)


def groups_of(ids: Tensor, mask: Tensor) -> np.ndarray:
    """Those of prompts in which each row has its place."""
    groups = np.full(ids.shape, schema.TEXT, dtype="<U16")
    groups[np.isin(ids, SPECIAL)] = schema.SPECIAL
    groups[ids.numpy() == Plain.place] = schema.VISUAL
    groups[mask.numpy() == 0] = ""
    return groups


IN_PLACE = [
    [1, 8, 10, 4, *[Plain.place] * PATCHES, 5, 9, 11, 12, 14, 2],
    [1, 9, 4, *[Plain.place] * PATCHES, 5, 13, 15, 2],
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("given", ["mapping", "tuple", "function", "arrays"])
def test_a_plain_module(side: str, given: str) -> None:
    module, (ids, mask), image = made(Plain), prompts(IN_PLACE, side), pictures(2)
    inputs = {
        "mapping": {"tokens": ids, "image": image, "mask": mask},
        "tuple": (ids, image, mask),
        "function": lambda m: m(ids, mask=mask, image=image),
        "arrays": {"tokens": ids.numpy(), "image": image.double().numpy(), "mask": mask.numpy()},
    }[given]
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, {"tokens": ids, "image": image, "mask": mask}, groups_of(ids, mask), found)


def test_a_plain_module_in_half_precision_and_by_hand() -> None:
    """``named`` takes lists; floats become the module's own type."""
    module, (ids, mask) = made(Plain).bfloat16(), prompts(IN_PLACE, "right")
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named |= {"text_embedding": "words", "image_token_ids": [Plain.place]}
    inputs = {"tokens": ids, "image": pictures(2).numpy().astype("float64"), "mask": mask}
    found = probe_layers(module, inputs, named=named)
    assert flat(found)["norm_mean"].notna().all()
    probe = Probe(module, named=named, special_token_ids=SPECIAL)
    run = probe.layers((ids, pictures(2), mask))
    assert run.record["dtype"] == "bfloat16"
    assert set(run.table["group"]) >= {schema.VISUAL, schema.TEXT, schema.SPECIAL}
    assert run.verdict


def test_the_interface_of_a_plain_module() -> None:
    """Its tower holds a class token and hands over patches alone."""
    module, (ids, mask), image = made(Plain), prompts(IN_PLACE, "right"), pictures(2)
    found = flat(probe_interface(module, (ids, image, mask))).set_index(["stage", "group"])
    with torch.no_grad():
        encoded = module.vision(image)
        projected = module.connector(encoded)
    for stage, state in (("vision_encoder", encoded), ("projector_output", projected)):
        norms = np.linalg.norm(state.double().numpy(), axis=-1)
        assert found.loc[(stage, "visual"), "tokens"] == norms.size
        assert found.loc[(stage, "visual"), "norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
    weight = module.words.weight.detach().double().numpy()
    scale = found.loc[("effective_embedding", "all_rows"), "norm_mean"]
    assert scale == pytest.approx(np.linalg.norm(weight, axis=1).mean(), rel=1e-5)


INSERTED = {
    "one": [[1, 8, PLACE, 10, 9, 11, 2], [1, PLACE, 12, 2]],
    "several": [[1, 8, PLACE, 10, PLACE, 9, 2], [1, PLACE, PLACE, 12, 13, 14, 15, 2]],
    "some": [[1, 8, PLACE, 10, 9, 2], [1, 12, 13, 2]],
    "none": [[1, 8, 10, 9, 2], [1, 12, 2]],
}


@pytest.mark.parametrize("prompt_side", ["left", "right"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", INSERTED)
def test_rows_inserted_inside_forward(name: str, side: str, prompt_side: str) -> None:
    module = made(Inserting)
    module.side = side
    ids, mask = prompts(INSERTED[name], prompt_side)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if count := int((ids == PLACE).sum()):
        inputs["images"] = pictures(count)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, module.origins, found)


@pytest.mark.parametrize("prompt_side", ["left", "right"])
def test_padding_that_moves_to_the_other_side_takes_no_word_along(prompt_side: str) -> None:
    """The whole prompt is looked up, and as many rows enter: only their order is another."""

    class Moving(Plain):
        def forward(self, input_ids: Tensor, images: Tensor, attention_mask: Tensor):
            x = self.words(input_ids)
            rows = self.connector(self.vision(images))
            x = x.masked_scatter((input_ids == self.place).unsqueeze(-1), rows)
            order = moved(attention_mask)
            x = x.gather(1, order.unsqueeze(-1).expand_as(x))
            return self.think(x, attention_mask.gather(1, order))

    def moved(mask: Tensor) -> Tensor:
        return mask.argsort(dim=1, descending=prompt_side == "left", stable=True)

    ids, mask = prompts(IN_PLACE, prompt_side)
    inputs = {"input_ids": ids, "images": pictures(2), "attention_mask": mask}
    module, order = made(Moving), moved(mask)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(ids.gather(1, order), mask.gather(1, order)), found)


def test_the_same_layout_is_placed_without_a_forward() -> None:
    module, (ids, mask) = made(Inserting), prompts(INSERTED["one"], "right")
    inputs = {"input_ids": ids, "attention_mask": mask, "images": pictures(2)}
    probe = Probe(module)
    probe.layers(inputs)
    model, calls = probe.source._found, []
    assert model is not None
    first = model.placed(inputs)
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    again = model.placed({**inputs, "images": torch.rand(2, 3, 8, 8)})
    assert not calls
    assert torch.equal(first.groups, again.groups)


@pytest.mark.parametrize("side", ["left", "right"])
def test_embeddings_alone(side: str) -> None:
    module, (ids, mask) = made(Embedded), prompts(IN_PLACE, side)
    embeds = module.words(ids).detach()
    visual = ids == Plain.place
    inputs = {"inputs_embeds": embeds, "attention_mask": mask}
    found = probe_layers(module, {**inputs, "visual_mask": visual})
    groups = groups_of(ids, mask)
    groups[groups == schema.SPECIAL] = schema.TEXT  # no id tells them
    assert_right(module, inputs, groups, found)
    with pytest.raises(NormprobeError, match="no visual_mask") as raised:
        probe_layers(module, inputs, named={"decoder_layers": "blocks"})
    assert "visual_mask, bool" in raised.value.remedy


def test_pixels_that_reach_no_row_are_refused() -> None:
    class Blind(Plain):
        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            return self.think(self.words(input_ids), None) + self.vision(pixel_values).sum()

    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    inputs = {"input_ids": torch.tensor([[1, 8, 3, 9, 2]]), "pixel_values": pictures(1)}
    with pytest.raises(NormprobeError, match="other pixels change no row"):
        probe_layers(made(Blind), inputs, named={**named, "text_embedding": "words"})


def test_a_picture_in_whole_numbers_is_seen() -> None:
    module, (ids, mask) = made(Plain), prompts(IN_PLACE, "right")
    image = (pictures(2) * 40 + 120).round().clamp(0, 255)
    found = probe_layers(module, (ids, image, mask), special_token_ids=SPECIAL)
    inputs = {"tokens": ids, "image": image, "mask": mask}
    assert_right(module, inputs, groups_of(ids, mask), found)


def test_declared_ids_that_are_not_all_are_refused() -> None:
    """The last row of each picture has an id of its own, which nobody named."""

    class Named(Plain):
        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            rows = self.connector(self.vision(pixel_values))
            there = ((input_ids == 3) | (input_ids == 6)).unsqueeze(-1)
            return self.think(self.words(input_ids).masked_scatter(there, rows), None)

    module = made(Named)
    ids = torch.tensor([[1, 8, 3, 3, 3, 6, 9, 11, 12, 2]])
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named |= {"text_embedding": "words", "image_token_ids": (3,)}
    inputs = {"input_ids": ids, "pixel_values": pictures(1)}
    with pytest.raises(NormprobeError, match="other pixels change 1 rows") as raised:
        probe_layers(module, inputs, named=named)
    assert "image_token_ids=ID,ID" in raised.value.remedy
    found = probe_layers(module, inputs, named={**named, "image_token_ids": [3, 6]})
    groups = np.full((1, 10), schema.TEXT, dtype="<U16")
    groups[0, 2:6] = schema.VISUAL
    assert_right(module, inputs, groups, found)


# --- masks that are none of padding, or of either convention --------------------------------------

PADDED, PADDED_MASK = prompts(IN_PLACE, "right")
FULL = torch.tensor([IN_PLACE[0], [*IN_PLACE[1], 7, 6, 8]])
BY_HAND = {"vision_encoder": "vision", "decoder_layers": "blocks", "text_embedding": "words"}


class Told(Plain):
    """Takes all kinds of masks, and hands none of them to its layers."""

    def forward(self, tokens: Tensor, image: Tensor, **masks: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        return self.think(x, None)


class ToldByName(Told):
    def forward(self, input_ids: Tensor, image: Tensor, mask: Tensor) -> Tensor:
        return super().forward(input_ids, image)


@pytest.mark.parametrize("name", ["image_mask", "loss_mask", "special_tokens_mask", "mask"])
def test_a_mask_that_is_none_of_padding_hides_no_word(name: str) -> None:
    mask = {
        "image_mask": FULL.eq(Plain.place),
        "loss_mask": (torch.arange(FULL.shape[1]) > 8).long().expand(FULL.shape),
        "special_tokens_mask": torch.isin(FULL, torch.tensor(SPECIAL)).long(),
        "mask": FULL.ne(Plain.place),  # it hides a single id, and not at the ends
    }[name]
    inputs = {"tokens": FULL, "image": pictures(2), name: mask}
    module = made(Told)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), found)


@pytest.mark.parametrize(
    ("name", "says", "side"),
    [
        ("padding_mask", "True hides", "right"),
        ("padding_mask", "True keeps", "right"),
        ("padding_mask", "True keeps", "left"),
        ("padding_mask", "1 hides", "left"),
        ("padding_mask", "1 keeps", "right"),
        ("key_padding_mask", "True keeps", "right"),
        ("key_padding_mask", "added", "right"),
        ("attn_mask", "1 keeps", "left"),
        ("mask", "True keeps", "left"),
    ],
)
def test_padding_is_told_by_either_convention(name: str, says: str, side: str) -> None:
    ids, kept = prompts(IN_PLACE, side)
    mask = kept == 0 if "hides" in says else kept == 1
    mask = {"T": mask, "1": mask.long(), "a": (kept - 1) * torch.inf}[says[0]].nan_to_num(0.0)
    inputs = {"tokens": ids, "image": pictures(2), name: mask}
    module = made(Told)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(ids, kept), found)


class Causal(Plain):
    """Padding stands behind, and its mask does not reach the layers."""

    def forward(self, tokens: Tensor, image: Tensor, **named: Tensor) -> Tensor:
        return super().forward(tokens, image)


@pytest.mark.parametrize("name", ["decoder_attention_mask", "token_mask", "attention_masks"])
def test_padding_is_told_by_names_of_decoders(name: str) -> None:
    ids, kept = prompts(IN_PLACE, "right")
    inputs = {"tokens": ids, "image": pictures(2), name: kept}
    module = made(Causal)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(ids, kept), found)


def test_padding_beside_input_ids_is_told_by_another_name() -> None:
    inputs = {"input_ids": PADDED, "image": pictures(2), "mask": PADDED_MASK}
    module = made(ToldByName)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(PADDED, PADDED_MASK), found)


class OfTorch(Plain):
    """Layers of torch, to which True and minus infinity mean: hidden."""

    causal: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, WIDTH, batch_first=True) for _ in range(3)
        )

    def forward(self, tokens: Tensor, image: Tensor, ignored: Tensor | None = None) -> Tensor:
        rows = self.connector(self.vision(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        self.seen = [x.detach().double().numpy()]
        for block in self.blocks:
            x = block(x, src_mask=self.causal, src_key_padding_mask=ignored)
            self.seen.append(x.detach().double().numpy())
        return x


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("causal", ["bool", "added", "none"])
def test_masks_of_the_layers_of_torch(causal: str, padded: bool) -> None:
    later = torch.ones(PADDED.shape[1], PADDED.shape[1]).triu(1).bool()
    added = torch.zeros(later.shape).masked_fill(later, -torch.inf)
    module = made(OfTorch)
    module.causal = {"bool": later, "added": added, "none": None}[causal]
    ignored = PADDED_MASK == 0
    if causal == "added":
        ignored = torch.zeros(ignored.shape).masked_fill(ignored, -torch.inf)
    ids = PADDED if padded else FULL
    inputs = {"tokens": ids, "image": pictures(2)} | ({"ignored": ignored} if padded else {})
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    mask = PADDED_MASK if padded else torch.ones_like(ids)
    assert_right(module, inputs, groups_of(ids, mask), found)


class Sorting(Block):
    def forward(self, x: Tensor, image_mask: Tensor) -> Tensor:
        return super().forward(x + image_mask.unsqueeze(-1))


def test_a_mask_of_images_that_layers_get_hides_no_word() -> None:
    class Sorted(Told):
        def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
            self.seen = [x.detach().double().numpy()]
            for block in self.blocks:
                x = block(x, image_mask=FULL.eq(self.place))
                self.seen.append(x.detach().double().numpy())
            return x

    module, inputs = made(Sorted), {"tokens": FULL, "image": pictures(2)}
    module.blocks = nn.ModuleList(Sorting(WIDTH) for _ in range(3))
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), found)


# --- an image tokenizer ---------------------------------------------------------------------------

SQUARES = 16
WORDS = torch.tensor([[1, 8, 10, 4, 5, 9, 11, 12, 14, 2], [1, 9, 4, 5, 13, 15, 2, 7, 6, 8]])
LARGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class TokenizingIds(Tokenizing):
    def forward(self, input_ids: Tensor, image: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(input_ids, image)


def tokenized(kind: type[Tokenizing], at: str) -> tuple[Tokenizing, dict[str, Tensor], np.ndarray]:
    """A module, its inputs, and the groups of what enters its layers."""
    module = made(kind)
    module.at = at
    place = 3 if at == "in place" else 0
    pictured = torch.full((2, SQUARES), Plain.place)
    rows = torch.cat([WORDS[:, :place], pictured, WORDS[:, place:]], 1)
    name = "ids" if kind is Tokenizing else "input_ids"
    inputs = {name: rows if at == "in place" else WORDS, "image": LARGE}
    return module, inputs, groups_of(rows, torch.ones_like(rows))


OF_TOKENIZERS = [(kind, at) for kind in (Tokenizing, TokenizingIds) for at in Tokenizing.ways]


@pytest.mark.parametrize(("kind", "at"), OF_TOKENIZERS)
@pytest.mark.parametrize("named", [{}, {"fusion": "discrete"}])
def test_what_an_image_tokenizer_chooses_is_visual(kind, at: str, named) -> None:
    """Other pixels leave most of the chosen ids as they are."""
    module, inputs, groups = tokenized(kind, at)
    named = {**BY_HAND, **named}
    found = probe_layers(module, inputs, named=named, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups, found)


@pytest.mark.parametrize("kind", [Tokenizing, TokenizingIds])
def test_placeholders_of_an_image_tokenizer_are_none_of_structure(kind) -> None:
    """Their ids are declared, and other pixels leave most of what takes their place as it is."""
    module, inputs, groups = tokenized(kind, "in place")
    named = {**BY_HAND, "image_token_ids": (Plain.place,)}
    found = probe_layers(module, inputs, named=named, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups, found)


def test_pictures_of_an_image_tokenizer_are_measured_one_after_another() -> None:
    module, inputs, groups = tokenized(Tokenizing, "before")
    probe = Probe(module, named=BY_HAND, special_token_ids=SPECIAL)
    for image in (LARGE, LARGE.flip(0), LARGE.square()):
        now = {**inputs, "image": image}
        assert_right(module, now, groups, probe.layers(now, intervals=False).table)


def test_a_prompt_in_pieces_is_no_choice_of_an_image_tokenizer() -> None:
    """As Show-o is run: ids before and behind a picture are two inputs."""
    module, inputs, groups = tokenized(Tokenizing, "before")

    def forward(module: Tokenizing, begin: Tensor, image: Tensor, rest: Tensor) -> Tensor:
        return module(torch.cat([begin, rest], 1), image)

    pieces = {"begin": WORDS[:, :3], "image": LARGE, "rest": WORDS[:, 3:]}
    probe = Probe(module, forward=forward, named=BY_HAND, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups, probe.layers(pieces).table)


@pytest.mark.parametrize("at", ["apart", "in place"])
def test_an_image_tokenizer_is_traced(at: str) -> None:
    module, inputs, groups = tokenized(Tokenizing, at)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups, found)


def test_codes_that_cannot_be_told_from_words_are_refused() -> None:
    """The prompt's ids are not those that its words are looked up by, but those of codes."""

    class Shifted(Tokenizing):
        def forward(self, input_ids: Tensor, image: Tensor) -> Tensor:
            return super().forward(input_ids - 30, image)

    module = made(Shifted)
    away = torch.cdist(module.vision(LARGE), module.codes.expand(2, -1, -1))
    ids = away.argmin(-1)[:, :10] + VOCABULARY - 20
    with pytest.raises(NormprobeError, match="looked up by ids of the prompt") as raised:
        probe_layers(module, {"input_ids": ids, "image": LARGE}, named=BY_HAND)
    assert "visual_mask" in raised.value.remedy


# --- what is said explicitly ----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "at"), OF_TOKENIZERS)
def test_a_visual_mask_wins_in_the_shape_of_prompts_or_rows(kind, at: str) -> None:
    """Also where it says other than pixels: the last square of each picture is said to be text."""
    module, inputs, groups = tokenized(kind, at)
    visual = groups == schema.VISUAL
    visual[:, visual[0].nonzero()[0].max()] = False
    groups[(groups == schema.VISUAL) & ~visual] = schema.TEXT
    inputs["visual_mask"] = torch.from_numpy(visual)
    found = probe_layers(module, inputs, named=BY_HAND, special_token_ids=SPECIAL)
    del inputs["visual_mask"]
    assert_right(module, inputs, groups, found)


def test_a_visual_mask_that_pixels_contradict_is_doubted() -> None:
    module, inputs, groups = tokenized(TokenizingIds, "in place")
    said = groups == schema.VISUAL
    record = Probe(module, named=BY_HAND).layers({**inputs, "visual_mask": torch.from_numpy(said)})
    assert not record.record.get("doubts")
    said[:, 3:10] = False
    doubted = Probe(module, named=BY_HAND).layers({**inputs, "visual_mask": torch.from_numpy(said)})
    (doubt,) = doubted.record["doubts"]
    assert "taken for text: image tokens are told by visual_mask" in doubt


@pytest.mark.parametrize("of_rows", [False, True])
def test_a_visual_mask_that_is_added_to_scores_is_refused(of_rows: bool) -> None:
    module, inputs, groups = tokenized(TokenizingIds, "before" if of_rows else "in place")
    mask = torch.zeros(groups.shape).masked_fill(torch.from_numpy(groups != schema.VISUAL), -1e9)
    with pytest.raises(NormprobeError, match="holds other numbers than 0 and 1"):
        probe_layers(module, {**inputs, "visual_mask": mask}, named=BY_HAND)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_visual_mask_of_rows_that_forward_inserts(side: str) -> None:
    """The learned row that ends each picture is said to be an image's, and a structural one."""
    module = made(Inserting)
    module.side = side
    ids, mask = prompts(INSERTED["several"], side)
    inputs = {"input_ids": ids, "attention_mask": mask, "images": pictures(4)}
    module(**inputs)
    newline = module.origins == schema.STRUCTURAL
    marks = {
        "visual_mask": torch.from_numpy((module.origins == schema.VISUAL) | newline),
        "structural_mask": torch.from_numpy(newline),
    }
    found = probe_layers(module, {**inputs, **marks}, special_token_ids=SPECIAL)
    assert_right(module, inputs, module.origins, found)


def test_a_visual_mask_of_prompts_that_rows_are_inserted_into_is_refused_with_their_shape() -> None:
    module, (ids, mask) = made(Inserting), prompts(INSERTED["one"], "right")
    inputs = {"input_ids": ids, "attention_mask": mask, "images": pictures(2)}
    with pytest.raises(NormprobeError, match=r"but the prompts have \[2, 7\]") as raised:
        probe_layers(module, {**inputs, "visual_mask": ids == PLACE})
    module(**inputs)
    assert f"pass visual_mask, bool {[*module.origins.shape]}" in raised.value.remedy


@pytest.mark.parametrize("name", ["visual_mask", "structural_mask"])
def test_a_mask_of_neither_shape_is_refused_with_both(name: str) -> None:
    module, (ids, mask) = made(Inserting), prompts(INSERTED["one"], "right")
    inputs = {"input_ids": ids, "attention_mask": mask, "images": pictures(2)}
    module(**inputs)
    rows = torch.zeros(module.origins.shape, dtype=torch.bool)
    wrong = {"visual_mask": rows, name: rows[:, 1:]}
    with pytest.raises(NormprobeError) as raised:
        probe_layers(module, {**inputs, **wrong})
    assert raised.value.problem == (
        f"{name} is [2, {rows.shape[1] - 1}]: expected the shape of the prompts [2, 7] or the rows "
        f"that enter the decoder [2, {rows.shape[1]}]"
    )


class Scattering(Plain):
    """Its own ``visual_mask`` says where the rows of a picture go."""

    def forward(self, tokens: Tensor, image: Tensor, visual_mask: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))
        return self.think(self.words(tokens).masked_scatter(visual_mask.unsqueeze(-1), rows), None)


class ScatteringByName(Scattering):
    def forward(self, input_ids: Tensor, image: Tensor, visual_mask: Tensor) -> Tensor:
        return super().forward(input_ids, image, visual_mask)


class Weighing(Told):
    """Its own ``visual_mask`` is one of squares."""

    def forward(self, tokens: Tensor, image: Tensor, visual_mask: Tensor) -> Tensor:
        return super().forward(tokens, image * visual_mask.mean())


@pytest.mark.parametrize("kind", [Scattering, ScatteringByName, Weighing])
def test_a_forward_gets_a_visual_mask_that_it_takes(kind: type[Plain]) -> None:
    module = made(kind)
    mask = torch.ones(2, PATCHES) if kind is Weighing else FULL.eq(Plain.place)
    name = "input_ids" if kind is ScatteringByName else "tokens"
    inputs = {name: FULL, "image": pictures(2), "visual_mask": mask}
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), found)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float, torch.bfloat16])
def test_another_mask_of_the_same_prompts_is_another_layout(dtype: torch.dtype) -> None:
    module, (ids, mask), image = made(Inserting), prompts(INSERTED["one"], "right"), pictures(2)
    if dtype is torch.bfloat16:  # floats of the inputs are in the type of the model
        module, image = module.bfloat16(), image.bfloat16()
    probe = Probe(module)
    for kept in (mask, mask * (ids != 11)):
        inputs = {"input_ids": ids, "images": image, "attention_mask": kept.to(dtype)}
        again, anew = probe.layers(inputs).table, Probe(module).layers(inputs).table
        pd.testing.assert_frame_equal(again, anew)


def test_a_mask_by_query_and_key_hides_padding() -> None:
    model = copy.deepcopy(tiny_model("llava"))
    inputs = tiny_inputs(model)
    ids = inputs["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, -2:] = 0
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    seen = (causal & mask[:, None].bool())[:, None] | torch.eye(len(causal), dtype=torch.bool)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    by_query = flat(Probe(model).layers({**inputs, "attention_mask": added}).table)
    by_token = flat(Probe(model).layers({**inputs, "attention_mask": mask}).table)
    for name in ("layer", "group", "tokens"):
        assert by_query[name].tolist() == by_token[name].tolist()
    np.testing.assert_allclose(by_query["norm_mean"], by_token["norm_mean"], rtol=1e-5)


def test_rows_whose_number_is_drawn_are_refused() -> None:
    """As MQT-LLaVA's projector draws how many rows it makes, unless it is told."""
    module = made(Plain)

    class Drawing(nn.Module):
        count = 9

        def __init__(self) -> None:
            super().__init__()
            self.inner = module.connector

        def forward(self, x: Tensor) -> Tensor:
            self.count -= 1
            return self.inner(x)[:, : self.count]

    drawing = made(Inserting)
    drawing.connector = Drawing()
    ids, mask = prompts(INSERTED["one"], "right")
    inputs = {"input_ids": ids, "attention_mask": mask, "images": pictures(2)}
    named = {"vision_encoder": "vision", "projector": "connector"}
    named |= {"decoder_layers": "blocks", "text_embedding": "words"}
    with pytest.raises(NormprobeError, match=r"receives \[2, \d+\] rows .* draws the") as told:
        Probe(drawing, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert "an input of its forward" in told.value.remedy
