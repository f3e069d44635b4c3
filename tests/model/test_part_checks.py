"""Parts that are guessed wrong: what takes their place, what is left out, and what is said."""

from typing import Any

import pandas as pd
import pytest
import torch
from support.plain_modules import EYE, Eye, Plain, made
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch import nn
from transformers import LlavaForConditionalGeneration, Qwen2VLForConditionalGeneration

from normprobe import NormprobeError, Probe, find_parts, probe_layers
from normprobe.model import part_checks
from normprobe.tidy import select


def llava_with(**children: nn.Module) -> nn.Module:
    """A LLaVA with more modules beside its projector; the last one is taken for it."""
    model = tiny_model("llava")
    for name, child in children.items():
        model.model.add_module(name, child)
    return model


def observed() -> nn.Module:
    """A LLaVA whose last module beside the projector reads the tower, and hands on nothing."""
    model = llava_with(observer=nn.Linear(32, tiny_model("llava").config.text_config.hidden_size))

    def observe(tower: nn.Module, arguments: object, output: Any) -> None:
        model.model.observer(output.last_hidden_state[:, 1:])

    model.model.vision_tower.register_forward_hook(observe)
    return model


WRONG_GUESSES = [
    (lambda: llava_with(reward=nn.Linear(32, 64)), "hands over nothing"),
    # A table of places, as LLaVA-ST's: that of visual tokens is no stage then.
    (lambda: llava_with(places=nn.Embedding(9, 64)), "hands over nothing"),
    (observed, "other rows than enter the decoder"),
]


@pytest.mark.parametrize("make", [make for make, _ in WRONG_GUESSES])
def test_a_guess_that_fails_its_check_is_followed_by_what_stands_beside(make) -> None:
    """All visual tokens are rows of it: no doubt is left."""
    model, plain = make(), llava_with()
    inputs = tiny_inputs(model)
    run = Probe(model).interface(inputs)
    assert "doubts" not in run.record
    assert run.record["parts_found_by"] == "structure"
    assert run.record["parts"]["projector"] == "model.multi_modal_projector"
    pd.testing.assert_frame_equal(run.table, Probe(plain).interface(inputs).table)
    pd.testing.assert_frame_equal(probe_layers(model, inputs), probe_layers(plain, inputs))


