"""Batches from worker processes: the same inputs as made here, in a fixed order, little padding."""

import json
import os
import sys
import time
import weakref
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
import torch
from PIL import Image
from support.processors import make_processor

from normprobe.data.data_set import DataSet, open_data
from normprobe.data.media import Audio
from normprobe.data.question import Question
from normprobe.data.rows import BadRows, RefusedSample
from normprobe.data.sample import Referent, Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.prefetch import InFlight, about_length, batches, prefetched
from normprobe.inputs.processor import load_processor
from normprobe.versions import is_line_5


@pytest.fixture
def builder(specimen_processor):
    return InputBuilder(specimen_processor)


def picture(number=0):
    return Image.new("RGB", (40, 30), (number, 0, 0))


def data_of(load, count):
    """A data set of questions that ``load(number)`` reads."""
    numbers = range(count)
    questions = [Question("made", str(n), lambda n=n: load(n)) for n in numbers]
    return DataSet("made", questions, {})


def made(lengths):
    """Questions of so many words."""
    return data_of(lambda number: ("word " * lengths[number], (picture(number),)), len(lengths))


def assert_same(batch, other):
    assert batch.digests == other.digests
    assert all(torch.equal(batch.inputs[name], other.inputs[name]) for name in batch.inputs)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_inputs_are_those_that_are_made_here(builder, batch_size):
    data = open_data("sample", limit=7)
    seen = []
    for batch in prefetched(data, builder, batch_size):
        ids = batch.sample_ids
        samples = {sample.id: sample for sample in data}
        expected = builder.build([samples[sample_id] for sample_id in ids])
        assert set(batch.inputs) == set(expected)
        assert all(torch.equal(batch.inputs[name], expected[name]) for name in expected)
        for sample_id, image_hash in batch.digests["image_hash"].items():
            assert samples[sample_id].image_hash == image_hash
        seen += ids
    assert sorted(seen) == sorted(data.ids)
    assert batch_size > 1 or seen == data.ids


def prompt_hashes(data, builder, batch_size):
    hashes = {}
    for batch in prefetched(data, builder, batch_size, workers=0):
        hashes |= batch.digests["prompt_hash"]
    return hashes


def test_a_prompt_has_one_hash_alone_and_padded_in_a_batch(builder):
    data = made([30, 1, 2])
    assert (builder.build(list(data))["attention_mask"] == 0).any()
    alone = prompt_hashes(data, builder, 1)
    assert prompt_hashes(data, builder, 3) == alone
    assert len(set(alone.values())) == 3


def test_what_a_word_means_belongs_to_its_prompt(builder):
    meant = [None, Referent("cup", (2, 3, 12, 8)), Referent("cup", (2, 3, 12, 9))]
    data = data_of(lambda number: ("A cup.", (picture(),), meant[number]), 3)
    assert len(set(prompt_hashes(data, builder, 1).values())) == 3


