"""Plain modules of many kinds: measured right, beside float64 NumPy, or refused in true words."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from model.test_decoder_rows import (
    FULL,
    PADDED,
    PADDED_MASK,
    PATCHES,
    assert_right,
    groups_of,
    pictures,
)
from peft import PromptTuningConfig, get_peft_model
from support.flat import flat
from support.plain_modules import EYE, SPECIAL, WIDTH, Block, Eye, Plain, made
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn

from normprobe import NormprobeError, Probe, find_parts, probe_layers, schema
from normprobe.inputs.on_device import with_other_pixels
from normprobe.model import provenance
from normprobe.model.measured_model import MeasuredModel

BY_HAND = {"vision_encoder": "vision", "decoder_layers": "blocks", "text_embedding": "words"}


class Positions(Plain):
    """As nanoGPT: learned positions are added to all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.wpe = nn.Embedding(64, WIDTH)

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        return super().think(x + self.wpe(torch.arange(x.shape[1])), kept)


class Normed(Plain):
    """A norm with gains before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(WIDTH)
        nn.init.uniform_(self.first.weight, 0.5, 2.0)

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        return super().think(self.first(x), kept)


class TwoTowers(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.other = Eye()

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image) + self.other(image.flip(-1)))
        x = self.words(tokens)
        return self.think(x.masked_scatter((tokens == self.place).unsqueeze(-1), rows), None)


class Slopes(Plain):
    """ALiBi: what is added to scores falls with the distance."""

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        places = torch.arange(x.shape[1])
        added = (places[None] - places[:, None]).float().expand(len(x), -1, -1)
        added = added.masked_fill(added > 0, -torch.inf)
        self.seen = [x.detach().double().numpy()]
        for block in self.blocks:
            x = block(x, added)
            self.seen.append(x.detach().double().numpy())
        return x


class Sloped(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        read = self.norm1(x)
        added = mask.repeat_interleave(4, 0)
        x = x + self.attend(read, read, read, attn_mask=added, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Experts(nn.Module):
    """The best of three MLPs a token."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        every = torch.stack([expert(x) for expert in self.experts], -2)
        best = self.route(x).argmax(-1)[..., None, None].expand(*x.shape[:-1], 1, WIDTH)
        return every.gather(-2, best).squeeze(-2)


def with_slopes(module: Plain) -> Plain:
    torch.manual_seed(1)
    module.blocks = nn.ModuleList(Sloped(WIDTH) for _ in range(3)).eval()
    return module


def with_experts(module: Plain) -> Plain:
    torch.manual_seed(1)
    for block in module.blocks:
        block.mlp = Experts()
    return module