@pytest.mark.parametrize(("make", "does"), WRONG_GUESSES)
def test_a_guess_that_fails_its_check_is_followed_by_a_trace(
    make, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no other module stands beside the encoder."""
    monkeypatch.setattr(part_checks, "other_projectors", lambda *_: [])
    model, plain = make(), llava_with()
    inputs = tiny_inputs(model)
    guess = find_parts(model).projector.name
    run = Probe(model).interface(inputs)
    (doubt,) = run.record["doubts"]
    assert f"{guess} looks like no projector: it" in doubt
    assert does in doubt
    assert doubt.endswith("a trace found model.multi_modal_projector")
    assert run.record["parts_found_by"] == "trace"
    assert run.record["parts"]["projector"] == "model.multi_modal_projector"
    pd.testing.assert_frame_equal(run.table, Probe(plain).interface(inputs).table)
    rows = probe_layers(model, inputs)
    pd.testing.assert_frame_equal(rows, probe_layers(plain, inputs))


@pytest.mark.parametrize(("make", "does"), WRONG_GUESSES)
def test_a_guess_that_nothing_replaces_is_left_out(
    make, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a trace finds no other part: all else is as it was, and it is said (ViLAMP's clips)."""
    monkeypatch.setattr(part_checks, "retraced", lambda *_: None)
    monkeypatch.setattr(part_checks, "other_projectors", lambda *_: [])
    model, plain = make(), llava_with()
    inputs = tiny_inputs(model)
    guess = find_parts(model).projector.name
    probe = Probe(model, special_token_ids=SPECIAL_IDS)
    for _ in range(2):
        run = probe.interface(inputs)
        (doubt,) = run.record["doubts"]
        assert f"{guess} looks like no projector: it" in doubt and does in doubt
        assert "its stages are left out: " in doubt and "--part projector=NAME" in doubt
        hidden = "where its forward is called by name, which no hook sees"
        assert (hidden in doubt) == does.startswith("hands over nothing")
        assert "projector" not in run.record["parts"]
        right = Probe(plain, special_token_ids=SPECIAL_IDS).interface(inputs).table
        norms = select(right[~right["stage"].str.startswith("projector")], "norm")
        kept = ["stage", "group", "tokens", "mean", "std"]
        pd.testing.assert_frame_equal(
            *(each[kept].reset_index(drop=True) for each in (select(run.table, "norm"), norms))
        )
    layers = [Probe(each, special_token_ids=SPECIAL_IDS).layers(inputs) for each in (model, plain)]
    pd.testing.assert_frame_equal(layers[0].table, layers[1].table)
    assert layers[0].record["doubts"] == [doubt] and not layers[1].record.get("doubts")


@pytest.mark.parametrize(
    ("own", "rows", "doubted"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_positions_without_rows_and_columns_are_a_doubt(
    own: bool, rows: bool, doubted: bool
) -> None:
    """DexVLA makes those of pictures outside of its forward alone."""
    model = tiny_model("qwen2_vl")
    inputs = tiny_inputs(model)
    places = torch.arange(inputs["input_ids"].shape[1]).expand(3, len(inputs["input_ids"]), -1)
    if rows:
        places = places * torch.tensor([1, 2, 2])[:, None, None]

    def give(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "position_ids": places}

    if own:
        model.__class__ = type("Own", (type(model),), {"forward": of_its_own})
    layers = model.model.language_model.layers
    layers[0].register_forward_pre_hook(give, with_kwargs=True)
    told = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs).record.get("doubts", [])
    assert any("the same positions on all axes" in each for each in told) == doubted


@pytest.mark.parametrize(
    ("version", "stride", "doubted"),
    [("v2pe_fix", 1, True), ("v2pe_fix", 0.5, False), ("default", 1, False), (None, 1, False)],
)
def test_positions_that_a_config_asks_for_and_nothing_makes_are_a_doubt(
    version: str | None, stride: float, doubted: bool
) -> None:
    """V2PE makes those of pictures in its chat() alone."""
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    places = stride * torch.arange(inputs["input_ids"].shape[1])[None]
    model.config.rope_pos_id_version = version
    model.__class__ = type("Own", (type(model),), {"forward": of_llava})

    def give(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "position_ids": places}

    layers = model.model.language_model.layers
    layers[0].register_forward_pre_hook(give, with_kwargs=True)
    told = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs).record.get("doubts", [])
    assert any("rope_pos_id_version v2pe_fix" in each for each in told) == doubted


class TwoAside(Plain):
    """Beside its tower and projector there are two modules that are neither."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.aside = nn.Linear(24, 24), nn.Linear(24, 16)

    def squares(self, image: torch.Tensor) -> torch.Tensor:
        rows = super().squares(image)
        self.aside(rows)
        return rows


@pytest.mark.parametrize("behind", ["", "adds positions"])
@pytest.mark.parametrize("projector", ["aside", "connector"])
def test_a_projector_behind_a_doubtful_encoder_is_looked_at_too(
    projector: str, behind: str
) -> None:
    """ColFlor's was a table of places, behind a tower whose forward is never called."""
    named = {"vision_encoder": "idle", "projector": projector}
    named |= {"decoder_layers": "blocks", "text_embedding": "words", "behind": behind}
    module = made(TwoAside)
    pictures = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2], [1, 4, 12, 3, 3, 3, 3, 5, 13, 2]])
    run = Probe(module, named=named).interface({"tokens": ids, "image": pictures})
    doubts = " ".join(run.record["doubts"])
    assert "idle looks like no vision encoder" in doubts
    assert ("aside looks like no projector, too: it hands over" in doubts) == (projector == "aside")


def of_llava(self: Any, **inputs: Any) -> Any:
    return LlavaForConditionalGeneration.forward(self, **inputs)


def of_its_own(self: Any, **inputs: Any) -> Any:
    return Qwen2VLForConditionalGeneration.forward(self, **inputs)


