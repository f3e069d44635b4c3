"""Every type that reads clips or sounds, with its own processor: which tokens, and which states."""

from collections import Counter
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.flat import flat
from support.processors import make_processor
from support.processors.media import MEDIA, WITHOUT
from support.processors.with_torchvision import WITH_TORCHVISION
from support.tiny.fragments import AUDIO, FIRST_TEXT, IMAGE, VIDEO
from support.tiny_inputs import heard_and_seen
from transformers.models.auto import modeling_auto, processing_auto
from transformers.utils import is_torchvision_available

from normprobe import probe_interface, probe_layers
from normprobe.data.data_set import open_data
from normprobe.data.media import Audio
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.tidy import select
from normprobe.versions import is_line_5

pytestmark = pytest.mark.skipif(not is_line_5(), reason="processors are those of transformers 5")

TYPES = {
    **{name: r for name, r in WITH_TORCHVISION.items() if r.video_processor},
    **MEDIA,
}
HEARING = [name for name, recipe in TYPES.items() if recipe.feature_extractor]
#: Packages that some of their parts need.
NEEDS = dict.fromkeys(("fun_asr_nano", "granite_speech", "granite_speech_plus"), "torchaudio")
NEEDS |= {"smolvlm": "num2words"}
#: Those that write a clip with the placeholders of an image; all but two take one of both a batch.
AS_IMAGES = ("glm46v", "glm4v", "glm4v_moe", "glm5_next", "glm_ocr", "glmga", "internvl")
AS_IMAGES += ("molmo2", "smolvlm")
APART = {*AS_IMAGES} - {"glm5_next", "internvl"}
#: Their processors want a sound with every prompt.
ONLY_HEARING = ("audioflamingo3", "fun_asr_nano", "glmasr", "musicflamingo", "nemo_speechlm")
ONLY_HEARING += ("qwen3_asr",)
#: Takes no clip in transformers 5.23: it joins one tensor as if it were several.
WITHOUT_CLIPS = ("nemotron_h_omni",)
GROUPS = {IMAGE: "image", VIDEO: "video", AUDIO: "audio"}


@pytest.fixture(autouse=True)
def _small_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"size": {"shortest_edge": 512, "longest_edge": 2048}}
    for name in ("Qwen2_5OmniProcessor", "Qwen3OmniMoeProcessor"):
        monkeypatch.setattr(getattr(transformers, name), "videos_kwargs", small)


@pytest.fixture(scope="module")
def mixed() -> dict[str, Sample]:
    """The bundled prompts, and a shorter sound: what pads it is no token."""
    found = {sample.id.removeprefix("prompts/"): sample for sample in open_data("mixed")}
    sound = found["sound"].audios[0]
    short = Audio(sound.samples[:9000].copy(), sound.rate)
    return {**found, "short": replace(found["sound"], id="short", audios=(short,))}


def processor_of(model_type: str) -> Any:
    recipe = TYPES[model_type]
    if (recipe.image_processor or recipe.video_processor) and not is_torchvision_available():
        pytest.skip("pictures and clips are read with torchvision")
    if model_type in NEEDS:
        pytest.importorskip(NEEDS[model_type])
    return make_processor(model_type)


def batches(model_type: str) -> list[list[str]]:
    """Of each kind that the type reads one sample alone, and mixed batches of four."""
    recipe = TYPES[model_type]
    seen = ["picture"] * bool(recipe.image_processor)
    clips = ["clip"] * (bool(recipe.video_processor) and model_type not in WITHOUT_CLIPS)
    heard = ["sound", "short"] * bool(recipe.feature_extractor)
    alone = [[name] for name in (*seen, *clips, *heard)]
    alone += [["all"]] * bool(seen and clips and heard)
    if model_type in ONLY_HEARING:
        return [*alone, heard * 2]
    if model_type in APART:
        return [*alone, [*seen, "text"] * 2, [*clips, "text"] * 2]
    return [*alone, ["text"], ([*seen, *clips, *heard, "text"] * 2)[:4]]


def by_hand(model_type: str, inputs: Any, samples: list[Sample], special: list[int]) -> Counter:
    """Placeholders and words that the processor wrote, one token after another."""
    counts: Counter = Counter()
    rows = zip(
        inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), samples, strict=True
    )
    for ids, kept, sample in rows:
        for token, there in zip(ids, kept, strict=True):
            if not there:
                continue
            group = GROUPS.get(token)
            if group == "image" and model_type in AS_IMAGES and sample.videos:
                group = "video"  # no prompt of these has both
            if group is None and token >= FIRST_TEXT and token not in special:
                group = "text"
            counts[group or "special"] += 1
    return counts


@pytest.mark.parametrize("model_type", TYPES)
def test_groups_are_the_placeholders_that_were_written(model_type: str, mixed: Any) -> None:
    builder = InputBuilder(processor_of(model_type), model_type=model_type)
    model, special = heard_and_seen(model_type), builder.special_token_ids
    for names in batches(model_type):
        samples = [mixed[name] for name in names]
        inputs = builder.build(samples)
        rows = probe_layers(model, inputs_for(model, inputs), special_token_ids=special)
        found = Counter(select(rows, "norm", layer=0).set_index("group")["tokens"].to_dict())
        found["image"] = found["visual"] - found["video"] + found.pop("structural", 0)
        del found["non_visual"], found["visual"]  # a learned newline has its placeholder
        assert +found == by_hand(model_type, inputs, samples, special), names