class Skipping(Block):
    """Mixture of depths: half of the rows pass a layer as they are."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        chosen = x[..., 0] > x[..., 0].median(-1, keepdim=True).values
        return torch.where(chosen.unsqueeze(-1), super().forward(x, mask), x)


def with_depths(module: Plain) -> Plain:
    torch.manual_seed(1)
    module.blocks = nn.ModuleList(Skipping(WIDTH) for _ in range(4)).eval()
    return module


def as_it_is(module: Plain) -> Plain:
    return module


IN_PLACE = {
    "learned positions": (Positions, as_it_is),
    "a norm with gains": (Normed, as_it_is),
    "two towers": (TwoTowers, as_it_is),
    "ALiBi": (Slopes, with_slopes),
    "experts": (Plain, with_experts),
    "mixture of depths": (Plain, with_depths),
}


#: With no part named the projector is refused: what enters the decoder is no scaled row of it.
NAMED = [(way, named) for way in IN_PLACE for named in (False, True) if named or "gains" not in way]


@pytest.mark.parametrize(("way", "named"), NAMED)
def test_rows_in_their_place(way: str, named: bool) -> None:
    kind, change = IN_PLACE[way]
    module = change(made(kind))
    inputs = {"tokens": FULL, "image": pictures(2)}
    parts = {"vision_encoder": "vision", "projector": "connector"}
    parts |= {"decoder_layers": "blocks", "text_embedding": "words"}
    probe = Probe(module, named=parts if named else None, special_token_ids=SPECIAL)
    run = probe.layers(inputs)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)


def without_the_last() -> np.ndarray:
    """The groups of ``FULL`` where the last row of each picture is structural."""
    groups = groups_of(FULL, torch.ones_like(FULL))
    for row in groups:
        row[(row == schema.VISUAL).nonzero()[0].max()] = schema.STRUCTURAL
    return groups


class Cut(Plain):
    """The last placeholder of each picture keeps the row of its id."""

    def forward(self, input_ids: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))[:, :-1]
        there = input_ids == self.place
        there &= there.cumsum(-1) < PATCHES
        return self.think(self.words(input_ids).masked_scatter(there.unsqueeze(-1), rows), None)


def test_placeholders_that_keep_their_word_are_structural() -> None:
    module, inputs = made(Cut), {"input_ids": FULL, "image": pictures(2)}
    named = {**BY_HAND, "projector": "connector"}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, without_the_last(), run.table)


class Filled(Plain):
    """A short video is filled up with zeros, of which the projector makes rows (Video-ChatGPT)."""

    def forward(self, input_ids: Tensor, video: Tensor) -> Tensor:
        seen = self.vision(video)
        seen = torch.cat([seen[:, :-1], torch.zeros_like(seen[:, -1:])], 1)
        there = (input_ids == self.place).unsqueeze(-1)
        return self.think(self.words(input_ids).masked_scatter(there, self.connector(seen)), None)


def test_rows_that_neither_words_nor_a_video_change_are_structural() -> None:
    module, inputs = made(Filled), {"input_ids": FULL, "video": pictures(2)}
    named = {**BY_HAND, "projector": "connector"}
    table = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs).table
    assert_right(module, inputs, without_the_last(), table[table["group"] != schema.VIDEO])


class Held(Plain):
    """What projects stands in a module that is never called itself (MoE-LLaVA)."""

    def __init__(self) -> None:
        super().__init__()
        del self.connector
        self.holder = nn.ModuleDict({"image": nn.Linear(EYE, WIDTH)})

    @property
    def connector(self) -> nn.Module:
        return self.holder["image"]


def test_a_projector_inside_a_module_that_is_never_called() -> None:
    module, inputs = made(Held), {"tokens": FULL, "image": pictures(2)}
    run = Probe(module, named=BY_HAND, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)
    assert run.record["parts"]["projector"] == "holder.image"
    assert "doubts" not in run.record


_VISUAL = schema.TOKEN_GROUPS.index(schema.VISUAL)


class Region(Plain):
    """Another module makes the last row of a picture (Osprey)."""

    def __init__(self) -> None:
        super().__init__()
        self.extract = nn.ModuleList([nn.Linear(EYE, WIDTH)])

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen = self.vision(image)
        rows = torch.cat([self.connector(seen[:, :-1]), self.extract[0](seen[:, -1:])], 1)
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


class TwoBranches(Plain):
    """Of two towers and projectors; pixels pass through both."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.merger = Eye(), nn.Linear(EYE, WIDTH)

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        rows = [self.connector(self.vision(image)), self.merger(self.other(image))]
        both = torch.cat(rows, 1)[:, ::2]
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, both), None)


@pytest.mark.parametrize(("encoder", "doubted"), [("vision", False), ("other", True)])
def test_a_projector_of_another_tower_is_in_doubt(encoder: str, doubted: bool) -> None:
    """VideoGPT+ names the tower of its clips."""
    module, inputs = made(TwoBranches), {"tokens": FULL, "image": pictures(2)}
    named = {**BY_HAND, "vision_encoder": encoder, "projector": "connector"}
    run = Probe(module, named=named, special_token_ids=SPECIAL).interface(inputs)
    told = " ".join(run.record.get("doubts", []))
    assert (
        "what connector takes stays as it is where other hands over other rows" in told
    ) == doubted
    assert ("of two branches" in told) == doubted


def test_one_of_several_projectors_is_said_so() -> None:
    module, inputs = made(Region), {"tokens": FULL, "image": pictures(2)}
    run = Probe(module, named=BY_HAND, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)
    (doubt,) = run.record["doubts"]
    assert doubt == (
        "connector hands over 6 rows, and 8 visual tokens enter the decoder, the others of another "
        "module"
    )


@pytest.mark.parametrize("by", ["structure", "trace"])
def test_one_of_several_projectors_is_taken_however_it_was_found(by: str) -> None:
    """A trace may have found it at first (SPHINX)."""
    module, inputs = made(Region), {"tokens": FULL, "image": pictures(2)}
    named = {**BY_HAND, "projector": "connector"}
    parts = replace(find_parts(module, named=named), named=frozenset())
    model = MeasuredModel(module, parts, SPECIAL, found_by=by)
    visual = model.batch(inputs).groups_at(model.decoder_input(inputs)) == _VISUAL
    assert visual.sum() == 8
    assert "connector hands over 6 rows, and 8 visual tokens enter" in model.doubt


