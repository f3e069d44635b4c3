"""Home-made models whose parts are known because they are made here, under odd names.

A toy reads ``tokens`` and a ``picture``, and writes or shows the picture to its spine in one way.
"""

import pandas as pd
import pytest
import torch
from support.flat import flat
from torch import Tensor, nn

from normprobe import Probe
from normprobe.errors import NormprobeError
from normprobe.model.find.parts import Part, Parts
from normprobe.model.tracing.trace import (
    ROLES,
    TracedParts,
    find_or_trace,
    trace_parts,
    verify,
)

WORDS, EYE, SPINE = 40, 24, 32
PICTURE = 3  # the placeholder
PATCHES = 6


class Rung(nn.Module):
    """A block that mixes its tokens forwards in time. It returns a tuple."""

    def __init__(self, width: int, scenery: bool = False) -> None:
        super().__init__()
        self.calm = nn.LayerNorm(width)
        self.work = nn.Linear(width, width)
        self.look = nn.Linear(width, width) if scenery else None

    def forward(self, *, flow: Tensor, scenery: Tensor | None = None) -> tuple[Tensor, None]:
        steps = torch.arange(1, flow.shape[1] + 1).view(1, -1, 1)
        flow = flow + self.work(self.calm(flow)).cumsum(1) / steps
        if self.look is not None:
            flow = flow + self.look(scenery).mean(1, keepdim=True)
        return flow, None


class Eye(nn.Module):
    """An encoder; with a knot, the projector is inside it."""

    def __init__(self, knot: nn.Module | None = None) -> None:
        super().__init__()
        self.lens = nn.Linear(12, EYE)
        self.rods = nn.ModuleList(Rung(EYE) for _ in range(3))
        self.calm = nn.LayerNorm(EYE)
        self.knot = knot

    def forward(self, picture: Tensor) -> Tensor:
        flow = self.lens(picture)
        for rod in self.rods:
            flow, _ = rod(flow=flow)
        flow = self.calm(flow)
        return flow if self.knot is None else self.knot(flow)


class Knot(nn.Module):
    """Joins two patches into one token."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2 * EYE, SPINE)
        self.down = nn.Linear(SPINE, SPINE)

    def forward(self, flow: Tensor) -> Tensor:
        pairs = flow.reshape(len(flow), -1, 2 * EYE)
        return self.down(torch.tanh(self.up(pairs)))


class Toy(nn.Module):
    """Writes the output of ``bridge`` in place of the placeholders."""

    scenery = False
    visual_tokens = PATCHES

    def __init__(self) -> None:
        super().__init__()
        self.eye = self.make_eye()
        self.bridge = self.make_bridge()
        self.lexicon = nn.Embedding(WORDS, SPINE)
        self.spine = nn.ModuleList(Rung(SPINE, self.scenery) for _ in range(4))
        self.mouth = nn.Linear(SPINE, WORDS)

    def make_eye(self) -> nn.Module:
        return Eye()

    def make_bridge(self) -> nn.Module:
        return nn.Sequential(nn.Linear(EYE, SPINE), nn.Tanh(), nn.Linear(SPINE, SPINE))

    def seen(self, picture: Tensor) -> Tensor:
        return self.bridge(self.eye(picture))

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        here = (tokens == PICTURE).unsqueeze(-1)
        return self.lexicon(tokens).masked_scatter(here, visual)

    def climb(self, flow: Tensor, visual: Tensor, tokens: Tensor) -> Tensor:
        for rung in self.spine:
            flow, _ = rung(flow=flow)
        return flow

    def forward(self, tokens: Tensor, picture: Tensor) -> dict[str, Tensor]:
        visual = self.seen(picture)
        return {"odds": self.mouth(self.climb(self.write(tokens, visual), visual, tokens))}


class InTower(Toy):
    visual_tokens = PATCHES // 2

    def make_eye(self) -> nn.Module:
        return Eye(Knot())

    def make_bridge(self) -> nn.Module:
        return nn.Identity()


class Stemmed(Toy):
    """Light blocks cut the patches; they are a list that sees the pixels first."""

    class Cutter(Eye):
        def __init__(self) -> None:
            super().__init__()
            self.cuts = nn.ModuleList(nn.Sequential(nn.LayerNorm(12)) for _ in range(3))

        def forward(self, picture: Tensor) -> Tensor:
            for cut in self.cuts:
                picture = cut(picture)
            return super().forward(picture)

    def make_eye(self) -> nn.Module:
        return self.Cutter()


class DeepStack(Toy):
    """The second layer reads a sum, the third does not, the fourth does."""

    def climb(self, flow: Tensor, visual: Tensor, tokens: Tensor) -> Tensor:
        for index, rung in enumerate(self.spine):
            if index in (1, 3):
                flow[tokens == PICTURE] += 0.5 * visual.flatten(0, 1)
            flow, _ = rung(flow=flow)
        return flow


class CrossAttention(Toy):
    scenery = True
    visual_tokens = 0

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        return self.lexicon(tokens)

    def climb(self, flow: Tensor, visual: Tensor, tokens: Tensor) -> Tensor:
        for rung in self.spine:
            flow, _ = rung(flow=flow, scenery=visual)
        return flow


class NoProjector(CrossAttention):
    """The text attends to the output of the encoder's last norm."""

    def __init__(self) -> None:
        super().__init__()
        for rung in self.spine:
            rung.look = nn.Linear(EYE, SPINE)

    def make_bridge(self) -> nn.Module:
        return nn.Identity()


