"""The sample rows of ``cause`` against a forward written out in float64, without hooks."""

import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from support.decoder_by_hand import (
    NORMS_BEHIND,
    OF_ANOTHER_KIND,
    OPENED_BY_NORMS,
    Batch,
    asked_with,
    batch_of,
    entered_like_text,
    entered_with,
    forward,
    like_text,
    mixed,
    model_of,
    random_updates,
    shuffled,
    times,
)
from support.decoder_by_hand import (
    answered as answered_by,
)
from support.reference import angle
from support.tiny_inputs import SPECIAL_IDS, collate, perturbed, tiny_samples
from support.tiny_models import EOS, IMAGE, NEEDS, tiny_model
from xxhash import xxh3_64_intdigest

from normprobe import Probe, find_parts
from normprobe.data.sample import Answer, Sample
from normprobe.errors import NormprobeError
from normprobe.extensions.cause import measure
from normprobe.inputs.answers import AnswerTokens
from normprobe.model.intervention_plan import DOSES
from normprobe.model.measured_model import MeasuredModel

FIRST = ("llava", "qwen2_5_vl", "gemma3", "paligemma", "granite", "olmo2")
TYPES = [
    pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow)
    for name in (*OPENED_BY_NORMS, *NORMS_BEHIND, *OF_ANOTHER_KIND)
]
KEYS = ["intervention", "dose", "layer", "sample_id"]


def ids_of(batch) -> list[str]:
    return [f"s/{row}" for row in range(len(batch.answers))]


def measured(batch, names, answered=True, options=(), answer=False) -> pd.DataFrame:
    """Sample rows of a batch whose answers are given as ids."""
    return measured_with(model_in(batch), batch, names, answered, options, answer)


def model_in(batch) -> MeasuredModel:
    return MeasuredModel(batch.model, find_parts(batch.model), SPECIAL_IDS)


def measured_with(model, batch, names, answered=True, options=(), answer=False) -> pd.DataFrame:
    texts = [" ".join(map(str, ids)) for ids in batch.answers]
    samples = [
        Sample(key, "?", answer=Answer(text) if answered else None)
        for key, text in zip(ids_of(batch), texts, strict=True)
    ]

    def tokens(_, __, answer):
        ids = tuple(map(int, answer.text.split()))
        return AnswerTokens((), ids, options, right=0, place=len(ids) - 1 if options else 0)

    builder = SimpleNamespace(
        build=lambda _: perturbed(batch.prompts), tokenizer=SimpleNamespace(eos_token_id=EOS)
    )
    builder.tokenizer.decode = lambda ids, **_: " ".join(map(str, ids))
    with patch.object(measure, "answer_tokens", tokens):
        observe = measure.observer(model, builder, names, answer=answer)
        seen = observe(batch.prompts, samples)
    return by_key(measure.rows(seen, ids_of(batch)))


def by_key(rows) -> pd.DataFrame:
    return rows.fillna({"dose": 0.0}).set_index(KEYS).sort_index()


def seed_of(key) -> int:
    return xxh3_64_intdigest(key.encode()) % 2**32