def test_no_type_is_left_out() -> None:
    """Every type that transformers lists with a processor of clips or sounds, or why not."""
    models = {
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
    wholes = {"qwen2_5_omni", "qwen3_omni_moe"}  # of which the thinker is measured
    processors = processing_auto.PROCESSOR_MAPPING_NAMES
    reads = set()
    for name in (models.keys() & processors.keys()) - wholes:
        taken = signature(getattr(transformers, processors[name]).__init__).parameters
        if {"video_processor", "feature_extractor", "audio_processor"} & taken.keys():
            reads.add(name)
    assert len(reads) > 40
    assert reads <= TYPES.keys() | WITHOUT.keys()


# --- the states before the decoder ----------------------------------------------------------------

#: Modules inside the encoder that project: the first, which reads its states, and the last.
TOWER = "model.audio_tower"
IN_TOWER = {
    "dots3_note": ("adapter", "adapter"),
    "muse_spark": ("proj", "post_proj_norm"),
    "qwen2_5_omni_thinker": ("proj", "proj"),
    "qwen3_omni_moe_thinker": ("proj1", "proj2"),
}
SPEECH = "model.embed_tokens_extend.audio_embed"
#: Encoder and projector of sounds, by the names that the code of each type gives them. None: there
#: is none, or its rows do not tell what pads a sound (windows overlap, chunks are cut).
EARS = {
    "gemma4": (TOWER, "model.embed_audio"),
    "gemma4_unified": (None, "model.embed_audio"),
    "granite_speech": (None, "model.projector"),
    "granite_speech_plus": (None, "model.projector"),
    "inkling_mm_model": (TOWER, None),
    "moss_transcribe_diarize": (None, "model.multi_modal_projector"),
    "nemotron_h_omni": ("audio_tower", "embed_audio"),
    "phi4_multimodal": (f"{SPEECH}.encoder", f"{SPEECH}.down_proj_for_speech"),
    "vibevoice_asr": ("model.acoustic_tokenizer_encoder", "model.multi_modal_projector"),
}
#: What enters their projector are windows that overlap, or the sound itself.
UNTOLD = ("gemma4_unified", "granite_speech", "granite_speech_plus")


def states_of_sounds(model_type: str, model: Any, inputs: Any) -> dict[str, Any]:
    """What a whole forward hands over, by hooks on modules that are named here."""
    states: dict[str, Any] = {}

    def watch(part: str, entered: str, left: str) -> Any:
        def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            output = output.to_tuple() if hasattr(output, "to_tuple") else output
            states[left] = output[0] if isinstance(output, tuple) else output
            states[entered] = next(x for x in (*args, *kwargs.values()) if torch.is_tensor(x))

        return model.get_submodule(part).register_forward_hook(hook, with_kwargs=True)

    usual = (TOWER, "model.multi_modal_projector")
    encoder, projector = EARS.get(model_type, usual)
    if model_type in IN_TOWER:
        encoder, projector = (f"{TOWER}.{name}" for name in IN_TOWER[model_type])
    outer = ("audio_encoder", "") if model_type in IN_TOWER else ("", "audio_encoder")
    inner = ("audio_projector_input", "audio_projector_output")
    handles = [
        watch(part, *names) for part, names in ((encoder, outer), (projector, inner)) if part
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    left_out = {"", inner[0]} if model_type in UNTOLD else {""}
    return {name: state for name, state in states.items() if name not in left_out}


@pytest.mark.parametrize("model_type", HEARING)
def test_states_of_sounds_are_those_of_their_modules(model_type: str, mixed: Any) -> None:
    """In float64; of a padded sound, as many rows as it has tokens."""
    builder = InputBuilder(processor_of(model_type), model_type=model_type)
    model, samples = heard_and_seen(model_type), [mixed["sound"], mixed["short"]]
    inputs = inputs_for(model, builder.build(samples))
    each = [row.tolist().count(AUDIO) for row in inputs["input_ids"]]
    assert each[0] > each[1] > 0
    torch.manual_seed(0)  # VibeVoice adds noise
    states = states_of_sounds(model_type, model, inputs)
    torch.manual_seed(0)
    rows = flat(probe_interface(model, inputs, special_token_ids=builder.special_token_ids))
    rows = rows[rows["group"] == "audio"].set_index("stage").drop("decoder_input")
    assert set(rows.index) == set(states)
    for name, state in states.items():
        norms = np.linalg.norm(state.double().numpy(), axis=-1)
        if norms.size != sum(each):
            ratio = 4 if (model_type, name) == ("glmasr", "audio_encoder") else 1  # are joined
            norms = np.concatenate([row[: n * ratio] for row, n in zip(norms, each, strict=True)])
        assert rows.loc[name, "tokens"] == norms.size
        assert rows.loc[name, "norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
        assert rows.loc[name, "norm_std"] == pytest.approx(norms.std(), abs=1e-6 * norms.mean())


def test_images_and_videos_of_one_tensor_are_visual_together(mixed: Any) -> None:
    """InternVL: its tower sees tiles, and which are a clip's it is not told."""
    builder = InputBuilder(processor_of("internvl"), model_type="internvl")
    model = heard_and_seen("internvl")
    both = replace(mixed["clip"], images=mixed["picture"].images)
    inputs = builder.build([both])
    found: list[Any] = []
    handle = model.model.multi_modal_projector.register_forward_hook(
        lambda _, args, output: found.append(output)
    )
    rows = flat(probe_interface(model, inputs_for(model, inputs)))
    handle.remove()
    norms = np.linalg.norm(found[-1].double().numpy(), axis=-1)
    rows = rows.set_index(["stage", "group"])
    assert rows.loc[("projector_output", "visual"), "tokens"] == norms.size
    assert rows.loc[("projector_output", "visual"), "norm_mean"] == pytest.approx(norms.mean())
    entered = rows.loc["decoder_input"]["tokens"]
    assert entered["visual"] == entered["image"] + entered["video"] == norms.size
    assert set(rows.loc["projector_output"].index) == {"visual"}