class Prepended(Toy):
    visual_tokens = 0

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        return torch.cat([visual, self.lexicon(tokens)], dim=1)


class Added(Toy):
    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        flow = self.lexicon(tokens)
        return flow.masked_scatter(
            (tokens == PICTURE).unsqueeze(-1), flow[tokens == PICTURE].view_as(visual) + visual
        )


class Discrete(Toy):
    """The words from 20 on stand for bright and dark patches."""

    def seen(self, picture: Tensor) -> Tensor:
        return 20 + (20 * torch.sigmoid(self.eye(picture).mean(-1) * 9)).long().clamp(max=19)

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        return self.lexicon(tokens.masked_scatter(tokens == PICTURE, visual))


class Regrouped(Toy):
    """One long row holds two of the spine's."""

    def make_bridge(self) -> nn.Module:
        return nn.Linear(2 * EYE, 2 * SPINE)

    def seen(self, picture: Tensor) -> Tensor:
        return self.bridge(self.eye(picture).reshape(len(picture), -1, 2 * EYE))


class Dressed(Toy):
    """Visual tokens are shuffled, normed and scaled on the way, and positions are added."""

    def __init__(self) -> None:
        super().__init__()
        self.calm = nn.RMSNorm(SPINE)
        nn.init.uniform_(self.calm.weight, 0.5, 2.0)
        self.places = nn.Embedding(64, SPINE)

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        flow = super().write(tokens, 7 * self.calm(visual).flip(1))
        return flow + self.places(torch.arange(tokens.shape[1]))