class Expected:
    """The same, of the forward written out."""

    def __init__(self, batch):
        self.batch = batch
        self.visual, self.text = batch.rows("visual"), batch.rows("text")
        self.untouched = forward(batch)
        self.found = {}

    def rows(self) -> pd.DataFrame:
        batch, x = self.batch, self.batch.entered
        pictured = asked_with(batch, perturbed(batch.inputs))
        other = pictured.entered
        orders = [
            self.order(rows, key) for key, rows in zip(ids_of(batch), self.visual, strict=True)
        ]
        self.enter("untouched", x)
        self.enter("scale-to-text", like_text(batch, x))
        self.enter("permute", shuffled(x, self.visual, orders))
        self.enter("swap", mixed(x, other, self.visual))
        self.enter("swap-norms", mixed(other, x, self.visual))
        elsewhere = forward(pictured)
        self.forward("blank", elsewhere, np.nan)
        for dose in DOSES["scale"]:
            self.enter("scale", times(x, self.visual, dose), dose)
        for dose in DOSES["scale-text"]:
            self.enter("scale-text", times(x, self.text, dose), dose)
        for dose in DOSES["placebo"]:
            self.enter("placebo", self.placebo(x, dose), dose)
        self.layers("norm-at-layer", entered_like_text(batch, self.untouched))
        for name, dose in (("freeze", np.nan), *(("gain", dose) for dose in DOSES["gain"])):
            ran = forward(batch, gain=0.0 if name == "freeze" else dose)
            self.forward(name, ran, dose)
        count = len(self.untouched.states) - 1
        for layer in range(1, count + 1):
            ran = forward(batch, gain=0.0, layers=[layer])
            self.outcomes("freeze-layer", ran, np.nan, layer)
            self.outcomes("knockout-layer", forward(batch, hidden=[layer]), np.nan, layer)
            entering = elsewhere.pairs[layer - 1][0]
            self.outcomes("patch-layer", forward(batch, patched=(layer, entering)), np.nan, layer)
        self.enter("scale", times(x, self.visual, 3.0), 3.0)
        text, seeds = self.some_text(), [seed_of(key) for key in ids_of(batch)]

        def without(branch):  # attention is the first that a layer adds
            return lambda update, place: update * ((place == 0) != (branch == "attention"))

        for name, ran, dose in (
            ("freeze-attention", forward(batch, change=without("attention")), np.nan),
            ("freeze-mlp", forward(batch, change=without("mlp")), np.nan),
            ("freeze-mlp@2", forward(batch, change=without("mlp"), layers=[2]), np.nan),
            ("random-updates", forward(batch, change=random_updates(batch, seeds)), np.nan),
            (
                "random-updates@2-3",
                forward(batch, change=random_updates(batch, seeds), layers=[2, 3]),
                np.nan,
            ),
            ("freeze-text", forward(batch, gain=0.0, rows=text), np.nan),
            ("freeze-text@2", forward(batch, gain=0.0, rows=text, layers=[2]), np.nan),
            ("freeze@2-3", forward(batch, gain=0.0, layers=[2, 3]), np.nan),
            ("freeze@1-2", forward(batch, gain=0.0, layers=[1, 2]), np.nan),
            ("gain@2-3", forward(batch, gain=3.0, layers=[2, 3]), 3.0),
            ("knockout", forward(batch, hidden=range(1, count + 1)), np.nan),
            ("knockout@1-2", forward(batch, hidden=[1, 2]), np.nan),
        ):
            self.forward(name, ran, dose)
        return by_key(pd.DataFrame(self.found).T.rename_axis(KEYS).reset_index())

    def order(self, rows, key):
        generator = torch.Generator().manual_seed(seed_of(key))
        return torch.randperm(int(rows.sum()), generator=generator)

    def some_text(self):
        """As many rows of text as there are visual ones, at most half of them, by chance."""
        chosen = torch.zeros_like(self.text)
        for row, key in enumerate(ids_of(self.batch)):
            places = self.text[row].nonzero().flatten()
            count = min(int(self.visual[row].sum()), len(places) // 2)
            chosen[row, places[self.order(self.text[row], key)[:count]]] = True
        return chosen

    def placebo(self, x, dose):
        """Fewer rows than visual ones change their energy by as much."""
        by, chosen = [], self.some_text()
        for row, some in enumerate(chosen):
            visual, text = (x[row, rows].square().sum() for rows in (self.visual[row], some))
            energy = text + (dose**2 - 1) * visual  # what they would have
            least = text * min(dose, 1) ** 2
            same = some.sum() >= self.visual[row].sum()
            by.append(dose if same else (max(energy, least) / text).sqrt().item())
        return times(x, chosen, by)

    def enter(self, name, entered, dose=np.nan):
        self.forward(name, forward(self.batch, entered), dose)

    def forward(self, name, ran, dose):
        self.outcomes(name, ran, dose)
        self.layers(name, ran.pairs, dose)

    def layers(self, name, states, dose=np.nan):
        for layer, (x, h) in enumerate(states, start=1):
            for row, key in enumerate(ids_of(self.batch)):
                turned = angle(x[row].numpy(), h[row].numpy())
                told = self.found[name, dose, layer, key] = {}
                for group, rows in (("visual", self.visual), ("text", self.text)):
                    of_group = turned[rows[row].numpy() & (turned > 0)]
                    told[f"{group}_tokens"] = len(of_group)
                    told[f"{group}_angle_log_mean"] = (
                        np.log(of_group).mean() if len(of_group) else np.nan
                    )

    def outcomes(self, name, ran, dose, layer=0):
        for row, key in enumerate(ids_of(self.batch)):
            now, was = (each.log_probabilities(self.batch)[row] for each in (ran, self.untouched))
            answer = torch.tensor(self.batch.answers[row])
            some = self.some_text()[row]
            of_text = {"scale-text": self.text[row], "placebo": some, "freeze-text": some}
            rows = of_text.get(name.partition("@")[0], self.visual[row])
            watched = self.visual[row] if name == "scale-text" else self.text[row] & ~some
            before, after = (each.states[-1][row, watched] for each in (self.untouched, ran))
            cosines = torch.cosine_similarity(before, after, dim=-1)
            self.found[name, dose, layer, key] = {
                "nll": -now[range(len(answer)), answer].mean().item(),
                "correct": float((now.argmax(-1) == answer).all()),
                "kl": (was.exp() * (was - now)).sum(-1).mean().item(),
                "changed": float((now.argmax(-1) != was.argmax(-1)).any()),
                "moved": 1 - cosines.mean().item(),
                "touched": float(rows.sum()) if name != "untouched" else 0.0,
                "greedy": np.nan,
                "added": float(sum(each.any().item() for each in self.batch.between)),
            }


@cache
def expected_of(name, batch_size, padding):
    return Expected(batch_of(name, batch_size, padding)).rows()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("batch_size", "padding"), [(1, "right"), (3, "right"), (3, "left")])