class Mixing(nn.Module):
    """A language model of whose first visual tokens some are means of all of them."""

    def __init__(self, visual: torch.Tensor, share: float) -> None:
        super().__init__()
        self.visual, self.share = visual, share

    def forward(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        embeds = kwargs["inputs_embeds"].clone()
        for row, there in zip(embeds, self.visual, strict=True):
            places = there.nonzero()[:, 0]
            row[places[: int(self.share * len(places))]] = row[places].mean(0)
        return args, {**kwargs, "inputs_embeds": embeds}


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_a_projector_that_makes_most_of_the_visual_tokens_is_kept(share: float) -> None:
    """VideoLISA puts means of frames beside the rows of some."""
    model = llava_with()
    inputs = tiny_inputs(model)
    expected = Probe(model, special_token_ids=SPECIAL_IDS).interface(inputs).table
    visual = inputs["input_ids"] == model.config.image_token_id
    mixing = Mixing(visual, share)
    model.model.language_model.register_forward_pre_hook(mixing, with_kwargs=True)
    run = Probe(model, special_token_ids=SPECIAL_IDS).interface(inputs)
    (doubt,) = run.record["doubts"]
    kept = [select(each, "norm", stage="projector_output") for each in (run.table, expected)]
    if share > 0.5:
        assert "its stages are left out" in doubt and not len(kept[0])
        return
    named = "model.multi_modal_projector is taken for the projector, and of the visual tokens "
    assert doubt.startswith(f"{named}that were looked at 25% are no rows of it: they are pooled")
    assert '"behind": "WORDS"' in doubt
    for column in ("group", "tokens", "mean"):
        assert len(kept[0]) and kept[0][column].tolist() == kept[1][column].tolist()


def test_a_vision_encoder_that_nothing_replaces_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All else is measured: rows of the projector tell that these are visual tokens."""
    monkeypatch.setattr(part_checks, "retraced", lambda *_: None)
    model, plain = llava_with(), llava_with()
    inputs = tiny_inputs(model)
    told = part_checks.wrong_part

    def wrong(parts: Any, *rest: Any) -> Any:
        does = "hands over 1 rows, and the projector takes 16"
        return ("vision_encoder", does) if parts.vision_encoder else told(parts, *rest)

    monkeypatch.setattr(part_checks, "wrong_part", wrong)
    run = Probe(model, special_token_ids=SPECIAL_IDS).interface(inputs)
    (doubt,) = run.record["doubts"]
    assert "looks like no vision encoder: it hands over 1 rows" in doubt
    assert "its stages are left out: " in doubt and "--part vision_encoder=NAME" in doubt
    right = Probe(plain, special_token_ids=SPECIAL_IDS).interface(inputs).table
    norms = [select(each, "norm") for each in (run.table, right)]
    norms[1] = norms[1][norms[1]["stage"] != "vision_encoder"]
    kept = ["stage", "group", "tokens", "mean", "std"]
    pd.testing.assert_frame_equal(*(each[kept].reset_index(drop=True) for each in norms))


def test_a_vision_encoder_beside_no_projector_is_refused_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_checks, "retraced", lambda *_: None)
    wrong = ("vision_encoder", "hands over 1 rows, and the projector takes 16")
    monkeypatch.setattr(part_checks, "wrong_part", lambda *_: wrong)
    probe = Probe(llava_with(), special_token_ids=SPECIAL_IDS)
    for _ in range(2):
        with pytest.raises(NormprobeError, match="looks like no vision encoder: it hands") as e:
            probe.layers(tiny_inputs(tiny_model("llava")))
        assert "--part vision_encoder=NAME" in e.value.remedy


def test_where_weights_are_left_out_a_trace_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """`interface` reads no decoder layers, and no trace runs without them (MoE-LLaVA)."""
    monkeypatch.setattr(part_checks, "other_projectors", lambda *_: [])
    model = llava_with(reward=nn.Linear(32, 64))
    model.model.language_model.layers.to("meta")
    (doubt,) = Probe(model).interface(tiny_inputs(model)).record["doubts"]
    assert "model.reward looks like no projector" in doubt
    assert "add --verify: all weights are read then, and a trace looks for it" in doubt


class WithPositions(nn.Module):
    """A language model that adds learned positions to all that enters it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(64, model.config.text_config.hidden_size))

    def forward(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        embeds = kwargs["inputs_embeds"]
        return args, {**kwargs, "inputs_embeds": embeds + self.positions[: embeds.shape[1]]}


def test_positions_that_are_added_behind_the_projector_cancel() -> None:
    model = llava_with()
    model.model.language_model.register_forward_pre_hook(WithPositions(model), with_kwargs=True)
    inputs = tiny_inputs(model)
    run = Probe(model, special_token_ids=SPECIAL_IDS).interface(inputs)
    assert not run.record.get("doubts")
    tokens = select(run.table, "norm", stage="projector_output")["tokens"]
    assert tokens.iloc[0] == int((inputs["input_ids"] == model.config.image_token_id).sum())


def test_a_part_named_by_hand_is_doubted_not_refused() -> None:
    model = llava_with()
    named = {"projector": "model.multi_modal_projector.linear_1"}
    run = Probe(model, named=named, special_token_ids=SPECIAL_IDS).layers(tiny_inputs(model))
    (doubt,) = run.record["doubts"]
    assert "linear_1, named by hand, hands over other rows than enter" in doubt
    assert doubt.endswith('say how: "behind": "WORDS" in parts of an --inputs file')
    right = Probe(model, special_token_ids=SPECIAL_IDS).layers(tiny_inputs(model))
    assert not right.record.get("doubts")
    norms, by_hand = (select(each.table, "norm") for each in (right, run))
    assert len(norms) and norms["mean"].equals(by_hand["mean"])


class Called(Eye):
    """As a tower of timm: code calls what makes its rows by name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(EYE)

    def forward_features(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.cut(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        raise AssertionError


class CallingByName(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Module()
        self.tower.eye, self.vision = Called(), nn.Identity()
        self.get_encoder = lambda modality=None: self.tower.eye

    def rows(self, image: torch.Tensor) -> torch.Tensor:
        return self.tower.eye.forward_features(image)[:, 1:]

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(self.rows(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        return self.think(x, None)


NAMED_INSIDE = {"vision_encoder": "tower.eye.norm"}


@pytest.mark.parametrize("named", [{}, {"vision_encoder": "tower.eye"}, NAMED_INSIDE])
def test_an_encoder_whose_rows_are_made_by_name_is_read_inside(
    named: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm whose rows the projector takes, whatever is named: OmniLMM, VisRAG."""
    monkeypatch.setattr(part_checks, "retraced", lambda *_: None)
    module = made(CallingByName)
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2]])
    image = torch.randn(1, 3, 8, 8)
    parts = {"decoder_layers": "blocks", "text_embedding": "words"}
    parts |= {} if named == NAMED_INSIDE else {"projector": "connector"}
    run = Probe(module, named={**parts, **named}).interface({"tokens": ids, "image": image})
    if named == {"vision_encoder": "tower.eye"}:  # by hand: what is named is not replaced
        assert "looks like no vision encoder, as it was named by hand" in run.record["doubts"][0]
        return
    assert run.record["parts"]["projector"] == "connector"
    assert run.record["parts"]["vision_encoder"] == "tower.eye.norm"
    assert not run.record.get("doubts")
    norms = select(run.table, "norm").set_index(["stage", "group"])
    with torch.no_grad():
        expected = module.rows(image).double().norm(dim=-1)
    for stage in ("vision_encoder", "projector_input"):
        row = norms.loc[(stage, "visual")]
        assert row["tokens"] == expected.numel()
        assert row["mean"] == pytest.approx(expected.mean().item(), 1e-6)