@pytest.mark.parametrize("imported", [False, True])
def test_a_process_with_tensorflow_is_not_forked(builder, monkeypatch, imported):
    """Once it ran, TensorFlow hangs in a forked process."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    if imported:
        monkeypatch.setitem(sys.modules, "tensorflow", sys)
    processes, real = [], InputBuilder.build

    def build(self, samples):
        inputs = real(self, samples)
        inputs["made_in"] = torch.tensor(os.getpid())
        return inputs

    monkeypatch.setattr(InputBuilder, "build", build)
    for batch in prefetched(made([1] * 16), builder, 2):
        processes.append(int(batch.inputs["made_in"]))
    assert (set(processes) == {os.getpid()}) == imported


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_as_many_processes_make_inputs_as_are_asked_for(builder, tmp_path, workers):
    here = os.getpid()

    def load(number):
        if os.getpid() != here:
            (tmp_path / str(os.getpid())).touch()
        return "Is it?", (picture(number),)

    data = data_of(load, 12)
    ids = [batch.sample_ids for batch in prefetched(data, builder, 1, workers=workers)]
    assert ids == [[sample_id] for sample_id in data.ids]
    assert len(list(tmp_path.iterdir())) == workers


def test_the_order_is_always_the_same(builder):
    first, second = (list(prefetched(made([9, 1] * 20), builder, 4)) for _ in range(2))
    assert [batch.sample_ids for batch in first] == [batch.sample_ids for batch in second]


def test_samples_of_about_the_same_length_go_together(builder):
    data = made([200, 1] * 16)
    padded = [
        int((batch.inputs["attention_mask"] == 0).sum()) for batch in prefetched(data, builder, 4)
    ]
    assert sum(padded) == 0
    in_order = builder.build(list(data)[:4])
    assert int((in_order["attention_mask"] == 0).sum()) > 100


@pytest.mark.parametrize(("batch_size", "most"), [(2, 8), (64, 128), (200, 200)])
def test_a_worker_holds_few_pictures_at_once(builder, monkeypatch, batch_size, most):
    data, real, held = made([1] * 400), DataSet.subset, []

    def subset(self, ids, bad=None):
        held.append(len(ids))
        return real(self, ids[:1], bad)

    monkeypatch.setattr(DataSet, "subset", subset)
    monkeypatch.setattr(sys, "platform", "darwin")  # where no process is forked
    list(prefetched(data, builder, batch_size))
    assert max(held) == most
    assert sum(held) == 400


class Held:
    """Loads pictures and counts those alive."""

    def __init__(self):
        self.alive: list[weakref.ref[Image.Image]] = []
        self.most = 0

    def picture(self, number):
        image = picture(number)
        self.alive.append(weakref.ref(image))
        self.most = max(self.most, sum(reference() is not None for reference in self.alive))
        return image


def test_pictures_beyond_the_bound_are_decoded_again_and_change_no_batch(builder, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")  # where no process is forked

    def read(bound):
        held = Held()
        monkeypatch.setattr("normprobe.inputs.prefetch.PICTURE_BYTES", bound)
        data = data_of(lambda n: ("word " * (1 + n * 7 % 5), (held.picture(n),)), 32)
        return list(prefetched(data, builder, 8)), held.most

    (all_kept, without), (few_kept, within) = read(10**9), read(4 * 40 * 30 * 2)
    assert without == 32
    assert within <= 2 + 8 + 1  # kept, a batch, and the next
    for pair in zip(all_kept, few_kept, strict=True):
        assert_same(*pair)


def test_the_bound_on_pictures_is_that_of_all_workers(builder, monkeypatch, tmp_path):
    held = Held()

    def load(number):
        image = held.picture(number)
        (tmp_path / str(os.getpid())).write_text(str(held.most))
        return "Is it?", (image,)

    monkeypatch.setattr("normprobe.inputs.prefetch.PICTURE_BYTES", 32 * 4 * 40 * 30)
    list(prefetched(data_of(load, 128), builder, 8, workers=4))
    most = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(most) == 4
    assert sum(most) <= 32 + 4 * (8 + 1)  # and a batch of each worker, as above


def test_inputs_are_made_ahead_within_a_bound_and_are_the_same(builder, monkeypatch, tmp_path):
    def load(number):
        (tmp_path / str(number)).touch()
        return "word " * (1 + number % 3), (picture(number),)

    def read(bound):
        monkeypatch.setattr("normprobe.inputs.prefetch.INPUT_BYTES", bound)
        return prefetched(data_of(load, 24), builder, 2, workers=3)

    unbounded = list(read(10**9))
    for file in tmp_path.iterdir():
        file.unlink()
    arriving = read(1)
    found = [next(arriving)]
    while not (tmp_path / "15").exists():  # the window that is taken next
        time.sleep(0.01)
    time.sleep(0.3)  # others would have begun by now
    assert sorted(int(file.name) for file in tmp_path.iterdir()) == list(range(16))
    found.extend(arriving)
    assert len(found) == 12
    for pair in zip(found, unbounded, strict=True):
        assert_same(*pair)


def test_workers_that_wait_end_by_themselves_when_nobody_reads_on(builder, monkeypatch):
    monkeypatch.setattr("normprobe.inputs.prefetch.INPUT_BYTES", 1)
    killed, kill = [], BaseProcess.terminate
    monkeypatch.setattr(BaseProcess, "terminate", lambda its: (killed.append(its), kill(its))[1])
    arriving = prefetched(made([1] * 24), builder, 2, workers=2)
    next(arriving)
    arriving.close()
    assert killed == []


def test_the_error_of_a_worker_arrives_whole(builder):
    def load(number):
        if number == 3:
            raise NormprobeError("row 3 is bad", "mend it")
        return "word", (picture(number),)

    arriving = prefetched(data_of(load, 6), builder, 1)
    for number in range(3):
        assert next(arriving).sample_ids == [f"made/{number}"]
    with pytest.raises(NormprobeError) as caught:
        next(arriving)
    assert (caught.value.problem, caught.value.remedy) == ("row 3 is bad", "mend it")


def test_image_tokens_count_where_the_processor_tells_them(builder):
    (short, long) = made([1, 30])
    words = len(builder.tokenizer("word " * 30)["input_ids"])
    assert about_length(builder, long) > about_length(builder, short)
    assert about_length(builder, long) >= words
    assert about_length(InputBuilder(builder.tokenizer), long) == words


def test_samples_that_the_processor_refuses_can_be_left_out(tmp_path, samples):
    config = {"image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    qwen = InputBuilder(load_processor(str(tmp_path)))
    line = Image.new("RGB", (4000, 10))
    given = [*samples[:3], *(Sample(f"pope/{number}", "What?", (line,)) for number in (7, 8, 9))]
    bad = BadRows(skip=True)
    parts = [[sample.id for sample in part] for part, _ in batches(given, qwen, 2, bad)]
    assert parts == [[sample.id for sample in part] for part in (samples[:2], samples[2:3])]
    assert [row.sample for row in bad.skipped] == ["pope/7", "pope/8", "pope/9"]
    assert all("aspect ratio" in row.reason for row in bad.skipped)
    with pytest.raises(NormprobeError, match="refuses pope/7"):
        list(batches(given, qwen, 2))


def test_samples_that_fit_alone_and_not_together_are_batches_of_one(specimen_processor, samples):
    class Odd(InputBuilder):
        """Takes no sample beside the second."""

        def build(self, given):
            if len(given) > 1 and samples[1] in given:
                raise RefusedSample("they do not fit together", "mend it")
            return super().build(given)

    parts = list(batches(samples, Odd(specimen_processor), 2))
    ids = [sample.id for sample in samples]
    assert [[s.id for s in part] for part, _ in parts] == [ids[:1], ids[1:2], ids[2:]]
    assert [inputs["input_ids"].shape[0] for _, inputs in parts] == [1, 1, 2]


@pytest.mark.skipif(not is_line_5(), reason="tiny processors are those of transformers 5")
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_refused_sound_is_left_out_of_every_batch(batch_size):
    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    sounds = [Audio(noise[:size], 16000) for size in (16000, 10)]
    given = [Sample(f"x/{len(sound.samples)}", "What?", audios=(sound,)) for sound in sounds]
    bad = BadRows(skip=True)
    builder = InputBuilder(make_processor("qwen2_audio"), model_type="qwen2_audio")
    (part,) = (part for part, _ in batches(given, builder, batch_size, bad))
    assert part == given[:1]
    assert [row.sample for row in bad.skipped] == ["x/10"]


def test_batches_cover_the_data_in_order(builder):
    data = open_data("sample", limit=5)
    parts = list(batches(data, builder, 2))
    assert [len(part) for part, _ in parts] == [2, 2, 1]
    assert [sample.id for part, _ in parts for sample in part] == data.ids
    assert [inputs["input_ids"].shape[0] for _, inputs in parts] == [2, 2, 1]


def roomy(windows, count):
    return [index for index in range(count) if windows.has_room(index)]


def test_only_the_first_window_is_made_while_nobody_knows_how_large_they_are():
    windows = InFlight(4, most=100)
    assert roomy(windows, 4) == [0]
    windows.begin(0)
    assert roomy(windows, 4) == [0]
    windows.made(0, 40)
    assert roomy(windows, 4) == [0, 1, 2, 3]


def test_a_window_that_is_being_made_counts_as_the_largest():
    windows = InFlight(6, most=100)
    windows.begin(0)
    windows.made(0, 40)
    windows.begin(1)
    assert roomy(windows, 6) == [0]  # 40, 40 and another 40 are too many
    windows.made(1, 10)
    assert 2 in roomy(windows, 6)  # 40, 10 and 40
    windows.begin(2)
    assert 3 not in roomy(windows, 6)
    windows.mark_taken(0)
    assert 3 in roomy(windows, 6)  # 10, 40 and 40


def test_the_window_that_is_taken_next_is_made_however_large():
    windows = InFlight(3, most=100)
    windows.begin(0)
    windows.made(0, 1000)
    windows.mark_taken(0)
    assert roomy(windows, 3) == [0, 1]
    windows.ended()  # nobody waits for a reader that is gone
    windows.begin(2)


def test_forked_processes_see_each_others_numbers():
    windows = InFlight(2, most=100)
    child = os.fork()
    if child == 0:
        windows.begin(0)
        windows.made(0, 10)
        os._exit(0)
    os.waitpid(child, 0)
    assert windows.has_room(1)