def test_every_number(name, batch_size, padding):
    own = ("scale=3", "freeze@2-", "freeze@0-2", "gain=3@2-3", "knockout@0-2", "freeze-text@2")
    own += ("freeze-mlp@2", "random-updates@2-")
    found = measured(batch_of(name, batch_size, padding), (*DOSES, *own))
    wanted = expected_of(name, batch_size, padding)
    pd.testing.assert_index_equal(found.index, wanted.index)
    for column in wanted:
        nearly = {"rtol": 1e-9, "atol": 1e-9}
        np.testing.assert_allclose(found[column], wanted[column], err_msg=column, **nearly)


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_class_of_visual_tokens(name, batch_size, monkeypatch):
    """What is done to some visual tokens leaves the others and the text as they are."""
    batch = batch_of(name, batch_size)
    visual = batch.rows("visual")
    numbers = [np.array([row % 2, int(of.sum()) - 1]) for row, of in enumerate(visual)]
    some = torch.zeros_like(visual)
    for row, of_row in enumerate(numbers):
        some[row, visual[row].nonzero().flatten()[of_row]] = True
    given = iter([{"loudest_5": of_row} for of_row in numbers])
    monkeypatch.setattr(measure.TowerClasses, "of", lambda *_: next(given))
    asked = ("freeze", "freeze@2-3", "gain=2", "freeze-mlp", "scale=0.25", "blank", "knockout@1-2")
    found = measured(batch, [re.sub(r"^([a-z-]+(=[.0-9]+)?)", r"\1:loudest_5", a) for a in asked])
    grey = asked_with(batch, perturbed(batch.inputs)).entered
    of_mlp = lambda update, place: update * (place == 0)  # noqa: E731
    wanted = {
        ("freeze:loudest_5", 0.0): forward(batch, gain=0.0, rows=some),
        ("freeze:loudest_5@2-3", 0.0): forward(batch, gain=0.0, rows=some, layers=[2, 3]),
        ("gain:loudest_5", 2.0): forward(batch, gain=2.0, rows=some),
        ("freeze-mlp:loudest_5", 0.0): forward(batch, change=of_mlp, rows=some),
        ("scale:loudest_5", 0.25): forward(batch, times(batch.entered, some, 0.25)),
        ("blank:loudest_5", 0.0): forward(batch, torch.where(some[..., None], grey, batch.entered)),
    }
    untouched = forward(batch)
    for (label, dose), ran in wanted.items():
        for row, key in enumerate(ids_of(batch)):
            numbers_of = found.loc[(label, dose, 0, key)]
            now, was = (each.log_probabilities(batch)[row] for each in (ran, untouched))
            answer = batch.answers[row]
            assert numbers_of["nll"] == pytest.approx(
                -now[range(len(answer)), answer].mean().item(), rel=1e-9
            )
            kl = (was.exp() * (was - now)).sum(-1).mean().item()
            assert numbers_of["kl"] == pytest.approx(kl, rel=1e-9, abs=1e-9)
            assert numbers_of["touched"] == 2
    hidden = found.xs("knockout:loudest_5@1-2").xs(0, level="layer")
    assert (hidden["touched"] == 2).all() and (hidden["kl"] > 0).all()