class Guided(Plain):
    """Words enter the projector, too, beside the rows of the encoder (Parrot)."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(WIDTH, EYE)

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen = self.vision(image)
        told = self.narrow(self.words(torch.cat([tokens, tokens, tokens], 1)))
        rows = self.connector(torch.cat([seen, told], 1))[:, : seen.shape[1]]
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


@pytest.mark.parametrize("named", [None, BY_HAND, {**BY_HAND, "projector": "connector"}])
def test_rows_that_enter_the_projector_beside_those_of_the_encoder(named) -> None:
    module, inputs = made(Guided), {"tokens": FULL, "image": pictures(2)}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)
    assert "doubts" not in run.record


class Pooled(Plain):
    """Pairs of the projector's rows become one."""

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image)).repeat_interleave(2, 1)
        rows = rows.roll(1, 1).unflatten(1, (-1, 2)).mean(2)
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


def test_a_projector_whose_rows_are_pooled_may_be_named() -> None:
    module, inputs = made(Pooled), {"tokens": FULL, "image": pictures(2)}
    named = {**BY_HAND, "projector": "connector"}
    guessed = replace(find_parts(module, named=named), named=frozenset())
    model = MeasuredModel(module, guessed)
    model.batch(inputs)
    assert model.parts.projector is None and "other rows than enter the decoder" in model.doubt
    assert 'if its rows are pooled or mixed behind it, say how: "behind": ' in model.doubt
    for how, doubted in ((named, True), ({**BY_HAND, "behind": "means over two"}, False)):
        run = Probe(module, named=how, special_token_ids=SPECIAL).layers(inputs)
        assert_right(module, inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)
        assert bool(run.record.get("doubts")) == doubted


class Prompted(Plain):
    """Learned rows before the prompt, as of prompt tuning; then the picture, then text."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        learned = self.prompt.expand(len(ids), -1, -1)
        rows = self.connector(self.vision(image))
        return self.think(torch.cat([learned, rows, self.words(ids)], 1), None)


class Stated(Prompted):
    """A row of what a robot feels stands before the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.feel = nn.Linear(7, WIDTH)

    def forward(self, ids: Tensor, image: Tensor, state: Tensor) -> Tensor:
        rows = [self.feel(state)[:, None], self.connector(self.vision(image)), self.words(ids)]
        return self.think(torch.cat(rows, 1), None)


@pytest.mark.parametrize("name", ["state", "state_mask"])
def test_rows_of_what_nothing_changes_are_no_sure_learned_ones(name: str) -> None:
    module = made(Stated)
    given = {"ids": WORDS, "image": pictures(2), name: torch.randn(2, 7)}
    run = Probe(
        module,
        forward=lambda model, **held: model(held["ids"], held["image"], held[name]),
        named=BY_HAND,
        special_token_ids=SPECIAL,
    ).layers(given)
    told = " ".join(run.record.get("doubts", []))
    said = "2 rows are taken for learned ones, which neither words nor other pixels change, and"
    assert (f"{said} state stayed as it was" in told) == (name == "state")


WORDS = torch.tensor([[1, 8, 10, 4, 5, 2], [1, 9, 13, 15, 7, 2]])


def test_learned_prompts_are_structural() -> None:
    module, inputs = made(Prompted), {"ids": WORDS, "image": pictures(2)}
    groups = np.full((2, 5 + PATCHES + WORDS.shape[1]), schema.TEXT, dtype="<U16")
    groups[:, :5], groups[:, 5 : 5 + PATCHES] = schema.STRUCTURAL, schema.VISUAL
    groups[:, [5 + PATCHES, -1]] = schema.SPECIAL
    run = Probe(module, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups, run.table)


class Asking(Plain):
    """A resampler whose latents read picture and text, and stand before the text."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.read = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        words = self.words(ids)
        told = torch.cat([self.connector(self.vision(image)), words], 1)
        asked = self.latents.expand(len(ids), -1, -1)
        rows = asked + self.read(asked, told, told, need_weights=False)[0]
        return self.think(torch.cat([rows, words], 1), None)


class Mixing(Plain):
    """Early fusion that mixes text and picture before the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = Block(WIDTH)

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        return super().think(self.fuse(x), kept)


def test_latents_that_read_text_are_rows_of_pixels() -> None:
    module, inputs = made(Asking), {"ids": WORDS, "image": pictures(2)}
    groups = np.full((2, 3 + WORDS.shape[1]), schema.TEXT, dtype="<U16")
    groups[:, :3], groups[:, [3, -1]] = schema.VISUAL, schema.SPECIAL
    run = Probe(module, named=BY_HAND, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups, run.table)


def test_text_and_image_mixed_before_the_layers_are_refused() -> None:
    module, inputs = made(Mixing), {"tokens": FULL, "image": pictures(2)}
    with pytest.raises(NormprobeError) as raised:
        Probe(module, named=BY_HAND).layers(inputs)
    assert "mix before them" in raised.value.remedy


