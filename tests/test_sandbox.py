"""Checkpoints of strangers that ask for too much, read by the real classes of transformers."""

import ctypes
import functools
import io
import json
import logging
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from normprobe import sandbox
from normprobe.data.data_set import DataSet, open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.failures import known_failure
from normprobe.inputs.prefetch import prefetched
from normprobe.model.checkpoint import open_checkpoint
from normprobe.runs.model_source import CheckpointSource
from normprobe.sandbox import limited, try_in_sandbox
from normprobe.specimen import SPECIMEN_DIR

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are not bounded")

SAMPLE = Sample("made/1", "What is it?", (Image.new("RGB", (40, 30)),))
HUGE = 40_000
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
POWER = "{% set x = 3 ** (10 ** 9) %}"  # folded while it is compiled, where exceptions are lost
TIME, MEMORY = "takes more than 1 seconds", "GB of memory"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bounds that the specimen meets, too, and that are reached soon."""
    _ = source(Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "sound"))).builder  # its imports
    monkeypatch.setattr(sandbox, "PATIENCE", 1)
    monkeypatch.setattr(sandbox, "ROOM", 2**28)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the specimen: the files of a stranger."""
    return Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "model"))


def write(file: Path, fields: Mapping[str, Any]) -> None:
    """Set fields of a JSON file; of a mapping in it, the fields that are named."""
    content = json.loads(file.read_text())
    for name, value in fields.items():
        inside = content.get(name)
        both = isinstance(inside, dict) and isinstance(value, dict)
        content[name] = inside | value if both else value
    file.write_text(json.dumps(content))


def template(folder: Path, before: str) -> None:
    file = folder / "chat_template.jinja"
    file.write_text(before + file.read_text())


def source(folder: Path, **options: Any) -> CheckpointSource:
    return CheckpointSource(open_checkpoint(str(folder)), **options)


@pytest.mark.usefixtures("impatient")
def test_a_sound_checkpoint_is_read(folder: Path) -> None:
    assert source(folder).builder.build([SAMPLE])["input_ids"].shape[1] > 8


def image_processor(**fields: Any) -> dict[str, Any]:
    return {"image_processor": fields}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "fields",
    [
        image_processor(size={"height": HUGE, "width": HUGE}),
        pytest.param(image_processor(size={"shortest_edge": HUGE}), marks=pytest.mark.slow),
        pytest.param(
            image_processor(crop_size={"height": HUGE, "width": HUGE}), marks=pytest.mark.slow
        ),
        {"num_additional_image_tokens": 10**8},
    ],
    ids=str,
)
def test_a_processor_of_huge_inputs(fields: dict[str, Any], folder: Path) -> None:
    write(folder / "processor_config.json", fields)
    builder = source(folder).builder
    with pytest.raises(NormprobeError, match=rf"making inputs of made/1 .*({MEMORY}|{TIME})"):
        builder.build([SAMPLE])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (POWER, TIME),
        (ENDLESS, TIME),
        (
            "{% set a = namespace(x='ab') %}"
            "{% for b in range(99) %}{% set a.x = a.x + a.x %}{% endfor %}",
            MEMORY,
        ),
    ],
)
def test_a_template_without_an_end(text: str, bound: str, folder: Path) -> None:
    template(folder, text)
    builder = source(folder).builder
    with pytest.raises(NormprobeError, match=bound):
        builder.build([SAMPLE])


@pytest.mark.usefixtures("impatient")
def test_a_tokenizer_that_grows_texts(folder: Path) -> None:
    longer = {"type": "Replace", "pattern": {"String": "n"}, "content": "nn" * 40}
    sequence = {"type": "Sequence", "normalizers": [longer] * 6}
    write(folder / "tokenizer.json", {"normalizer": sequence})
    with pytest.raises(NormprobeError, match=rf"the processor of .* {MEMORY}"):
        _ = source(folder).builder