@pytest.mark.parametrize("name", TYPES)
def test_what_reads_no_visual_token_knows_nothing_of_the_picture(name):
    """The same answers to another picture; not so where the text of one layer still reads it."""
    batch = batch_of(name, 2)
    other = replace(batch, prompts=perturbed(batch.prompts))
    for how, alike in (("knockout", True), ("knockout@2-3", False)):
        nll, of_other = (measured(each, [how])["nll"].xs(how).dropna() for each in (batch, other))
        assert len(nll) == 2
        assert ((nll - of_other).abs().max() < 1e-9) == alike


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("freeze@12-20", "freeze@12-20: this decoder has the layers 1 to 3"),
        ("freeze@3-2", "freeze@3-2: this decoder has the layers 1 to 3"),
        ("swap:quiet", "swap is not done to some visual tokens"),
        ("freeze:loud", "freeze:loud: there is no class 'loud' of visual tokens: expected"),
        ("scale=x:quiet", "scale=x:quiet: a dose is a number above 0, received 'x'"),
        ("knockout@0", "knockout@0: this decoder has the layers 1 to 3"),
        ("freeze@a", "freeze@a names no layers"),
        ("scale@2", "scale is not done in some layers"),
        ("freeze=2", "freeze has no dose"),
        ("scale=0", "scale=0: a dose is a number above 0, received '0'"),
        ("scale=loud", "scale=loud: a dose is a number above 0, received 'loud'"),
        ("scales=2", "there is no intervention scales"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked, problem):
    with pytest.raises(NormprobeError, match=f"--do: {re.escape(problem)}"):
        measured(batch_of("llava", 1, "right"), [asked])


def test_a_mask_that_attention_does_not_read_is_refused(monkeypatch):
    batch = batch_of("llava", 2, "right")
    for layer in find_parts(batch.model).decoder_layers.module:
        own = layer.self_attn.forward
        monkeypatch.setattr(
            layer.self_attn,
            "forward",
            lambda *args, own=own, attention_mask=None, **kwargs: own(
                *args, attention_mask=None, **kwargs
            ),
        )
    with pytest.raises(NormprobeError, match="knockout changes no state: attention of"):
        measured(batch, ["knockout"])


def test_a_layer_that_is_given_no_mask_of_pairs_is_refused(monkeypatch):
    """As under flash attention."""
    batch = batch_of("llava", 2, "right")
    layer = find_parts(batch.model).decoder_layers.module[0]
    own = layer.forward

    def flash(*args, attention_mask=None, **kwargs):
        return own(*args, attention_mask=None, **kwargs)

    def of_tokens(_, args, kwargs):
        return args, {**kwargs, "attention_mask": torch.ones(2, 4)}

    monkeypatch.setattr(layer, "forward", flash)
    handle = layer.register_forward_pre_hook(of_tokens, with_kwargs=True)
    try:
        with pytest.raises(NormprobeError, match="decoder layer 1 takes no mask that says which"):
            measured(batch, ["knockout"])
    finally:
        handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama4", "aria"])