class Shared(Plain):
    """One layer, run four times."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.blocks[0]] * 4)


def test_shared_layers_are_refused() -> None:
    module, inputs = made(Shared), {"tokens": FULL, "image": pictures(2)}
    with pytest.raises(NormprobeError, match="is layer 1: it runs several times"):
        Probe(module, named=BY_HAND).layers(inputs)


class SequenceFirst(Plain):
    """Rows come first, then samples, as ``nn.TransformerEncoderLayer`` takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, WIDTH) for _ in range(3))

    def think(self, x: Tensor, kept: Tensor | None) -> Tensor:
        x = x.transpose(0, 1)
        self.seen = [x.transpose(0, 1).detach().double().numpy()]
        for block in self.blocks:
            x = block(x)
            self.seen.append(x.transpose(0, 1).detach().double().numpy())
        return x


class SequenceFirstIds(SequenceFirst):
    def forward(self, input_ids: Tensor, image: Tensor) -> Tensor:
        return super().forward(input_ids, image)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("kind", [SequenceFirst, SequenceFirstIds])
def test_rows_before_samples_are_refused(kind: type[Plain], samples: int) -> None:
    """Each row would be taken for a sample."""
    name = "tokens" if kind is SequenceFirst else "input_ids"
    inputs = {name: FULL[:samples], "image": pictures(samples)}
    with pytest.raises(NormprobeError, match="rows come first there") as raised:
        Probe(made(kind), named=BY_HAND).layers(inputs)
    assert f"[{FULL.shape[1]}, {samples}] rows of prompts" in raised.value.problem
    assert "batch_first" in raised.value.remedy


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("kind", [SequenceFirst, SequenceFirstIds])
def test_rows_before_as_many_samples_are_refused(kind: type[Plain], declared: bool) -> None:
    """Shapes tell nothing then: words do."""
    ids = FULL.repeat(FULL.shape[1], 1)[: FULL.shape[1]]
    name = "tokens" if kind is SequenceFirst else "input_ids"
    named: dict[str, object] = {**BY_HAND, "projector": "connector"}
    named |= {"image_token_ids": (Plain.place,)} if declared else {}
    inputs = {name: ids, "image": pictures(len(ids))}
    with pytest.raises(NormprobeError, match="rows come first there"):
        Probe(made(kind), named=named).layers(inputs)


@pytest.mark.parametrize("declared", [False, True])
def test_as_many_samples_as_rows(declared: bool) -> None:
    ids = FULL.repeat(FULL.shape[1], 1)[: FULL.shape[1]]
    module, inputs = made(Cut), {"input_ids": ids, "image": pictures(len(ids))}
    groups = groups_of(ids, torch.ones_like(ids))
    for row in groups:
        row[(row == schema.VISUAL).nonzero()[0].max()] = schema.STRUCTURAL
    named: dict[str, object] = {**BY_HAND, "projector": "connector"}
    named |= {"image_token_ids": (Plain.place,)} if declared else {}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups, run.table)


class Spare(Plain):
    """A module that is never called, beside those that are."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)


def test_a_module_that_is_never_called_is_no_projector() -> None:
    """It is taken for one at first; what stands beside it is one (Ferret)."""
    inputs = {"tokens": FULL, "image": pictures(2)}
    run = Probe(made(Spare), named=BY_HAND, special_token_ids=SPECIAL).layers(inputs)
    assert "doubts" not in run.record
    assert run.record["parts"]["projector"] == "connector"
    assert run.record["parts_found_by"] == "by hand"


class Crossing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return x + self.look(x, seen, seen, need_weights=False)[0]


class TwoLists(Plain):
    """As Flamingo: between its layers text attends to the picture, in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.xattn = nn.ModuleList(Crossing() for _ in range(4))

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen = self.connector(self.vision(image))
        x = self.words(tokens)
        self.seen = []
        for look, block in zip(self.xattn, self.blocks, strict=True):
            x = look(x, seen)
            x = block(x)
        return x


@pytest.mark.parametrize("named", [None, BY_HAND])
def test_layers_that_are_two_lists_are_refused(named: dict[str, str] | None) -> None:
    """``Attending`` is the way out: there one module holds both steps."""
    module, inputs = made(TwoLists), {"tokens": FULL, "image": pictures(2)}
    with pytest.raises(NormprobeError, match="other pixels change every row") as raised:
        Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert "let one module hold both steps" in raised.value.remedy