EXPERTS = {"model_type": "mixtral", "num_hidden_layers": 9000, "num_local_experts": 2}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "text_config",
    [
        {"num_hidden_layers": 9999},
        {"num_hidden_layers": 10**9},
        pytest.param(EXPERTS, marks=pytest.mark.slow),
    ],
    ids=["deep", "endless", "experts"],
)
def test_a_config_of_no_model(text_config: dict[str, Any], folder: Path) -> None:
    write(folder / "config.json", {"text_config": text_config})
    with pytest.raises(NormprobeError, match=r"what config\.json of .* takes more than") as refusal:
        open_checkpoint(str(folder))
    assert "trust" not in refusal.value.remedy
    assert "by the clock" not in refusal.value.problem  # it is found out before


def test_a_config_that_is_too_large(folder: Path) -> None:
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 10**6, "long_factor": [1.0] * 10**6}
    write(folder / "config.json", {"text_config": {"rope_scaling": factors}})
    with pytest.raises(NormprobeError, match=r"expected 8 MB at most, received 9 MB"):
        open_checkpoint(str(folder))


@pytest.mark.usefixtures("impatient")
def test_it_is_bounded_in_any_thread(folder: Path) -> None:
    template(folder, POWER)
    failures: list[BaseException] = []

    def build() -> None:
        try:
            source(folder).builder.build([SAMPLE])
        except NormprobeError as failure:
            failures.append(failure)

    thread = threading.Thread(target=build)
    thread.start()
    thread.join(60)
    assert [TIME in str(failure) for failure in failures] == [True]


def test_what_the_user_gives_is_not_tried_in_a_sandbox(folder: Path) -> None:
    own = source(folder).builder.processor
    assert not source(folder, processor=own).builder.bounded
    assert not CheckpointSource(open_checkpoint("specimen")).builder.bounded
    assert source(folder).builder.bounded


# --- no network ---------------------------------------------------------------------------------


@pytest.fixture
def contacts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often somebody connected to the hub, which is a socket on this machine."""
    import huggingface_hub.constants
    import transformers.utils.hub

    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.utils.hub, "_is_offline_mode", False, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )

    def count() -> int:
        found = 0
        while True:
            try:
                server.accept()[0].close()
            except BlockingIOError:
                return found
            found += 1

    yield count
    server.close()


OTHER = {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": "someone/else"}


def test_no_other_repository_is_contacted(folder: Path, contacts: Callable[[], int]) -> None:
    write(folder / "processor_config.json", {"audio_tokenizer": OTHER})
    with pytest.raises(NormprobeError, match=r"the processor of .* connects to the network"):
        _ = source(folder).builder
    assert contacts() == 0


# --- what ends badly ----------------------------------------------------------------------------


#: None of it needs what readers do.
tried = functools.partial(try_in_sandbox, modules=())


def python(code: str) -> Callable[[], object]:
    """What can be pickled and runs the code."""
    return functools.partial(exec, code, {})


def helper_now() -> int:
    assert sandbox._helper is not None
    return sandbox._helper.pid


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (functools.partial(ctypes.string_at, 0), r"it crashes \(SIGSEGV\)"),
        (os.abort, r"it crashes \(SIGABRT\)"),
        (functools.partial(socket.create_connection, ("127.0.0.1", 9)), "it connects to the net"),
        (functools.partial(socket.getaddrinfo, "localhost", 80), "it connects to the network"),
    ],
)
def test_other_ends(act: Callable[[], object], fault: str) -> None:
    with pytest.raises(NormprobeError, match=fault) as refusal:
        tried(act, "it")
    assert "trust" not in refusal.value.remedy


@pytest.mark.parametrize("error", [ValueError, MemoryError, KeyboardInterrupt, SystemExit])
def test_an_exception_is_raised_where_it_counts(
    error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    tried(python(f"print('said'); import os; os.write(2, b'said'); raise {error.__name__}"), "it")
    assert capfd.readouterr() == ("", "")


def test_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(os.getpid, "it")
    helper = helper_now()
    sizes = iter((0, 0))  # when it is made ready, and before it begins

    def interrupt(_: int) -> int:
        for size in sizes:
            return size
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "_memory", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tried(functools.partial(time.sleep, 99), "it")
    assert not psutil.pid_exists(helper)


def test_a_process_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_LONGEST", 0.2)
    monkeypatch.setattr(sandbox, "PATIENCE", 0.2)
    with pytest.raises(NormprobeError, match=r"it takes more than 0\.4 seconds by the clock"):
        tried(functools.partial(time.sleep, 99), "it")


def takes(room: int) -> Callable[[], object]:
    """It is held long enough to be seen on a busy machine."""
    return python(f"import time; taken = bytes([1]) * {room}; time.sleep(0.5)")


def test_each_sample_and_each_pixel_may_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "ROOM", 2**28)  # more than this process has freed and kept
    act = takes(3 * 2**27)
    with pytest.raises(NormprobeError, match=MEMORY):
        tried(act, "it")
    tried(act, "it", times=2)
    tried(act, "it", pixels=2**21)


def test_each_sample_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = python(
        "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    )
    monkeypatch.setattr(sandbox, "PATIENCE", 0.2)
    with pytest.raises(NormprobeError, match=r"it takes more than 0\.2 seconds of computing"):
        tried(compute, "it")
    tried(compute, "it", times=4)


# --- the helper ---------------------------------------------------------------------------------


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that takes a while to import."""
    (tmp_path / "slowly_imported.py").write_text("import time; time.sleep(3)")
    monkeypatch.syspath_prepend(tmp_path)
    return "slowly_imported"


