"""Weight files in every format, whole and damaged."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from normprobe.errors import NormprobeError
from normprobe.model.load.repository import Repository
from normprobe.model.load.weight_files import WeightFiles
from normprobe.specimen import SPECIMEN_DIR

WEIGHTS = load_file(SPECIMEN_DIR / "model.safetensors")
KEYS = sorted(WEIGHTS)
HALF = len(KEYS) // 2


def files_of(folder: Path) -> WeightFiles:
    return WeightFiles(Repository("tiny", str(folder), None))


def write(folder: Path, layout: str) -> Path:
    """The specimen's weights in one of the published layouts."""
    suffix = "safetensors" if "safetensors" in layout else "bin"
    parts = {f"w-1.{suffix}": KEYS[:HALF], f"w-2.{suffix}": KEYS[HALF:]}
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    if "sharded" not in layout:
        parts = {f"{stem}.{suffix}": KEYS}
    for file, keys in parts.items():
        tensors = {key: WEIGHTS[key] for key in keys}
        if suffix == "safetensors":
            save_file(tensors, folder / file, metadata={"format": "pt"})
        else:
            torch.save(tensors, folder / file)
    if "sharded" in layout:
        weight_map = {key: file for file, keys in parts.items() for key in keys}
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("layout", ["safetensors", "sharded safetensors", "bin", "sharded bin"])
def test_every_layout_gives_the_same_tensors(layout: str, tmp_path: Path) -> None:
    weights = files_of(write(tmp_path, layout))
    assert set(weights.file_of) == set(KEYS)
    assert len(weights.files) == (2 if "sharded" in layout else 1)
    found = weights.tensors(KEYS)
    for key, expected in WEIGHTS.items():
        header = weights.header(key)
        assert header.shape == tuple(expected.shape)
        assert header.nbytes == expected.nbytes
        assert torch.equal(found[key][...], expected)


def test_only_the_files_that_are_needed_are_opened(tmp_path: Path) -> None:
    write(tmp_path, "sharded safetensors")
    (tmp_path / "w-2.safetensors").unlink()
    weights = files_of(tmp_path)
    assert weights.tensors(KEYS[:HALF]).keys() == set(KEYS[:HALF])
    with pytest.raises(NormprobeError, match=r"lacks the weight file w-2\.safetensors"):
        weights.tensors(KEYS[HALF:])


class OnAHub(Repository):
    """Nothing of it is here. Spans count from the end of a file."""

    @property
    def is_local(self) -> bool:
        return False

    def path_here(self, file: str) -> None:
        return None

    def fetch_if_any(self, file: str) -> None:
        return None

    def holds(self, file: str) -> bool:
        return file == "model.safetensors"

    def remote_header(self, file: str) -> dict[str, Any]:
        data = self._data()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        del header["__metadata__"]
        return {key: SimpleNamespace(**info) for key, info in header.items()}

    def read_spans(
        self, file: str, spans: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, bytearray]]:
        for begin, end in spans:
            yield begin, bytearray(self._data()[begin : end or None])

    def _data(self) -> bytes:
        return Path(self.source, "model.safetensors").read_bytes()


@pytest.mark.parametrize("keys", [KEYS, KEYS[:1], KEYS[-1:], KEYS[1::3]])
def test_tensors_come_by_ranges_of_bytes(keys: list[str], tmp_path: Path) -> None:
    hub = OnAHub("tiny", str(write(tmp_path, "safetensors")), None)
    found = WeightFiles(hub, range_reads=True).tensors(keys)
    assert sorted(found) == keys
    for key in keys:
        assert torch.equal(found[key], WEIGHTS[key])


def test_a_folder_whose_weights_lie_in_folders_of_parts(tmp_path: Path) -> None:
    """VILA loads its language model, tower and projector one by one."""
    for part in ("tower", "llm"):
        (tmp_path / part).mkdir()
        save_file({"weight": torch.zeros(1)}, tmp_path / part / "model.safetensors")
    with pytest.raises(NormprobeError) as told:
        _ = files_of(tmp_path).file_of
    assert told.value.remedy.startswith("weights lie in llm, tower, which the model's code reads")