def test_experts_of_other_kinds(name):
    """What reads no visual token knows nothing of the picture; frozen, it still does."""
    model = tiny_model(name)
    prompts = collate(tiny_samples(model, 2), "right")
    batch = Batch(model, prompts, prompts, [[40, 50], [60, 70]], None, None)
    other = replace(batch, prompts=perturbed(prompts))
    for how, alike in (("knockout", True), ("knockout@1", False), ("freeze", False)):
        nll, of_other = (measured(each, [how])["nll"].xs(how) for each in (batch, other))
        assert nll.notna().sum() == 2
        assert ((nll - of_other).abs().max() < 1e-5) == alike


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["right", "left"])
def test_of_several_options_the_likeliest_is_the_answer(padding):
    """By the token that tells them apart; here the last of the answer."""
    batch = batch_of("llava", 3, padding)
    entered = {"untouched": batch.entered, "blank": entered_with(batch, perturbed(batch.inputs))}
    options, seen = (50, 40), set()
    found = measured(batch, ["blank"], options=options).xs(0, level="layer")
    for name, x in entered.items():
        for key, told in zip(
            ids_of(batch), forward(batch, x).log_probabilities(batch), strict=True
        ):
            chosen = told[-1, torch.tensor(options)].argmax().item()
            seen.add(chosen == 0)
            assert found.loc[(name, 0.0, key), "correct"] == (chosen == 0)
    assert seen == {True, False}


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("padding", ["right", "left"])
def test_without_an_answer_it_is_what_the_model_generates(name, padding):
    """``kl`` over those tokens, no ``nll``, and the same numbers as with them given."""
    batch = batch_of(name, 3, padding)
    told = []
    for sample in tiny_samples(batch.model, 3):
        asked = {n: t.double() if t.is_floating_point() else t for n, t in sample.items()}
        longest = {"max_new_tokens": measure.LONGEST_ANSWER, "do_sample": False}
        told.append(
            batch.model.generate(**asked, **longest)[0, asked["input_ids"].shape[1] :].tolist()
        )
    found = measured(batch, ["scale", "blank"], answered=False)
    wanted = measured(replace(batch, answers=told), ["scale", "blank"])
    assert (found["answered"].dropna() == "greedy").all()
    assert (wanted["answered"].dropna() == "right").all()
    assert found["nll"].isna().all() and found["correct"].isna().all()
    assert wanted.loc["untouched", "correct"].dropna().eq(1.0).all()  # greedy indeed
    same = [*measure.ANGLES, "kl", "changed", "moved"]
    pd.testing.assert_frame_equal(found[same], wanted[same])


GREEDY = (("untouched", 1.0), ("scale", 0.125), ("scale", 8.0))


def greedy_by_hand(name, dose, padding) -> list[list[int]]:
    """Token by token, each by a forward written out."""
    model = model_of(name)
    samples, said = tiny_samples(model, 3), [[] for _ in range(3)]
    for _ in range(3):
        batch = answered_by(name, model, samples, [[*each, 40] for each in said], padding)
        ran = forward(batch, times(batch.entered, batch.rows("visual"), dose))
        for own, told in zip(said, ran.log_probabilities(batch), strict=True):
            told[-1, IMAGE] = -torch.inf
            own.append(told[-1].argmax().item())
    return said


@pytest.mark.parametrize("padding", ["right", pytest.param("left", marks=pytest.mark.slow)])
@pytest.mark.parametrize("right", range(3))
def test_its_own_answers_are_those_by_hand(padding, right, monkeypatch):
    """Right where they begin as those of one dose, and wrong where the dose writes others."""
    monkeypatch.setattr(measure, "is_right", lambda said, answer: said.startswith(answer.text))
    wanted = [greedy_by_hand("llava", dose, padding) for _, dose in GREEDY]
    batch = replace(batch_of("llava", 3, padding), answers=wanted[right])
    found = measured(batch, ["scale", "norm-at-layer"], answer=True)["greedy"]
    unlike = 0
    for (name, dose), said in zip(GREEDY, wanted, strict=True):
        for key, own, answer in zip(ids_of(batch), said, wanted[right], strict=True):
            place = name, 0.0 if name == "untouched" else dose, 0, key
            assert found.loc[place] == float(own == answer)
            unlike += own != answer
    assert unlike
    assert measured(batch, ["scale"])["greedy"].isna().all()


