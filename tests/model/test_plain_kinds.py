"""Plain modules whose layers are unlike others: packed, with caches, that look at the picture."""

import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
from model.test_decoder_rows import (
    BY_HAND,
    FULL,
    PADDED,
    PADDED_MASK,
    assert_right,
    groups_of,
    pictures,
)
from model.test_provenance import WORDS, TwoLists
from support.capture import Layer, States
from support.flat import flat
from support.plain_modules import EYE, SPECIAL, WIDTH, Block, Eye, Plain, Tokenizing, made
from support.reference import layers_table, observe_layers
from torch import Tensor, nn

from normprobe import NormprobeError, Probe, find_parts, schema
from normprobe.model.attended_rows import source_of_attended
from normprobe.run import Run

NAMED = {**BY_HAND, "projector": "connector"}
ATTENDING = {"fusion": "cross-attention"}
EVERYWHERE = groups_of(FULL, torch.ones_like(FULL))


def assert_right_beside_hooks(module: Plain, inputs: dict, groups, found: pd.DataFrame) -> None:
    """What each layer takes and returns, by hooks of our own; pictures stand at layer 0 alone."""
    seen: list[Layer] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(Layer(*(t.detach().double().numpy() for t in (args[0], output))))

    handles = [block.register_forward_hook(keep) for block in module.blocks]
    with torch.no_grad():
        module(**inputs)
        attended = module.connector(module.vision(inputs["image"])).double().numpy()
    for handle in handles:
        handle.remove()
    measured = flat(found).set_index(["layer", "group"])
    pictured = measured.loc[(0, schema.VISUAL)]
    norms = np.linalg.norm(attended, axis=-1)
    assert pictured["tokens"] == norms.size
    assert pictured["norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
    expected = layers_table(observe_layers(States(seen), groups))
    assert set(measured.index) == {*expected, (0, schema.VISUAL)}
    for key, row in expected.items():
        names = [n for n in row if n.endswith("_mean") and key[0] and not n.startswith("pooled")]
        for name in [*names, "norm_mean"]:
            assert measured.loc[key, name] == pytest.approx(row[name], rel=1e-6, abs=1e-7), key


class Packed(Plain):
    """As training code: all prompts stand in one row of tokens, and see none of the others."""

    axes = 3

    def forward(self, tokens: Tensor, image: Tensor, mask: Tensor | None = None) -> Tensor:
        kept = (torch.ones_like(tokens) if mask is None else mask).bool()
        rows = self.connector(self.vision(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)[kept]
        prompt = torch.arange(len(tokens))[:, None].expand(tokens.shape)[kept]
        sees = (prompt[:, None] == prompt).tril()
        if self.axes == 3:
            x, sees = x[None], sees[None]
        self.seen = [x.detach().double().numpy()]
        for block in self.blocks:
            x = block(x, sees)
            self.seen.append(x.detach().double().numpy())
        return x


class PackedIds(Packed):
    def forward(self, input_ids: Tensor, image: Tensor) -> Tensor:
        return super().forward(input_ids, image)


@pytest.mark.parametrize("named", [None, NAMED])
def test_one_prompt_of_a_packed_row(named: dict[str, str] | None) -> None:
    module, inputs = made(PackedIds), {"input_ids": FULL[:1], "image": pictures(1)}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, EVERYWHERE[:1], run.table)


@pytest.mark.parametrize("padded", [False, True])
def test_prompts_that_are_packed_into_one_row(padded: bool) -> None:
    """The last token of each prompt is seen by itself alone, and is no padding."""
    module, inputs, groups = made(Packed), {"tokens": FULL, "image": pictures(2)}, EVERYWHERE
    if padded:
        inputs |= {"tokens": PADDED, "mask": PADDED_MASK}
        groups = groups_of(PADDED, PADDED_MASK)
    in_a_row = np.array([[group for group in chain(*groups) if group]])
    run = Probe(module, named=NAMED, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, in_a_row, run.table)


def test_packed_ids_are_measured_one_by_one() -> None:
    inputs = {"input_ids": FULL, "image": pictures(2)}
    with pytest.raises(NormprobeError, match="packed inside the model") as raised:
        Probe(made(PackedIds), named=NAMED).layers(inputs)
    assert "--batch-size 1" in raised.value.remedy


class RowsAlone(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        return super().forward(x[None], mask[None])[0]


def test_rows_without_an_axis_of_samples_are_refused() -> None:
    module = made(Packed)
    module.axes = 2
    module.blocks = nn.ModuleList(RowsAlone(WIDTH) for _ in range(3)).eval()
    inputs = {"tokens": FULL, "image": pictures(2)}
    for more in ({}, {"visual_mask": torch.ones(2, 14, dtype=torch.bool)}):
        with pytest.raises(
            NormprobeError, match=r"receives \[28, 32\]: expected \[batch"
        ) as raised:
            Probe(module, named=NAMED).layers({**inputs, **more})
    assert "x[None]" in raised.value.remedy


class Remembering(Block):
    """Learned keys stand before those of the rows, as of prefix tuning."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.past = nn.Parameter(torch.randn(1, 4, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        read = self.norm1(x)
        keys = torch.cat([self.past.expand(len(x), -1, -1), read], 1)
        hidden = nn.functional.pad(~mask, (4, 0)).repeat_interleave(4, 0)
        x = x + self.attend(read, keys, keys, attn_mask=hidden, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


@pytest.mark.parametrize("named", [None, NAMED])
def test_keys_of_prefix_tuning_are_no_rows(named: dict[str, str] | None) -> None:
    module, inputs = made(Plain), {"tokens": FULL, "image": pictures(2)}
    module.blocks = nn.ModuleList(Remembering(WIDTH) for _ in range(4)).eval()
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, EVERYWHERE, run.table)


class Twice(Plain):
    """The picture runs through the layers before the text does."""

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen = self.think(self.connector(self.vision(image)), None)
        return self.think(self.words(tokens), None) + seen.mean()


@pytest.mark.parametrize(
    ("named", "problem"), [(NAMED, "runs 2 times in one forward"), (None, "when it first runs")]
)
def test_a_picture_that_runs_before_the_text_is_refused(named, problem: str) -> None:
    with pytest.raises(NormprobeError, match=problem):
        Probe(made(Twice), named=named).layers({"tokens": WORDS, "image": pictures(2)})


class Reading(Block):
    def forward(self, x: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Seeing(Block):
    def forward(self, x: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        x = x + self.attend(self.norm1(x), seen, seen, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Interleaved(Plain):
    """Every second layer attends to the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList((Reading, Seeing)[n % 2](WIDTH) for n in range(4))

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen, x = self.connector(self.vision(image)), self.words(tokens)
        for block in self.blocks:
            x = block(x, seen)
        return self.head(x)


class LooksBehind(TwoLists):
    """As ``TwoLists``, but text attends to the picture behind each of its layers."""

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen, x = self.connector(self.vision(image)), self.words(tokens)
        for look, block in zip(self.xattn, self.blocks, strict=True):
            x = look(block(x), seen)
        return x


@pytest.mark.parametrize("named", [None, {**BY_HAND, **ATTENDING}, {**NAMED, **ATTENDING}])
@pytest.mark.parametrize("kind", [Interleaved, LooksBehind])
def test_layers_between_which_text_looks_at_a_picture(kind: type[Plain], named) -> None:
    """Where a list of its own does, its turn is not seen, and that is said."""
    module, inputs = made(kind), {"tokens": WORDS, "image": pictures(2)}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    groups = groups_of(WORDS, torch.ones_like(WORDS))
    assert_right_beside_hooks(module, inputs, groups, run.table)
    doubts = " ".join(run.record.get("doubts", []))
    assert ("let one module hold both" in doubts) == (kind is LooksBehind)
    assert "a trace found" not in doubts


class Prefixed(Interleaved):
    """As LLaMA-Adapter: rows are normed behind the projector, and a learned prefix is added."""

    def __init__(self) -> None:
        super().__init__()
        self.behind = nn.LayerNorm(WIDTH)
        nn.init.uniform_(self.behind.weight, 2.0, 4.0)
        self.prefix = nn.Parameter(3 * torch.randn(4, WIDTH))

    def attended(self, image: Tensor) -> Tensor:
        return self.behind(self.connector(self.vision(image))) + self.prefix

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        seen, x = self.attended(image), self.words(tokens)
        for block in self.blocks:
            x = block(x, seen)
        return self.head(x)


class NormedBehind(Prefixed):
    def attended(self, image: Tensor) -> Tensor:
        return self.behind(self.connector(self.vision(image)))


class Mixed(Prefixed):
    """No module hands over what text attends to."""

    def attended(self, image: Tensor) -> Tensor:
        rows = self.behind(self.connector(self.vision(image)))
        return rows.roll(1, 1) * rows


def attended_norms(module: Interleaved, part: str, image: Tensor) -> np.ndarray:
    """Of the rows that a module hands over, and of those that the layers get."""
    seen: dict[str, np.ndarray] = {}
    handles = [
        module.get_submodule(part).register_forward_hook(
            lambda _, args, output: seen.update(part=output.double().numpy())
        ),
        module.blocks[1].register_forward_pre_hook(
            lambda _, args: seen.update(layer=args[1].double().numpy())
        ),
    ]
    with torch.no_grad():
        module(WORDS, image)
    for handle in handles:
        handle.remove()
    return np.array([np.linalg.norm(seen[key], axis=-1) for key in ("part", "layer")])


def run_beside_norms(kind: type[Plain], named) -> tuple[Run, float, np.ndarray, np.ndarray]:
    """A run, its mean norm of pictures at layer 0, and norms behind ``behind`` and in a layer."""
    module, inputs = made(kind), {"tokens": WORDS, "image": pictures(2)}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    handed, attended = attended_norms(module, "behind", inputs["image"])
    measured = flat(run.table).set_index(["layer", "group"]).loc[(0, schema.VISUAL)]
    return run, measured["norm_mean"], handed, attended


@pytest.mark.parametrize("named", [None, {**BY_HAND, **ATTENDING}])
def test_a_norm_between_the_projector_and_what_text_attends_to(named) -> None:
    run, measured, handed, attended = run_beside_norms(NormedBehind, named)
    assert measured == pytest.approx(attended.mean(), rel=1e-6)
    assert run.record["parts"]["projector"] == "behind"
    np.testing.assert_array_equal(handed, attended)


@pytest.mark.parametrize("named", [None, {**BY_HAND, **ATTENDING}])
def test_what_is_added_to_rows_that_text_attends_to_is_said(named) -> None:
    run, measured, handed, attended = run_beside_norms(Prefixed, named)
    assert measured == pytest.approx(handed.mean(), rel=1e-6)
    said = " ".join(run.record["doubts"])
    assert "the rows of behind, scaled or with something added" in said
    # The median of torch is the lower of the two in the middle.
    for norms in (attended, handed):
        assert f"{np.quantile(norms, 0.5, method='lower'):.3g}" in said


class Merging(Interleaved):
    """The projector is inside of the tower (Vamba, of Qwen2-VL)."""

    def __init__(self) -> None:
        super().__init__()
        self.vision.merger = self.connector
        self.connector = nn.Identity()
        self.vision.forward = self.merged

    def merged(self, image: Tensor) -> Tensor:
        return self.vision.merger(Eye.forward(self.vision, image))


def test_rows_of_a_projector_inside_the_tower_are_those_that_text_attends_to() -> None:
    named = {**NAMED, **ATTENDING, "vision_encoder": "vision", "projector": "vision.merger"}
    inputs = {"tokens": WORDS, "image": pictures(2)}
    run = Probe(made(Merging), named=named, special_token_ids=SPECIAL).layers(inputs)
    assert not run.record.get("doubts")
    assert run.record["parts"]["projector"] == "vision.merger"


def test_a_projector_that_attention_alone_shows_is_no_doubt() -> None:
    """InfiMM's perceiver: nothing else tells it, and its rows are those that text attends to."""
    module, inputs = made(Interleaved), {"tokens": WORDS, "image": pictures(2)}
    parts = find_parts(module, named={**NAMED, **ATTENDING, "vision_encoder": "vision"})
    parts = replace(parts, projector=None, named=frozenset())
    layers = [*parts.decoder_layers.module]
    assert source_of_attended(module, parts, layers, inputs) == ("connector", "")


def test_rows_that_no_module_hands_over_to_text_are_refused() -> None:
    inputs = {"tokens": WORDS, "image": pictures(2)}
    problem = "text attends to other rows than (behind|connector) hands over"
    with pytest.raises(NormprobeError, match=problem) as raised:
        Probe(made(Mixed), named={**BY_HAND, **ATTENDING}).layers(inputs)
    assert "--part projector=NAME" in raised.value.remedy

    named = {**NAMED, **ATTENDING}
    run = Probe(made(Mixed), named=named, special_token_ids=SPECIAL).layers(inputs)
    assert re.search(problem, " ".join(run.record["doubts"]))


def test_what_text_attends_to_is_not_looked_at_where_layers_are_not_read() -> None:
    """`interface` reads the weights before decoder layer 1 alone (mPLUG-Owl3)."""
    module, inputs = made(Interleaved), {"tokens": WORDS, "image": pictures(2)}
    module.blocks[1:].to("meta")
    told = "was not looked at, for not all decoder layers are read; `normprobe layers` reads them"
    named = {**NAMED, **ATTENDING}
    run = Probe(module, named=named, special_token_ids=SPECIAL).interface(inputs)
    assert told in " ".join(run.record["doubts"])
    run = Probe(made(Interleaved), named=named, special_token_ids=SPECIAL).interface(inputs)
    assert not run.record.get("doubts")


def test_a_picture_that_no_row_holds_may_be_attended_to() -> None:
    with pytest.raises(NormprobeError, match="other pixels change no row") as raised:
        Probe(made(Interleaved), named=NAMED).layers({"tokens": WORDS, "image": pictures(2)})
    assert "--part fusion=cross-attention" in raised.value.remedy


def test_a_projector_that_never_runs_is_no_source_of_what_is_attended_to() -> None:
    named = {**NAMED, **ATTENDING, "projector": "head"}
    inputs = {"tokens": WORDS, "image": pictures(2)}

    with pytest.raises(NormprobeError, match="taken for the projector hands over nothing") as e:
        Probe(made(Interleaved), named=named, special_token_ids=SPECIAL).layers(inputs)
    assert "--part projector=NAME" in e.value.remedy


class Resampling(Plain):
    """All latents read the text beside the picture, and take the places of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, WIDTH))
        self.read = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        words = self.words(tokens)
        told = torch.cat([self.connector(self.vision(image)), words], 1)
        asked = self.latents.expand(len(tokens), -1, -1)
        rows = asked + self.read(asked, told, told, need_weights=False)[0]
        return self.think(words.masked_scatter((tokens == self.place).unsqueeze(-1), rows), None)


@pytest.mark.parametrize("named", [None, BY_HAND])
def test_latents_that_read_text_in_a_pictures_place(named: dict[str, str] | None) -> None:
    module, inputs = made(Resampling), {"tokens": FULL, "image": pictures(2)}
    run = Probe(module, named=named, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, EVERYWHERE, run.table)


@pytest.mark.parametrize("at", ["apart", "in place"])
def test_early_fusion_with_no_part_named(at: str) -> None:
    ids = FULL if at == "in place" else WORDS
    module, inputs = made(Tokenizing), {"ids": ids, "image": pictures(2)}
    module.at = at
    groups = groups_of(ids, torch.ones_like(ids))
    if at == "apart":
        groups = np.concatenate([np.full((2, 4), schema.VISUAL, dtype="<U16"), groups], 1)
    run = Probe(module, special_token_ids=SPECIAL).layers(inputs)
    assert_right(module, inputs, groups, run.table)


class LoopOfTwo(Plain):
    """As SmolVLA and openpi: a loop calls norms and attention of two decoders, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.ModuleList(Block(WIDTH) for _ in self.blocks)
        self.actions = nn.Linear(7, WIDTH)

    def forward(self, tokens: Tensor, image: Tensor, actions: Tensor) -> Tensor:
        rows = self.connector(self.vision(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        acting, seen = self.actions(actions), x.shape[1]
        for block, own in zip(self.blocks, self.expert, strict=True):
            read = torch.cat([block.norm1(x), own.norm1(acting)], 1)
            written = block.attend(read, read, read, need_weights=False)[0]
            x, acting = x + written[:, :seen], acting + written[:, seen:]
            x = x + block.mlp(block.norm2(x))
            acting = acting + own.mlp(own.norm2(acting))
        return acting


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (None, "never called, while what is inside is: layers of blocks, expert"),
        (
            NAMED,
            r"without a call of blocks\.0: it calls what is inside \(attend, mlp, norm1, norm2\)",
        ),
    ],
)
def test_layers_that_are_never_called_are_refused_in_these_words(named, problem: str) -> None:
    module = made(LoopOfTwo)
    inputs = {"tokens": FULL, "image": pictures(2), "actions": torch.randn(2, 3, 7)}
    with pytest.raises(NormprobeError, match=problem):
        Probe(module, named=named).layers(inputs)


class WholeEye(Eye):
    """Returns its class row, too."""

    def forward(self, pixels: Tensor) -> Tensor:
        x = torch.cat(
            [self.cls_token.expand(len(pixels), -1, -1), self.cut(pixels).flatten(2).mT], 1
        )
        for block in self.blocks:
            x = block(x)
        return x


class Framed(Plain):
    """As Valley: class rows stand for frames, and zeros are projected for lack of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = WholeEye()

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        rows = self.connector(self.vision(image)).roll(-1, 1)
        nothing = self.connector(rows.new_zeros(32, EYE))
        x = self.words(tokens) + 0.0 * nothing.sum()
        return self.think(x.masked_scatter((tokens == self.place).unsqueeze(-1), rows), None)


@pytest.mark.parametrize("named", [None, NAMED, {**NAMED, "vision_encoder": "vision"}])
def test_a_class_row_in_the_decoder_and_zeros_that_are_projected(named) -> None:
    module = made(Framed)
    prompt = [1, 8, 4, *[Plain.place] * 5, 9, 11, 12, 2]
    tokens = torch.tensor([prompt, [*prompt[:1], 13, *prompt[2:]]])
    inputs = {"tokens": tokens, "image": pictures(2)}
    probe = Probe(module, named=named, special_token_ids=SPECIAL)
    run = probe.layers(inputs)
    assert_right(module, inputs, groups_of(tokens, torch.ones_like(tokens)), run.table)
    assert not run.record.get("doubts")
    handed = flat(probe.interface(inputs).table).set_index(["stage", "group"])
    with torch.no_grad():
        rows = module.connector(module.vision(pictures(2))).double()
    projected = handed.loc[("projector_output", schema.VISUAL)]
    assert projected["tokens"] == 10
    assert projected["norm_mean"] == pytest.approx(float(rows.norm(dim=-1).mean()), rel=1e-6)