class OfOneDict(Plain):
    """Takes the whole batch as one mapping."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch["tokens"], batch["image"], batch.get("mask"))


@pytest.mark.parametrize("named", [False, True])
def test_a_forward_of_one_dict(named: bool) -> None:
    module, batch = made(OfOneDict), {"tokens": FULL, "image": pictures(2)}
    parts = {**BY_HAND, "projector": "connector"} if named else None
    probe = Probe(module, named=parts, special_token_ids=SPECIAL)
    groups = groups_of(FULL, torch.ones_like(FULL))
    for inputs in ({"batch": batch}, (batch,), lambda m: m(batch)):
        assert_right(module, {"batch": batch}, groups, probe.layers(inputs).table)


class OfStrings(Plain):
    """Reads strings of a batch, puts the rows of a picture before them, and returns its loss."""

    def forward(self, samples: dict[str, Any]) -> dict[str, Tensor]:
        ids = torch.tensor([[ord(letter) - 80 for letter in text] for text in samples["text"]])
        rows = self.connector(self.vision(samples["image"]))
        self.origins = np.full((len(ids), rows.shape[1] + ids.shape[1]), schema.TEXT, "<U16")
        self.origins[:, : rows.shape[1]] = schema.VISUAL
        return {"loss": self.think(torch.cat([rows, self.words(ids)], 1), None).mean()}


def test_texts_that_are_strings() -> None:
    """As LAVIS reads them: no trace tells the words, and parts that are named are enough."""
    module, samples = made(OfStrings), {"image": pictures(2), "text": ["season", "winter"]}
    with pytest.raises(NormprobeError, match=r"samples.text\) hold no token ids \[batch, seq\]"):
        Probe(module).layers({"samples": samples})
    named = {**BY_HAND, "projector": "connector"}
    for inputs in ({"samples": samples}, lambda m: m(samples)):
        run = Probe(module, named=named).layers(inputs)
        assert_right(module, {"samples": samples}, module.origins, run.table)


class Sized(Plain):
    """Of a picture those rows are kept that its size asks for; they go to where its id stands."""

    def forward(self, tokens: Tensor, image: Tensor, sizes: Any) -> Tensor:
        size = sizes.edge if isinstance(sizes, Edge) else next(iter(sizes.values()))
        kept = len(size[0]) if isinstance(size, list) else int(torch.as_tensor(size).prod())
        rows = self.connector(self.vision(image))[:, :kept]
        at = int((tokens[0] == self.place).nonzero()[0])
        self.origins = np.full((1, tokens.shape[1] - 1 + kept), schema.TEXT, "<U16")
        self.origins[:, at : at + kept] = schema.VISUAL
        words = self.words(tokens)
        return self.think(torch.cat([words[:, :at], rows, words[:, at + 1 :]], 1), None)


class Edge:
    def __init__(self, edge: int) -> None:
        self.edge = edge


@pytest.mark.parametrize(
    "as_input",
    [
        lambda n: {"edge": n},
        lambda n: {"edges": (1, n)},
        lambda n: {"edge": np.array([n])},
        lambda n: {"texts": ["x" * n]},
        Edge,
    ],
    ids=["number", "numbers", "array", "strings", "object"],
)
def test_inputs_without_tensors_place_rows_too(as_input: Any) -> None:
    """A question that is asked about two pictures of other sizes (LLaVA-NeXT's image_sizes)."""
    module, tokens = made(Sized), torch.tensor([[8, 3, 5, 12, 9]])
    model = MeasuredModel(module, find_parts(module, named={**BY_HAND, "projector": "connector"}))
    for rows in (PATCHES, PATCHES - 2, PATCHES):
        inputs = {"tokens": tokens, "image": pictures(1), "sizes": as_input(rows)}
        told = np.array(schema.TOKEN_GROUPS)[model.placed(inputs).groups]
        module(**inputs)
        assert (told == module.origins).all()


class Marked(Plain):
    """As RadFM: ids beyond the table of words look learned marks up, around a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = nn.Embedding(2, WIDTH)

    def forward(self, input_ids: Tensor, image: Tensor) -> Tensor:
        size = self.words.num_embeddings
        words = self.words(input_ids.clamp(max=size - 1))
        marks = self.marks((input_ids - size).clamp(min=0))
        x = torch.where((input_ids >= size).unsqueeze(-1), marks, words)
        there = (input_ids == self.place).unsqueeze(-1)
        return self.think(x.masked_scatter(there, self.connector(self.vision(image))), None)


@pytest.mark.parametrize("measure", ["layers", "interface"])
def test_ids_beyond_the_table_of_words_are_no_words(measure: str) -> None:
    module = made(Marked)
    size = module.words.num_embeddings
    ids = torch.tensor([[1, size, *[Plain.place] * PATCHES, size + 1, 8, 12]])
    named = {**BY_HAND, "projector": "connector"}
    probe = Probe(module, named=named, special_token_ids=SPECIAL)
    run = getattr(probe, measure)({"input_ids": ids, "image": pictures(1)})
    at_input = run.table[run.table["quantity"] == "norm"]
    key, place = ("layer", 0) if measure == "layers" else ("stage", schema.DECODER_INPUT)
    tokens = at_input[at_input[key] == place].set_index("group")["tokens"]
    counts = {"visual": PATCHES, "structural": 2, "special": 1, "text": 2}
    assert {group: tokens[group] for group in counts} == counts


class Unrun(Plain):
    """As moondream: it has parts and methods, and no forward that takes a prompt and a picture."""

    def forward(self) -> Tensor:
        raise NotImplementedError

    def embeds(self, tokens: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))
        return self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)


class Around(nn.Module):
    def __init__(self, inner: Unrun) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        return self.inner.think(self.inner.embeds(ids, image), None)

    @property
    def seen(self) -> list[np.ndarray]:
        return self.inner.seen


def test_parts_that_are_called_one_by_one_are_measured_in_a_module_around_them() -> None:
    module, inputs = made(Unrun), {"ids": FULL, "image": pictures(2)}
    with pytest.raises(NormprobeError, match="no input holds pixels"):  # made where it is written
        Probe(module, named=BY_HAND).layers(lambda m: m.think(m.embeds(FULL, pictures(2)), None))
    around = Around(module).eval()
    run = Probe(around, special_token_ids=SPECIAL).layers(inputs)
    assert_right(around, inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)


@pytest.mark.parametrize("model_type", ["llama", "llava"])
def test_rows_of_prompt_tuning_are_learned(model_type: str) -> None:
    """PEFT looks words and placeholders up itself, and puts its rows before them."""
    model = tiny_model(model_type)
    inputs = dict(tiny_inputs(model, 2))
    text = model.config.get_text_config()
    alone = probe_layers(model, inputs, special_token_ids=SPECIAL_IDS)
    asked = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 5, "num_layers": 2}
    asked |= {"token_dim": text.hidden_size, "num_attention_heads": 4}
    tuned = get_peft_model(model, PromptTuningConfig(**asked)).eval()
    run = Probe(tuned, special_token_ids=SPECIAL_IDS).layers(inputs)
    assert not run.record.get("doubts")
    before, after = (
        flat(rows)[lambda rows: rows["layer"] == 0].set_index("group")
        for rows in (alone, run.table)
    )
    assert after.loc[schema.STRUCTURAL, "tokens"] == 10
    rows = tuned.prompt_encoder.default.embedding.weight.detach().double().numpy()
    norms = np.linalg.norm(rows, axis=-1)
    assert after.loc[schema.STRUCTURAL, "norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
    for group in before.index.drop("non_visual"):
        assert after.loc[group, "tokens"] == before.loc[group, "tokens"]
        assert after.loc[group, "norm_mean"] == pytest.approx(before.loc[group, "norm_mean"])


class Proposing(Plain):
    """How many rows a picture has depends on its pixels (Groma: regions)."""

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))
        count = 2 + int(image.std() > 1.2)
        return self.think(torch.cat([rows[:, :count], self.words(tokens)], 1), None)


@pytest.mark.parametrize("named", [BY_HAND, {**BY_HAND, "projector": "connector"}])
@pytest.mark.parametrize("marked", [False, True])
def test_rows_whose_number_depends_on_the_pixels(named: dict[str, str], marked: bool) -> None:
    module, image = made(Proposing), pictures(2)
    counts = [2 + int(each.std() > 1.2) for each in (image, other_image(image))]
    assert counts[0] != counts[1]
    inputs = {"tokens": WORDS, "image": image}
    probe = Probe(module, named=named, special_token_ids=SPECIAL)
    if not marked:
        with pytest.raises(NormprobeError, match="change how many rows enter") as raised:
            probe.layers(inputs)
        assert "visual_mask" in raised.value.remedy
        return
    mask = torch.zeros(len(WORDS), counts[0] + WORDS.shape[1], dtype=torch.bool)
    mask[:, : counts[0]] = True
    with pytest.raises(NormprobeError, match="which of those of visual_mask no pixel") as raised:
        probe.layers({**inputs, "visual_mask": mask})
    assert "pass structural_mask, too" in raised.value.remedy
    masks = {"visual_mask": mask, "structural_mask": torch.zeros_like(mask)}
    run = probe.layers({**inputs, **masks})
    shown = np.full((len(WORDS), counts[0]), schema.VISUAL, dtype="<U16")
    groups = np.concatenate([shown, groups_of(WORDS, torch.ones_like(WORDS))], 1)
    assert_right(module, inputs, groups, run.table)


def other_image(image: Tensor) -> Tensor:
    return with_other_pixels({"image": image})["image"]


class Deaf(Plain):
    """Takes a sound, of which no row comes (VITA's silence)."""

    def forward(self, tokens: Tensor, image: Tensor, audios: Tensor) -> Tensor:
        assert audios is not None
        return super().forward(tokens, image)


def test_a_sound_of_which_no_row_comes_is_to_be_left_out() -> None:
    inputs = {"tokens": FULL, "image": pictures(2), "audios": torch.randn(2, 5)}
    with pytest.raises(NormprobeError, match="another sound changes no row") as raised:
        Probe(made(Deaf), named=BY_HAND, special_token_ids=SPECIAL).layers(inputs)
    assert "hold it in forward(model, **inputs)" in raised.value.remedy

    def without(module: Deaf, tokens: Tensor, image: Tensor) -> Tensor:
        return module(tokens, image, torch.zeros(2, 5))

    probe = Probe(made(Deaf), named=BY_HAND, special_token_ids=SPECIAL, forward=without)
    run = probe.layers({"tokens": FULL, "image": pictures(2)})
    inputs["audios"] = torch.zeros(2, 5)
    assert_right(made(Deaf), inputs, groups_of(FULL, torch.ones_like(FULL)), run.table)


class Deciding(Plain):
    """A learned row before the prompt that no other row may see (LaVIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.decision = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, tokens: Tensor, image: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = self.connector(self.vision(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        x = torch.cat([self.decision.expand(len(x), -1, -1), x], 1)
        kept = torch.ones(x.shape[:2]).long()
        kept[:, 0] = 0
        if mask is not None:
            kept[:, 1:] = mask
        return self.think(x, kept)


@pytest.mark.parametrize("padded", [False, True])
def test_learned_rows_that_no_other_may_see_are_no_padding(padded: bool) -> None:
    module, inputs = made(Deciding), {"tokens": FULL, "image": pictures(2)}
    groups = groups_of(FULL, torch.ones_like(FULL))
    if padded:
        inputs |= {"tokens": PADDED, "mask": PADDED_MASK}
        groups = groups_of(PADDED, PADDED_MASK)
    run = Probe(module, named=BY_HAND, special_token_ids=SPECIAL).layers(inputs)
    learned = np.full((2, 1), schema.STRUCTURAL, dtype="<U16")
    assert_right(module, inputs, np.concatenate([learned, groups], 1), run.table)
    assert "doubts" not in run.record


def test_a_mask_of_floats_places_rows_as_one_of_whole_numbers_does() -> None:
    padded = torch.tensor([[1.0, 1.0, 0.0]])
    assert not provenance._is_signal("attention_mask", padded)
    assert provenance._is_signal("pixel_values", padded)


class OtherWords(Plain):
    """As BLIVA: a Q-Former reads the words of its own table, before the language model is."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = nn.Module()
        self.asked.words = nn.Embedding(60, EYE)
        self.asked.get_input_embeddings = lambda: self.asked.words
        self.language = nn.Module()
        self.language.config = SimpleNamespace(bos_token_id=1)
        self.language.words, self.language.blocks = self.words, self.blocks
        self.language.get_input_embeddings = lambda: self.language.words
        del self.words, self.blocks

    @property
    def inner(self) -> nn.Module:
        return self._modules["language"]

    def forward(self, samples: dict[str, Any]) -> Tensor:
        tokens = torch.tensor(samples["text"])
        asked = self.asked.words(tokens).mean(1, keepdim=True)
        rows = self.connector(self.vision(samples["image"]) + 0 * asked)
        x = torch.cat([rows, self.inner.words(tokens)], 1)
        self.words, self.blocks = self.inner.words, self.inner.blocks
        try:
            return self.think(x, None)
        finally:
            del self.words, self.blocks


def test_the_table_of_words_is_that_of_what_holds_the_layers() -> None:
    module = made(OtherWords)
    text = [[1, 8, 5, 12, 9], [1, 7, 30, 4, 6]]
    inputs = {"samples": {"text": text, "image": pictures(2)}}
    named = {"vision_encoder": "vision", "projector": "connector"}
    named["decoder_layers"] = "language.blocks"
    run = Probe(module, named=named).layers(inputs)
    assert find_parts(module, named=named).text_embedding.name == "language.words"
    tokens = run.wide("norm", "tokens").loc[1]
    assert tuple(tokens[["visual", "text", "special"]]) == (2 * PATCHES, 8, 2)  # bos of its config
    assert not run.record.get("doubts")
    none = Probe(module, named=named, special_token_ids=[]).layers(inputs)
    assert none.wide("norm", "tokens").loc[1, "text"] == 10


def test_a_table_of_another_width_than_the_layers_is_refused() -> None:
    module = made(OtherWords)
    del module.language.get_input_embeddings
    inputs = {"samples": {"text": [[1, 8, 5, 12, 9]], "image": pictures(1)}}
    named = {"vision_encoder": "vision", "projector": "connector"}
    named["decoder_layers"] = "language.blocks"
    with pytest.raises(NormprobeError, match=f"rows of asked.words have size {EYE}, and") as told:
        Probe(module, named=named).layers(inputs)
    assert "--part text_embedding=NAME" in told.value.remedy
    named["text_embedding"] = "language.words"
    assert Probe(module, named=named).layers(inputs).wide("norm", "tokens").loc[1, "text"] == 4


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.rows = Block(WIDTH), torch.zeros(())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.block(x, mask) + self.rows
        return out


class Late(Plain):
    """As Inverse-LLaVA: rows of a picture enter as zeros, and layer 1 adds what they see."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0] = Adding()

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        place = (tokens == self.place).unsqueeze(-1)
        x = self.words(tokens).masked_fill(place, 0.0)
        rows = self.connector(self.vision(image))
        self.blocks[0].rows = torch.zeros_like(x).masked_scatter(place, rows)
        return self.think(x, None)


def test_rows_of_zeros_that_are_said_to_be_a_picture_s_are_no_padding() -> None:
    module = made(Late)
    ids = torch.tensor([[1, *[Plain.place] * PATCHES, 5, 9, 7]])
    inputs = {"tokens": ids, "image": pictures(1), "visual_mask": ids == Plain.place}
    named = {**BY_HAND, "projector": "connector", "behind": "is added in layer 1"}
    found = Probe(module, named=named, special_token_ids=[1]).layers(inputs)
    module(ids, pictures(1))
    visual = (ids == Plain.place)[0].numpy()
    norms = found.wide("norm", "mean")["visual"]
    assert (found.wide("norm", "tokens")["visual"] == PATCHES).all()
    for layer, state in enumerate(module.seen):
        expected = np.linalg.norm(state[0, visual], axis=-1).mean()
        np.testing.assert_allclose(norms[layer], expected, rtol=1e-6)
    assert norms[0] == 0.0 < norms[1]


class ShortMask(Plain):
    """It inserts rows, and its layers get a mask as short as the prompt, filled up (UForm-Gen)."""

    def forward(self, input_ids: Tensor, image: Tensor, attention_mask: Tensor | None = None):
        rows = self.connector(self.vision(image))
        x = self.words(input_ids)
        x = torch.cat([x[:, :3], rows, x[:, 4:]], 1)
        kept = torch.ones(x.shape[:2], dtype=torch.bool)
        if attention_mask is not None:
            kept = kept & (torch.arange(x.shape[1]) < attention_mask.shape[1])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & kept[:, None]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_as_short_as_the_prompt_that_hides_inserted_words_is_in_doubt(masked: bool) -> None:
    ids = torch.tensor([[1, 8, 10, 3, 9, 11, 12, 13, 14, 2]])
    inputs = {"input_ids": ids, "image": torch.randn(1, 3, 8, 8)}
    inputs |= {"attention_mask": torch.ones_like(ids)} if masked else {}
    run = Probe(made(ShortMask)).layers(inputs)
    told = "3 words of the prompts are hidden from all by the mask that decoder layer 1 gets"
    assert (told in " ".join(run.record.get("doubts", []))) == masked


class Modulated(Plain):
    """As Firebolt-VL: what is seen is mixed into each row of words, and no row is a picture's."""

    def forward(self, tokens: Tensor, image: Tensor | None = None, mask: Tensor | None = None):
        x = self.words(tokens)
        if image is not None:
            seen = self.connector(self.vision(image)).mean(1, keepdim=True)
            x = self.mix(torch.cat([x, seen.expand_as(x)], -1))
        return self.think(x, mask)

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * WIDTH, WIDTH)


def test_a_picture_that_changes_all_words_is_a_doubt() -> None:
    model = made(Modulated)
    told = "the picture changes every row of the prompts, so all of them count as visual"
    run = Probe(model, named=BY_HAND).layers({"tokens": FULL, "image": pictures(2)})
    assert told in " ".join(run.record["doubts"])
    right = Probe(made(Plain), named=BY_HAND).layers({"tokens": FULL, "image": pictures(2)})
    assert told not in " ".join(right.record.get("doubts", []))
