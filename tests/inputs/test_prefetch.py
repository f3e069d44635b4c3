"""Batches from worker processes: the same inputs as made here, in a fixed order, little padding."""

import os
import sys
import time
import weakref
from multiprocessing.process import BaseProcess

import pytest
import torch
from PIL import Image

from normprobe.data.data_set import DataSet, open_data
from normprobe.data.question import Question
from normprobe.data.sample import Referent
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.prefetch import about_length, prefetched


@pytest.fixture
def builder(specimen_processor):
    return InputBuilder(specimen_processor)


def made(lengths, fail_at=None):
    """Questions of so many words."""

    def load(number, words):
        if number == fail_at:
            raise NormprobeError(f"row {number} is bad", "mend it")
        return "word " * words, (Image.new("RGB", (40, 30), (number, 0, 0)),)

    return DataSet(
        "made",
        [
            Question("made", str(number), lambda number=number, words=words: load(number, words))
            for number, words in enumerate(lengths)
        ],
        {},
    )


@pytest.mark.parametrize("batch_size", [1, 3])
def test_inputs_are_those_that_are_made_here(builder, batch_size):
    data = open_data("sample", limit=7)
    seen = []
    for batch in prefetched(data, builder, batch_size):
        ids = list(batch.image_hashes)
        samples = {sample.id: sample for sample in data}
        expected = builder.build([samples[sample_id] for sample_id in ids])
        assert set(batch.inputs) == set(expected)
        assert all(torch.equal(batch.inputs[name], expected[name]) for name in expected)
        for sample_id, image_hash in batch.image_hashes.items():
            assert samples[sample_id].image_hash == image_hash
        seen += ids
    assert sorted(seen) == sorted(data.ids)
    assert batch_size > 1 or seen == data.ids


def prompt_hashes(data, builder, batch_size):
    hashes = {}
    for batch in prefetched(data, builder, batch_size, workers=0):
        hashes |= batch.prompt_hashes
    return hashes


def test_a_prompt_has_one_hash_alone_and_padded_in_a_batch(builder):
    data = made([30, 1, 2])
    assert (builder.build(list(data))["attention_mask"] == 0).any()
    alone = prompt_hashes(data, builder, 1)
    assert prompt_hashes(data, builder, 3) == alone
    assert len(set(alone.values())) == 3


def test_what_a_word_means_belongs_to_its_prompt(builder):
    picture = Image.new("RGB", (40, 30))
    meant = [None, Referent("cup", (2, 3, 12, 8)), Referent("cup", (2, 3, 12, 9))]
    questions = [
        Question("made", str(number), lambda referent=referent: ("A cup.", (picture,), referent))
        for number, referent in enumerate(meant)
    ]
    assert len(set(prompt_hashes(DataSet("made", questions, {}), builder, 1).values())) == 3


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
        return "Is it?", (Image.new("RGB", (40, 30), (number, 0, 0)),)

    questions = [Question("made", str(n), lambda n=n: load(n)) for n in range(12)]
    data = DataSet("made", questions, {})
    ids = [list(batch.image_hashes) for batch in prefetched(data, builder, 1, workers=workers)]
    assert ids == [[sample_id] for sample_id in data.ids]
    assert len(list(tmp_path.iterdir())) == workers


def test_the_order_is_always_the_same(builder):
    orders = [
        [list(batch.image_hashes) for batch in prefetched(made([9, 1] * 20), builder, 4)]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]


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