def test_what_a_thread_imports_meanwhile_is_imported(
    slow_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of this process has the lock of the import, and no thread that would end it."""
    tried(os.getpid, "it")
    monkeypatch.setattr(sandbox, "_LONGEST", 10)
    thread = threading.Thread(target=import_module, args=(slow_module,))
    thread.start()
    while slow_module not in sys.modules:
        time.sleep(0.01)
    tried(python(f"import {slow_module}"), "it")
    thread.join()


@pytest.mark.parametrize("times", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_none_hangs_beside_other_threads(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that import, log and compute: their locks are held most of the time."""
    monkeypatch.setattr(sandbox, "_LONGEST", 60)
    done = threading.Event()
    matrix = np.ones((300, 300))
    log = logging.getLogger("beside")
    log.addHandler(handler := logging.StreamHandler(io.StringIO()))

    def anew() -> None:
        sys.modules.pop("colorsys", None)
        import_module("colorsys")

    acts = [anew, lambda: log.warning("said"), lambda: matrix @ matrix]

    def repeat(beside: Callable[[], object]) -> None:
        while not done.is_set():
            beside()

    threads = [threading.Thread(target=repeat, args=(beside,)) for beside in acts]
    for thread in threads:
        thread.start()
    act = "import colorsys, logging, numpy; logging.getLogger('beside').error('it'); "
    try:
        for _ in range(times):
            tried(python(act + "numpy.ones((300, 300)) @ numpy.ones((300, 300))"), "it")
    finally:
        done.set()
        for thread in threads:
            thread.join()
        log.removeHandler(handler)


def test_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(NormprobeError, match=r"it crashes \(SIGABRT\)"):
        tried(os.abort, "it")
    tried(os.getpid, "it")


def test_a_helper_that_was_killed_is_replaced(folder: Path) -> None:
    builder = source(folder).builder
    builder.build([SAMPLE])
    killed = helper_now()
    os.kill(killed, signal.SIGKILL)
    while sandbox._helper is not None and sandbox._helper.poll() is None:
        time.sleep(0.01)
    builder.build([SAMPLE])  # the processor is sent again
    kept = helper_now()
    builder.build([SAMPLE])
    assert killed != kept == helper_now()


@pytest.fixture
def unknown_there(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Of a module that is here alone, as the script of a user is."""
    here = ModuleType("here_alone")
    exec("def act(): pass", here.__dict__)
    monkeypatch.setitem(sys.modules, "here_alone", here)
    act: Callable[[], object] = here.act
    return act


def test_what_cannot_be_done_apart_is_refused(unknown_there: Callable[[], object]) -> None:
    for act in (unknown_there, lambda: None):
        with pytest.raises(NormprobeError, match="it cannot be tried in another process first"):
            tried(act, "it")


def in_fork(kept: int) -> None:
    tried(os.getpid, "it")
    os._exit(helper_now() == kept)


def test_a_fork_has_a_helper_of_its_own() -> None:
    tried(os.getpid, "it")
    kept = helper_now()
    with sandbox._lock:  # as where another thread holds it
        assert status_of(lambda: (signal.alarm(20), in_fork(kept))) == 0
    tried(os.getpid, "it")
    assert helper_now() == kept


BUSY = "3 ** (10 ** 9)"  # keeps the interpreter: no thread of it runs
SCRIPT = """
import functools, os, sys, time
from normprobe import sandbox
print("read", flush=True)
if sys.argv[1]:
    sandbox.try_in_sandbox(os.getpid, "it", modules=())
else:
    sandbox.begin()
while sandbox._helper is None:
    time.sleep(0.01)
print(sandbox._helper.pid, flush=True)
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(60)
if sys.argv[1]:
    sandbox.try_in_sandbox(functools.partial(exec, sys.argv[1]), "it", modules=())
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("act", "end"),
    [
        pytest.param("", "fork", marks=pytest.mark.slow),
        pytest.param("", "kill", marks=pytest.mark.slow),
        pytest.param("import time; time.sleep(60)", "kill", marks=pytest.mark.slow),
        (BUSY, "kill"),
    ],
)
def test_nothing_is_left_of_a_process_that_is_killed(act: str, end: str, tmp_path: Path) -> None:
    """Nor is the script of the user read again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), act, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "read\n"
        helper = psutil.Process(int(asking.stdout.readline()))
        before = helper.cpu_times().user
        while act == BUSY and helper.cpu_times().user < before + 0.3:
            time.sleep(0.01)
        forks = [child for child in psutil.Process(asking.pid).children() if child != helper]
        asking.kill()
        psutil.wait_procs([helper], timeout=10)
        assert not helper.is_running()
        for fork in forks:
            fork.kill()
        assert asking.stdout.read() == ""


# --- workers ------------------------------------------------------------------------------------


def later(folder: Path, text: str) -> tuple[DataSet, Any]:
    """Samples, and a builder whose template misbehaves on the second of them alone."""
    samples = open_data("sample", limit=2)
    words = json.dumps(list(samples)[1].prompt[-20:])
    template(folder, f"{{% if {words} in (messages | string) %}}{text}{{% endif %}}")
    return samples, source(folder).builder


@pytest.mark.usefixtures("impatient")
def test_a_worker_is_ended(folder: Path) -> None:
    samples, builder = later(folder, "{% for a in range(99999) %}" + ENDLESS + "{% endfor %}")
    made = prefetched(samples, builder, 1, workers=1)
    next(made)
    with pytest.raises(RuntimeError, match="DataLoader worker") as ended:
        next(made)
    known = known_failure(ended.value)
    assert known is not None
    assert known.problem.startswith("a process that makes inputs was ended")


@pytest.mark.usefixtures("impatient")
def test_a_worker_has_little_memory(folder: Path) -> None:
    samples, builder = later(folder, "{{ ('%s' % ('a' * 2**20)) * 2**12 }}")
    made = prefetched(samples, builder, 1, workers=1)
    next(made)
    with pytest.raises(NormprobeError, match="there is no memory for the inputs of"):
        next(made)


def status_of(act: Callable[[], object]) -> int:
    """The exit code of a process that does it."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_worker_may_take_more_for_each_sample_and_pixel() -> None:
    def allocate(**more: int) -> None:
        with limited(**more):
            mmap.mmap(-1, 3 * 2**29)  # addresses, no memory
        os._exit(0)

    assert status_of(allocate) == 7
    assert status_of(functools.partial(allocate, times=2)) == 0
    assert status_of(functools.partial(allocate, pixels=2**23)) == 0


def test_limits_end_with_the_block() -> None:
    def more_afterwards() -> None:
        with limited():
            try:
                bytearray(2**31)
                os._exit(1)
            except MemoryError:
                pass
        bytearray(2**31)
        os._exit(0 if signal.getitimer(signal.ITIMER_PROF)[0] == 0 else 2)

    assert status_of(more_afterwards) == 0


def test_what_was_computed_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = python(
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    )
    try_in_sandbox(python("pass"), "it")
    monkeypatch.setattr(sandbox, "PATIENCE", 0.6)
    for _ in range(4):
        try_in_sandbox(compute, "it")