def test_an_answer_of_its_own_asks_for_no_picture(monkeypatch):
    """A placeholder would need pixels that nobody has."""
    batch = batch_of("qwen2_5_vl", 2, "right")
    own = batch.model.lm_head.forward
    longing = torch.zeros(batch.model.lm_head.out_features)
    longing[IMAGE] = 1e3
    monkeypatch.setattr(batch.model.lm_head, "forward", lambda x: own(x) + longing)
    found = measured(batch, ["scale"], answered=False)
    assert (found["answered"].dropna() == "greedy").all()
    assert found["kl"].notna().any()


# --- what is refused, or in doubt ----------------------------------------------------------------


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_an_answer_that_changes_the_prompt_before_it_is_a_doubt(looks_ahead):
    batch = batch_of("llava", 2, "right")
    model = model_in(batch)

    def mix(_, args, output):
        return output + output.mean(dim=1, keepdim=True)

    handles = [model.decoder_layers[0].register_forward_hook(mix)] if looks_ahead else []
    try:
        measured_with(model, batch, ["freeze"])
    finally:
        for handle in handles:
            handle.remove()
    assert ("is not causal" in model.doubt) == looks_ahead


def test_a_layer_that_overwrites_its_input_is_refused(monkeypatch):
    batch = batch_of("llava", 2, "right")
    layer = find_parts(batch.model).decoder_layers.module[1]
    own = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, **kwargs: x.copy_(own(x, **kwargs)))
    with pytest.raises(NormprobeError, match="decoder layer 2 overwrites its input in place"):
        measured(batch, ["freeze"])


def test_a_token_that_is_impossible_takes_no_divergence_away(monkeypatch):
    """A logit of minus infinity, as where a vocabulary is padded."""
    batch = batch_of("llava", 2, "right")
    wanted = measured(batch, ["scale"])
    own = batch.model.lm_head.forward

    def padded(x):
        logits = own(x)
        return torch.cat([logits, torch.full_like(logits[..., :1], -torch.inf)], dim=-1)

    monkeypatch.setattr(batch.model.lm_head, "forward", padded)
    found = measured(batch, ["scale"])
    assert found["kl"].notna().any()
    np.testing.assert_allclose(found["kl"], wanted["kl"], rtol=1e-12)


def test_a_model_that_returns_the_last_logits_alone_is_refused(monkeypatch):
    batch = batch_of("llava", 2, "right")
    own = batch.model.lm_head.forward
    monkeypatch.setattr(batch.model.lm_head, "forward", lambda x: own(x[:, -1:]))
    with pytest.raises(NormprobeError, match="returns logits of 1 of "):
        measured(batch, ["freeze"])


def test_a_model_without_logits_is_refused():
    batch = batch_of("llava", 2, "right")
    bare = replace(batch, model=batch.model.model)
    with pytest.raises(NormprobeError, match="returns no logits"):
        measured(bare, ["freeze"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mllama", "text attends to visual states that are no rows of its sequence"),
        ("gemma3n", "its decoder layers pass several streams"),
        ("qwen4_exp", "its decoder layers pass several streams"),
        ("florence2", "another stack than the one that reads the picture writes the answer"),
    ],
)
def test_decoders_without_visual_rows_are_refused(name, why):
    for needed in [NEEDS[name]] if name in NEEDS else []:
        pytest.importorskip(needed)
    model = tiny_model(name)
    measured_model = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    with pytest.raises(NormprobeError, match=f"no visual state that .* could change: {why}"):
        measure.observer(measured_model, None, ["freeze"])


def test_data_without_pictures_are_refused():
    with pytest.raises(NormprobeError, match="hold no images"):
        Probe("specimen").cause("text", limit=2)