def test_a_folder_of_a_whole_config_and_an_adapter(tmp_path: Path) -> None:
    """As LLaVA-Rad is published: to fetch it again would help nobody."""
    save_file({"weight": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(NormprobeError, match=r"looked for model\.safetensors") as told:
        _ = files_of(tmp_path).file_of
    assert told.value.remedy.startswith("it holds an adapter beside a whole config: merge it")


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(NormprobeError, match=r"looked for model\.safetensors and pytorch_model"):
        _ = files_of(tmp_path).file_of


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"w-1\.safetensors of tiny is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", r"git-lfs pointer"),
        (b"garbage that is long enough to be read as a header", r"w-1\.safetensors of tiny cannot"),
    ],
)
def test_a_file_that_is_none_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path, "sharded safetensors")
    (tmp_path / "w-1.safetensors").write_bytes(content)
    with pytest.raises(NormprobeError, match=message):
        files_of(tmp_path).header(KEYS[0])


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "sharded safetensors")
    file = tmp_path / "w-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(NormprobeError, match=r"w-1\.safetensors of tiny cannot be read"):
        files_of(tmp_path).header(KEYS[0])


def test_a_tensor_that_only_the_index_knows(tmp_path: Path) -> None:
    write(tmp_path, "sharded safetensors")
    save_file({"other": torch.ones(1)}, tmp_path / "w-1.safetensors")
    with pytest.raises(NormprobeError, match=r"w-1\.safetensors of tiny lacks .*index"):
        files_of(tmp_path).header(KEYS[0])


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"weight_map": 3}', '{"weight_map": ["a"]}', '{"a":' * 100_000),
        '{"weight_map": {}, "metadata": {"total_size": Infinity}}',
    ],
)
def test_an_index_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(NormprobeError, match=r"index\.json of tiny is no index"):
        _ = files_of(tmp_path).file_of


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/secret.safetensors", "a/../../b"])
def test_an_index_cannot_lead_out_of_the_folder(file: str, tmp_path: Path) -> None:
    index = {"weight_map": {"x": file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NormprobeError, match="outside the checkpoint"):
        _ = files_of(tmp_path).file_of


def test_a_link_of_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder, "sharded safetensors")
    (folder / "w-1.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "w-1.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(NormprobeError, match=r"names w-1\.safetensors, outside the checkpoint"):
        _ = files_of(folder).file_of


def test_links_of_a_hub_cache_are_followed(tmp_path: Path) -> None:
    """A snapshot holds links to ``blobs``, and may itself be reached by a link."""
    folder = tmp_path / "models--org--a/snapshots/commit"
    folder.mkdir(parents=True)
    write(folder, "sharded safetensors")
    (tmp_path / "models--org--a/blobs").mkdir()
    for file in list(folder.iterdir()):
        blob = tmp_path / "models--org--a/blobs" / f"blob-{file.name}"
        file.rename(blob)
        file.symlink_to(Path("../../blobs") / blob.name)
    (tmp_path / "linked").symlink_to(folder)
    for reached in (folder, tmp_path / "linked"):
        assert set(files_of(reached).file_of) == set(KEYS)


@pytest.mark.parametrize("file", ["x" * 5000, "a\0b", "\x1b[31m"])
def test_an_index_names_files_as_file_systems_do(file: str, tmp_path: Path) -> None:
    index = {"weight_map": {"x": file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NormprobeError, match="no file name"):
        _ = files_of(tmp_path).file_of


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    torch.save({"x": Payload()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(NormprobeError, match=r"pytorch_model\.bin of tiny cannot be read"):
        _ = files_of(tmp_path).file_of
    assert not (tmp_path / "ran").exists()


def test_sizes_are_those_on_disk(tmp_path: Path) -> None:
    weights = files_of(write(tmp_path, "sharded safetensors"))
    expected = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert weights.size_of(weights.files) == expected
    assert weights.size_of(["w-1.safetensors"]) == (tmp_path / "w-1.safetensors").stat().st_size


@pytest.mark.parametrize(("layout", "said"), [("safetensors", None), ("sharded safetensors", 1)])
def test_sizes_that_nobody_knows_are_those_of_the_index(
    layout: str, said: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = files_of(write(tmp_path, layout))
    monkeypatch.setattr(Repository, "sizes", lambda _, files: dict.fromkeys(files))
    assert weights.size_of(weights.files) == said
    if said is not None:
        assert weights.size_of(["w-1.safetensors"]) is None