class Whole(Eye):
    """Its class row is handed over, and the projector does not take it."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.cut(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return x


class Leaving(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision = Whole()

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(self.vision(image)[:, 1:])
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        return self.think(x, None)


@pytest.mark.parametrize("class_rows", [None, 1, 0])
def test_a_class_row_that_is_not_projected_is_no_visual_one(class_rows: int | None) -> None:
    """Said to be none, it is in doubt (CXR-LLaVA)."""
    named = {} if class_rows is None else {"class_rows": class_rows}
    module = made(Leaving)
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2]])
    run = Probe(module, named=named).interface({"tokens": ids, "image": torch.randn(1, 3, 8, 8)})
    norms = select(run.table, "norm").set_index(["stage", "group"])
    assert norms.loc[("vision_encoder", "visual"), "tokens"] == (5 if class_rows == 0 else 4)
    told = "vision hands over 5 rows that count as visual, and the projector takes 4"
    assert (told in " ".join(run.record.get("doubts", []))) == (class_rows == 0)


def test_several_names_for_one_part_are_refused() -> None:
    """Of 360VL's two projectors one was taken in silence."""
    with pytest.raises(NormprobeError, match="projector is the name of one module"):
        Probe(made(Plain), named={"projector": ("connector", "head")}).interface({})


class MixingEarly(Plain):
    """Rows see each other before the layers that are measured (HaploVL, by halves)."""

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(self.vision(image))
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        return self.think(x + x.mean(1, keepdim=True), None)


def test_rows_that_all_pixels_change_do_not_tell_learned_ones() -> None:
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2]])
    inputs = {"tokens": ids, "image": torch.randn(1, 3, 8, 8), "visual_mask": ids == 3}
    told = "other pixels change every row at the decoder input of MixingEarly: no row shows that"
    for more in ({}, {"structural_mask": torch.zeros_like(ids, dtype=torch.bool)}):
        run = Probe(made(MixingEarly)).layers({**inputs, **more})
        assert (told in " ".join(run.record.get("doubts", []))) == (not more)


class WholeFirst(Whole):
    """Rows come first, and pictures after them, as in an older tower of CLIP (CXR-LLaVA)."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels).transpose(0, 1)


class LeavingFirst(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision = WholeFirst()

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(self.vision(image).transpose(0, 1)[:, 1:])
        x = self.words(tokens).masked_scatter((tokens == self.place).unsqueeze(-1), rows)
        return self.think(x, None)


def test_class_rows_that_no_projector_takes_do_not_enter_the_decoder() -> None:
    """They counted as visual, without a word. What hands them over inside the tower is read."""
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2]])
    run = Probe(made(LeavingFirst)).interface({"tokens": ids, "image": torch.randn(1, 3, 8, 8)})
    norms = select(run.table, "norm").set_index(["stage", "group"])["tokens"]
    assert norms["vision_encoder", "visual"] == 4 and norms["vision_encoder", "special"] == 1
    assert not run.record.get("doubts")
