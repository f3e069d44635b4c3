"""The files of a checkpoint, in a local folder, in the hub's cache or on the hub."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, first_line

FETCH_AGAIN = "fetch the checkpoint again"

_CHUNK = 16 * 2**20  # bytes: a broken connection costs one chunk at most


@dataclass(frozen=True)
class Repository:
    """Where a checkpoint's files are."""

    name: str  # as typed, for messages
    source: str  # a local folder or a hub id
    revision: str | None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder on this machine."""
        return Path(self.source).is_dir()

    def path_here(self, file: str) -> Path | None:
        """The file's path where no download is needed for it, else None."""
        from huggingface_hub import try_to_load_from_cache

        if self.is_local:
            path = Path(self.source, file)
            return path if path.is_file() else None
        cached = try_to_load_from_cache(self.source, file, revision=self.revision)
        return Path(cached) if isinstance(cached, str) else None

    def holds(self, file: str) -> bool:
        """Whether there is such a file. The hub is asked, unless the file is here or offline."""
        from huggingface_hub import HfApi, constants

        if self.is_local or self.path_here(file) or constants.HF_HUB_OFFLINE:
            return self.path_here(file) is not None
        with self._asking_for(file):
            return HfApi().file_exists(self.source, file, revision=self.revision)

    def fetch_if_any(self, file: str) -> Path | None:
        """The path of a file, downloaded if needed; None where the checkpoint has no such file."""
        from transformers.utils.hub import cached_file

        with self._asking_for(file):
            path = cached_file(
                self.source,
                file,
                revision=self.revision,
                _raise_exceptions_for_missing_entries=False,
            )
        return None if path is None else Path(path)

    def fetch(self, file: str) -> Path:
        """The path of a file, downloaded if needed; an interrupted download is continued."""
        from huggingface_hub import hf_hub_download

        if (path := self.path_here(file)) is not None:
            return path
        if self.is_local:
            raise self.lacks(file)
        with self._asking_for(file):
            return Path(hf_hub_download(self.source, file, revision=self.revision))

    def remote_header(self, file: str) -> Mapping[str, Any]:
        """The header of a safetensors file on the hub, by key, without the weights behind it."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            HfHubHTTPError,
            OfflineModeIsEnabled,
            SafetensorsParsingError,
        )

        def ask() -> Mapping[str, Any]:
            tensors: Mapping[str, Any] = (
                HfApi()
                .parse_safetensors_file_metadata(self.source, file, revision=self.revision)
                .tensors
            )
            return tensors

        with self._asking_for(file):
            try:
                return ask()
            except (HfHubHTTPError, OfflineModeIsEnabled, SafetensorsParsingError):
                raise
            except Exception:  # a broken connection: the library itself does not try this again
                return ask()

    def read_spans(
        self, file: str, spans: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[int, bytearray]]:
        """Read spans of bytes of a file on the hub, without the rest of the file."""
        from huggingface_hub import HfFileSystem
        from huggingface_hub.utils.tqdm import tqdm

        spans = list(spans)
        place = (
            f"{self.source}@{self.revision}/{file}" if self.revision else f"{self.source}/{file}"
        )
        total = sum(stop - start for start, stop in spans)
        bar = tqdm(desc=file, total=total, unit="B", unit_scale=True)  # type: ignore[no-untyped-call]
        with self._asking_for(file), bar, HfFileSystem().open(place, cache_type="none") as remote:
            for start, stop in spans:
                data, at = bytearray(stop - start), 0
                remote.seek(start if start >= 0 else remote.size + start)
                while at < len(data):
                    chunk = remote.read(min(_CHUNK, len(data) - at))
                    if not chunk:
                        raise EOFError(f"it ends {len(data) - at} bytes early")
                    data[at : at + len(chunk)] = chunk
                    at += len(chunk)
                    bar.update(len(chunk))
                yield start, data

    def sizes(self, files: Iterable[str]) -> dict[str, int | None]:
        """Bytes of each file; None where that is unknown, such as offline."""
        from huggingface_hub import HfApi

        sizes: dict[str, int | None] = {
            file: path.stat().st_size if (path := self.path_here(file)) else None for file in files
        }
        unknown = [file for file, size in sizes.items() if size is None]
        if unknown and not self.is_local:
            try:
                with self._asking_for(unknown[0]):
                    found = HfApi().get_paths_info(self.source, unknown, revision=self.revision)
            except NormprobeError:  # sizes are shown, never computed with
                found = []
            sizes.update({info.path: info.size for info in found if hasattr(info, "size")})
        return sizes

    def lacks(self, file: str) -> NormprobeError:
        """The error that names an absent weight file."""
        return NormprobeError(f"{self.name} lacks the weight file {file}", FETCH_AGAIN)

    def not_cached(self, file: str) -> NormprobeError:
        """The error that names a file that is neither here nor, offline, on a hub."""
        return NormprobeError(
            f"{file} of {self.name} is not in the cache, and the hub cannot be reached",
            "connect (is HF_HUB_OFFLINE set, or the network down?), or pass a local folder",
        )

    @contextmanager
    def _asking_for(self, file: str) -> Iterator[None]:
        """Turn what the hub library raises about a file into a ``NormprobeError``."""
        from huggingface_hub import constants
        from huggingface_hub.errors import (
            EntryNotFoundError,
            LocalEntryNotFoundError,
            OfflineModeIsEnabled,
            SafetensorsParsingError,
        )

        try:
            yield
        except NormprobeError:
            raise
        except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
            raise self.not_cached(file) from error
        except EntryNotFoundError as error:
            raise self.lacks(file) from error
        except SafetensorsParsingError as error:
            raise NormprobeError(
                f"{file} of {self.name} cannot be read: {first_line(error)}", FETCH_AGAIN
            ) from error
        except Exception as error:  # the hub library's HTTP client changes from version to version
            if constants.HF_HUB_OFFLINE:
                raise self.not_cached(file) from error
            raise NormprobeError(
                f"cannot fetch {file} of {self.name}: {first_line(error)}",
                "run the command again: files go on where they stopped",
            ) from error