class NewLines(Toy):
    """One placeholder in three gets a state that is the same for every picture."""

    visual_tokens = PATCHES + PATCHES // 2

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Parameter(torch.randn(SPINE))

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        lines = self.line.expand(len(visual), PATCHES // 2, 1, SPINE)
        pairs = visual.reshape(len(visual), PATCHES // 2, 2, SPINE)
        return super().write(tokens, torch.cat([pairs, lines], dim=2).flatten(1, 2))


class Guided(Toy):
    """Blocks that read the words beside the picture run first, and shift the odds."""

    def __init__(self) -> None:
        super().__init__()
        self.glance, self.hunch = nn.Linear(12, SPINE), nn.ModuleList(Rung(SPINE) for _ in "abc")

    def forward(self, tokens: Tensor, picture: Tensor) -> dict[str, Tensor]:
        flow = torch.cat([self.lexicon(tokens), self.glance(picture)], dim=1)
        for rung in self.hunch:
            flow, _ = rung(flow=flow)
        return {"odds": super().forward(tokens, picture)["odds"] + flow.mean()}


class OneByOne(Toy):
    """Looks prompts up one by one, another id in the place of a placeholder, as Ovis 1.6."""

    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        here = tokens == PICTURE
        words = [self.lexicon(each) for each in tokens.masked_fill(here, 0)]
        return torch.stack(words).masked_scatter(here.unsqueeze(-1), visual)


class Scored(Toy):
    """Returns its loss alone, as LAVIS does."""

    def forward(self, tokens: Tensor, picture: Tensor) -> dict[str, Tensor]:
        return {"loss": super().forward(tokens, picture)["odds"].square().mean()}


class ByMethod(Toy):
    """Calls a method of its eye, not the eye itself, as MiniCPM-V 2 does."""

    def seen(self, picture: Tensor) -> Tensor:
        return self.bridge(self.eye.forward(picture))


class Summed(ByMethod):
    """Its eye puts a class row before the patches, which goes no further."""

    class Marked(Eye):
        def __init__(self) -> None:
            super().__init__()
            self.class_token = nn.Parameter(torch.randn(1, 1, 12))

        def forward(self, picture: Tensor) -> Tensor:
            row = self.class_token.expand(len(picture), 1, 12)
            return super().forward(torch.cat([row, picture], dim=1))

    def make_eye(self) -> nn.Module:
        return self.Marked()

    def seen(self, picture: Tensor) -> Tensor:
        return self.bridge(self.eye.forward(picture)[:, 1:])


class Blind(Toy):
    def write(self, tokens: Tensor, visual: Tensor) -> Tensor:
        return self.lexicon(tokens)


def made(kind: type[Toy]) -> Toy:
    torch.manual_seed(0)
    return kind()


def inputs_of(toy: Toy) -> dict[str, Tensor]:
    """Begin, two words, begin of image, the image, end of image, four words, end."""
    tokens = [
        [1, 8 + sample, 10, 4, *[PICTURE] * toy.visual_tokens, 5, 9, 11, 12 + sample, 9, 2]
        for sample in range(2)
    ]
    return {"tokens": torch.tensor(tokens), "picture": torch.randn(2, PATCHES, 12)}


def placeholders(inputs: dict[str, Tensor]) -> Tensor:
    return inputs["tokens"] == PICTURE


@pytest.mark.parametrize(
    ("kind", "fusion", "projector", "injected"),
    [
        (Toy, "in-sequence", "bridge", ()),
        (OneByOne, "in-sequence", "bridge", ()),
        (Scored, "in-sequence", "bridge", ()),
        (InTower, "in-sequence", "eye.knot", ()),
        (Stemmed, "in-sequence", "bridge", ()),
        (DeepStack, "in-sequence", "bridge", (2, 4)),
        (CrossAttention, "cross-attention", "bridge", ()),
        (NoProjector, "cross-attention", None, ()),
        (Prepended, "prepended", "bridge", ()),
        (Added, "added", "bridge", ()),
        (Discrete, "discrete", None, ()),
        (Regrouped, "in-sequence", "bridge", ()),
        (Dressed, "in-sequence", "bridge", ()),
        (NewLines, "in-sequence", "bridge", ()),
    ],
)
def test_parts_of_a_home_made_model(kind, fusion, projector, injected):
    toy = made(kind)
    traced = trace_parts(toy, inputs_of(toy))
    assert traced.fusion == fusion
    assert traced.projector == projector
    assert traced.vision_encoder == "eye"
    assert traced.text_embedding == "lexicon"
    assert traced.decoder_layers == "spine"
    assert traced.injected_layers == injected


@pytest.mark.parametrize("kind", [Toy, CrossAttention])
def test_a_trace_is_that_of_any_default_dtype(kind):
    """Which code that makes tensors of its own may ask for (ContextDET)."""
    expected = trace_parts(made(kind), inputs_of(made(kind)))
    torch.set_default_dtype(torch.float64)
    try:
        toy = made(kind)
        traced = trace_parts(toy, inputs_of(toy))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (traced.projector, traced.fusion) == (expected.projector, expected.fusion)
    assert traced.decoder_layers == expected.decoder_layers == "spine"


@pytest.mark.parametrize("kind", [Toy, InTower, Stemmed, DeepStack, Guided])
def test_blocks_of_the_encoder_are_the_weighty_ones(kind):
    toy = made(kind)
    assert trace_parts(toy, inputs_of(toy)).encoder_layers == "eye.rods"


@pytest.mark.parametrize("kind", [Toy, InTower, DeepStack, Added, Regrouped, Dressed])
def test_visual_positions_are_the_placeholders(kind):
    toy = made(kind)
    inputs = inputs_of(toy)
    assert torch.equal(trace_parts(toy, inputs).visual_positions, placeholders(inputs))


def test_prepended_tokens_have_positions_before_the_ids():
    toy = made(Prepended)
    inputs = inputs_of(toy)
    positions = trace_parts(toy, inputs).visual_positions
    assert positions.shape == (2, PATCHES + inputs["tokens"].shape[1])
    assert positions[:, :PATCHES].all() and not positions[:, PATCHES:].any()


def test_tokens_that_pixels_do_not_change_are_not_visual():
    toy = made(NewLines)
    inputs = inputs_of(toy)
    expected = placeholders(inputs)
    expected[:, 6:13:3] = False
    assert torch.equal(trace_parts(toy, inputs).visual_positions, expected)


def test_discrete_positions_are_placeholders_whose_id_changed():
    toy = made(Discrete)
    inputs = inputs_of(toy)
    positions = trace_parts(toy, inputs).visual_positions
    assert positions.any() and not (positions & ~placeholders(inputs)).any()


def test_text_does_not_hold_visual_tokens_where_it_attends_to_them():
    toy = made(CrossAttention)
    assert trace_parts(toy, inputs_of(toy)).visual_positions is None


def test_an_image_that_is_not_read():
    toy = made(Blind)
    with pytest.raises(NormprobeError, match="the image does not reach the output of Blind"):
        trace_parts(toy, inputs_of(toy))


def test_an_output_that_is_no_number():
    toy = made(Toy)
    nn.init.constant_(toy.mouth.weight, torch.nan)
    with pytest.raises(NormprobeError, match="what Toy returns is zero, infinite or no number"):
        trace_parts(toy, inputs_of(toy))


class Trained(Toy):
    """Its forward makes a loss, of answers that it was not given (VoRA)."""

    failing_early = False

    def get_output_embeddings(self):
        return self.mouth

    def forward(self, tokens, picture):
        visual = self.seen(picture)
        if self.failing_early:
            raise ValueError("no answer")
        odds = self.mouth(self.climb(self.write(tokens, visual), visual, tokens))
        raise ValueError(f"no answer to {odds.shape}")


def test_a_loss_that_fails_behind_the_logits_is_passed_over():
    toy = made(Trained)
    traced = [trace_parts(each, inputs_of(toy)) for each in (toy, made(Toy))]
    for role in (*ROLES, "fusion"):
        assert len({getattr(each, role) for each in traced}) == 1
    assert traced[0].decoder_layers == "spine" and traced[0].projector == "bridge"
    toy.failing_early = True
    with pytest.raises(NormprobeError, match="no answer"):
        trace_parts(toy, inputs_of(toy))


def test_an_encoder_that_is_never_called_itself():
    toy = made(ByMethod)
    traced = trace_parts(toy, inputs_of(toy))
    assert (traced.vision_encoder, traced.projector) == ("eye.calm", "bridge")


@pytest.mark.parametrize(("kind", "rows"), [(ByMethod, 0), (Summed, 1)])
def test_class_rows_of_an_eye_that_is_called_by_its_method(kind, rows):
    toy = made(kind)
    inputs = inputs_of(toy)
    parts, found_by = find_or_trace(toy, {}, lambda: inputs)
    assert (parts.class_rows, found_by) == (rows, "trace")
    table = flat(Probe(toy).interface(inputs).table).set_index(["stage", "group"])["tokens"]
    assert table["vision_encoder", "visual"] == 2 * PATCHES


def test_a_short_prompt_needs_ordinary_ids():
    toy = made(Toy)
    inputs = inputs_of(toy)
    inputs["tokens"] = torch.tensor([[4, *[PICTURE] * PATCHES, 5, 9]] * 2)
    with pytest.raises(NormprobeError, match="no text to change") as failure:
        trace_parts(toy, inputs)
    assert "text_ids" in failure.value.remedy
    assert trace_parts(toy, inputs, text_ids=[8, 9, 10]).decoder_layers == "spine"


def test_language_alone():
    class Speech(Toy):
        def forward(self, tokens):
            return self.mouth(self.climb(self.lexicon(tokens), None, tokens))

    toy = made(Speech)
    assert trace_parts(toy, {"tokens": inputs_of(toy)["tokens"]}) == TracedParts(
        "spine", None, None, None, "lexicon", "none", (), (), ("lexicon",)
    )


def test_stacks_of_one_layer():
    toy = made(Toy)
    toy.spine, inputs = toy.spine[:1], inputs_of(toy)
    traced = trace_parts(toy, inputs)
    assert (traced.decoder_layers, traced.projector) == ("spine", "bridge")
    assert torch.equal(traced.visual_positions, placeholders(inputs))


def test_half_precision():
    toy = made(Dressed).bfloat16()
    inputs = inputs_of(toy)
    inputs["picture"] = inputs["picture"].bfloat16()
    traced = trace_parts(toy, inputs)
    assert (traced.projector, traced.vision_encoder) == ("bridge", "eye")
    assert torch.equal(traced.visual_positions, placeholders(inputs))


def parts_with(toy, projector):
    part = {
        name: Part(name, toy.get_submodule(name)) for name in ("eye", projector, "lexicon", "spine")
    }
    return Parts(part["eye"], part[projector], part["lexicon"], part["spine"], None, (PICTURE,))


@pytest.mark.parametrize(
    ("projector", "agree"), [("bridge", True), ("bridge.2", True), ("bridge.0", False)]
)
def test_verification(projector, agree):
    """A module inside the projector that emits the same tokens is the projector too."""
    toy = made(Toy)
    report = verify(parts_with(toy, projector), trace_parts(toy, inputs_of(toy)))
    expected = pd.DataFrame(
        {
            "part": ["vision_encoder", "projector", "text_embedding", "decoder_layers"],
            "static": ["eye", projector, "lexicon", "spine"],
            "traced": ["eye", "bridge", "lexicon", "spine"],
            "agree": [True, agree, True, True],
        }
    )
    pd.testing.assert_frame_equal(report, expected)


def test_verification_of_parts_that_neither_side_has():
    toy = made(Discrete)
    parts = parts_with(toy, "bridge")
    nothing = Parts(
        parts.vision_encoder, None, parts.text_embedding, parts.decoder_layers, None, ()
    )
    traced = trace_parts(toy, inputs_of(toy))
    assert verify(nothing, traced).agree.all()
    assert verify(parts, traced).agree.tolist() == [True, False, True, True]