def test_pictures_beyond_the_bound_are_decoded_again_and_change_no_batch(builder, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")  # where no process is forked
    alive: list[weakref.ref[Image.Image]] = []
    most = 0

    def load(number):
        nonlocal most
        image = Image.new("RGB", (40, 30), (number, 0, 0))
        alive.append(weakref.ref(image))
        most = max(most, sum(reference() is not None for reference in alive))
        return "word " * (1 + number * 7 % 5), (image,)

    def read(bound):
        nonlocal most
        alive.clear()
        most = 0
        monkeypatch.setattr("normprobe.inputs.prefetch.PICTURE_BYTES", bound)
        questions = [
            Question("made", str(number), lambda number=number: load(number))
            for number in range(32)
        ]
        return list(prefetched(DataSet("made", questions, {}), builder, 8)), most

    (all_kept, without), (few_kept, within) = read(10**9), read(4 * 40 * 30 * 2)
    assert without == 32
    assert within <= 2 + 8 + 1  # kept, a batch, and the next
    for a, b in zip(all_kept, few_kept, strict=True):
        assert a.image_hashes == b.image_hashes
        assert all(torch.equal(a.inputs[name], b.inputs[name]) for name in a.inputs)


def test_the_bound_on_pictures_is_that_of_all_workers(builder, monkeypatch, tmp_path):
    alive: list[weakref.ref[Image.Image]] = []

    def load(number):
        image = Image.new("RGB", (40, 30), (number, 0, 0))
        alive.append(weakref.ref(image))
        held = sum(reference() is not None for reference in alive)
        with (tmp_path / str(os.getpid())).open("a") as file:
            file.write(f"{held}\n")
        return "Is it?", (image,)

    monkeypatch.setattr("normprobe.inputs.prefetch.PICTURE_BYTES", 32 * 4 * 40 * 30)
    questions = [
        Question("made", str(number), lambda number=number: load(number)) for number in range(128)
    ]
    list(prefetched(DataSet("made", questions, {}), builder, 8, workers=4))
    most = [max(map(int, file.read_text().split())) for file in tmp_path.iterdir()]
    assert len(most) == 4
    assert sum(most) <= 32 + 4 * (8 + 1)  # and a batch of each worker, as above


def test_inputs_are_made_ahead_within_a_bound_and_are_the_same(builder, monkeypatch, tmp_path):
    def load(number):
        (tmp_path / str(number)).touch()
        return "word " * (1 + number % 3), (Image.new("RGB", (40, 30), (number, 0, 0)),)

    def read(bound):
        monkeypatch.setattr("normprobe.inputs.prefetch.INPUT_BYTES", bound)
        questions = [Question("made", str(n), lambda n=n: load(n)) for n in range(24)]
        return prefetched(DataSet("made", questions, {}), builder, 2, workers=3)

    unbounded = list(read(10**9))
    for file in tmp_path.iterdir():
        file.unlink()
    batches = read(1)
    found = [next(batches)]
    while not (tmp_path / "15").exists():  # the window that is taken next
        time.sleep(0.01)
    time.sleep(0.3)  # others would have begun by now
    assert sorted(int(file.name) for file in tmp_path.iterdir()) == list(range(16))
    found.extend(batches)
    assert len(found) == len(unbounded) == 12
    for a, b in zip(found, unbounded, strict=True):
        assert a.image_hashes == b.image_hashes
        assert all(torch.equal(a.inputs[name], b.inputs[name]) for name in a.inputs)


def test_workers_that_wait_end_by_themselves_when_nobody_reads_on(builder, monkeypatch):
    monkeypatch.setattr("normprobe.inputs.prefetch.INPUT_BYTES", 1)
    killed, kill = [], BaseProcess.terminate
    monkeypatch.setattr(BaseProcess, "terminate", lambda its: (killed.append(its), kill(its))[1])
    batches = prefetched(made([1] * 24), builder, 2, workers=2)
    next(batches)
    batches.close()
    assert killed == []


def test_the_error_of_a_worker_arrives_whole(builder):
    batches = prefetched(made([1] * 6, fail_at=3), builder, 1)
    for number in range(3):
        assert list(next(batches).image_hashes) == [f"made/{number}"]
    with pytest.raises(NormprobeError) as caught:
        next(batches)
    assert (caught.value.problem, caught.value.remedy) == ("row 3 is bad", "mend it")


def test_image_tokens_count_where_the_processor_tells_them(builder):
    (short, long) = made([1, 30])
    words = len(builder.tokenizer("word " * 30)["input_ids"])
    assert about_length(builder, long) > about_length(builder, short)
    assert about_length(builder, long) >= words
    assert about_length(InputBuilder(builder.tokenizer), long) == words
