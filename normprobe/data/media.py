"""Videos and sounds of files and arrays, or a refusal that says where they came from.

Frames are decoded as pictures are, and drawn later, by the processor. What a file claims is held
against bounds before memory is taken for it. FFmpeg reads playlists that name other files: it gets
bytes alone, and only of containers that hold their pictures themselves.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from normprobe.data.images import file_inside, image_hash, read_image_file
from normprobe.data.rows import BadRow, Place, printable
from normprobe.errors import NormprobeError, first_line
from normprobe.failures import install

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: What videos and sounds may hold. 2 ** 28 pixels are 1 GB in Pillow, 2 ** 27 samples half of it.
MOST_FRAMES, MOST_PIXELS, MOST_SAMPLES = 2**13, 2**28, 2**27
#: What is decoded; FFmpeg and libsndfile read more.
CONTAINERS = "avi,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2"
SOUND_FORMATS = ("WAV", "WAVEX", "FLAC", "OGG")


@dataclass(frozen=True)
class Video:
    """A clip."""

    frames: tuple[Image.Image, ...]  # of one size, in their order; RGB
    fps: float | None = None  # frames a second; None: nobody said, and then all of them are read

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the rate and the frames; the same in whatever file they are saved."""
        frames = "+".join(map(image_hash, self.frames))
        return hashlib.sha256(f"video {self.fps}\n{frames}".encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Audio:
    """A sound: float32 ``[samples]`` of one channel, and how many a second."""

    samples: NDArray[np.float32]
    rate: int

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the rate and the samples."""
        return hashlib.sha256(f"audio {self.rate}\n".encode() + self.samples.tobytes()).hexdigest()

    def at(self, rate: int) -> NDArray[np.float32]:
        """The samples at another rate, as transformers resamples.

        Raises:
            BadRow: there would be more than ``MOST_SAMPLES``, or they cannot be made.
        """
        if rate == self.rate:
            return self.samples
        held = len(self.samples)
        if (made := held * rate // self.rate) > MOST_SAMPLES:
            fault = f"{held} samples of {self.rate} Hz become {made} of {rate} Hz"
            remedy = "correct the rate of the sound, or cut it"
            raise BadRow("audio", f"{fault}, expected at most {MOST_SAMPLES}", remedy)
        with _reading(f"a sound of {self.rate} Hz at {rate} Hz", "audio"):
            import soxr

            resampled: NDArray[np.float32] = soxr.resample(self.samples, self.rate, rate, "HQ")
        return resampled


@contextmanager
def _reading(what: str, where: Place | str) -> Iterator[None]:
    """Say what is wrong where a library is missing, or fails on damaged bytes in its own way."""
    try:
        yield
    except ImportError as error:
        package = error.name or "a library"
        problem = f"{what} needs {package}, not installed here"
        raise NormprobeError(problem, install([package])) from error
    except (NormprobeError, MemoryError):
        raise
    except Exception as error:
        raise BadRow(
            where,
            f"{what} cannot be decoded ({first_line(error)})",
            "replace it with a complete mp4, webm, mkv, avi, wav or flac file, or a NumPy array",
        ) from error


def read_video(named: Any, root: Path, where: Place, fps: Any = None) -> Video:
    """A file, a folder of frames, or a list of their files, from inside ``root`` only."""
    if fps is not None and not (type(fps) in (int, float) and 0 < fps < 1e4):
        raise BadRow(where, f"expected frames a second, received {printable(fps)}", "correct fps")
    if isinstance(named, str):
        path = file_inside(named, root, where, "video", folders=True)
        if not path.is_dir():
            video = decode_video(path, where)
            return replace(video, fps=fps or video.fps)
        named = sorted(str(frame.relative_to(root.resolve())) for frame in path.iterdir())
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        fault = f"expected a video or a list of its frames, received {printable(named)}"
        raise BadRow(where, fault, "name a file, a folder of frames, or each frame")
    _bounded(where, len(named))
    frames: list[Image.Image] = []
    for name in named:
        frames.append(read_image_file(name, root, where))
        _bounded(where, len(frames), frames[-1].size)
        if frames[-1].size != frames[0].size:
            break  # refused below
    return video_of(frames, fps, where)


def decode_video(path: Path, where: Place | str) -> Video:
    """Decode every frame of a file, or read ``.npy``: uint8 ``[frames, height, width, 3]``."""
    if path.suffix.lower() == ".npy":
        return video_of(_array(path, where), None, where)
    frames: list[Image.Image] = []
    with _reading(f"the video {path.name[:200]!a}", where):
        import av

        data = io.BytesIO(path.read_bytes())
        with av.open(data, "r", options={"format_whitelist": CONTAINERS}) as file:
            stream = file.streams.video[0]
            _bounded(where, 1, (stream.width, stream.height))
            for frame in file.decode(stream):
                _bounded(where, len(frames) + 1, (frame.width, frame.height))
                frames.append(frame.to_image())
                if frames[-1].size != frames[0].size:
                    break  # refused below
            fps = stream.average_rate
    return video_of(frames, float(fps) if fps else None, where)


def video_of(frames: Any, fps: float | None, where: Place | str = "video") -> Video:
    """Frames as pictures, or as an array uint8 ``[frames, height, width, 3]``."""
    import numpy as np

    if isinstance(frames, np.ndarray):
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
            fault = f"uint8 [frames, height, width, 3], received {frames.dtype} {frames.shape}"
            raise BadRow(where, f"expected {fault}", "convert the frames")
        _bounded(where, len(frames), frames.shape[1:3])
        frames = [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames]
    if not frames or len({frame.size for frame in frames}) > 1 or 0 in frames[0].size:
        sizes = ", ".join(sorted({f"{f.width}x{f.height}" for f in frames})) or "no frame"
        raise BadRow(where, f"expected frames of one size, received {sizes}", "convert the video")
    # To convert what is RGB copies it.
    pictures = (frame if frame.mode == "RGB" else frame.convert("RGB") for frame in frames)
    return Video(tuple(pictures), fps)


def read_audio(named: Any, root: Path, where: Place, rate: Any = None) -> Audio:
    """A file, from inside ``root`` only; ``rate``: of the samples of ``.npy``."""
    if not isinstance(named, str):
        raise BadRow(where, f"expected a sound, received {printable(named)}", "name a file")
    return decode_audio(file_inside(named, root, where, "sound"), where, rate)


def decode_audio(path: Path, where: Place | str, rate: Any = None) -> Audio:
    """Decode a file, or read ``.npy``: numbers ``[samples]``, with their rate."""
    if path.suffix.lower() == ".npy":
        return audio_of(_array(path, where), rate, where)
    with _reading(f"the sound {path.name[:200]!a}", where):
        import soundfile

        with soundfile.SoundFile(io.BytesIO(path.read_bytes())) as file:
            if file.format not in SOUND_FORMATS:
                raise ValueError(file.format)
            _bounded(where, samples=file.frames * file.channels)
            samples = file.read(dtype="float32", always_2d=True)
            return audio_of(samples.mean(axis=1), file.samplerate, where)


def audio_of(samples: NDArray[Any], rate: Any, where: Place | str = "audio") -> Audio:
    """Samples ``[samples]``, floats or int16, and their rate."""
    import numpy as np

    if type(rate) is not int or not 0 < rate <= 10**6:
        fault = f"expected samples a second, received {printable(rate)}"
        raise BadRow(where, fault, "say the rate of the samples, such as 16000")
    if not samples.size:
        raise BadRow(where, "the sound is empty: it has no sample", "replace it, or leave it out")
    _bounded(where, samples=samples.size)
    scale = 2.0**15 if samples.dtype == np.int16 else 1.0
    numbers = samples.dtype == np.int16 or np.issubdtype(samples.dtype, np.floating)
    if not numbers or samples.ndim != 1:
        fault = f"expected floats or int16 [samples], received {samples.dtype} {samples.shape}"
        raise BadRow(where, fault, "convert the sound to one channel of these numbers")
    made = np.ascontiguousarray(samples / scale, dtype=np.float32)
    if not np.isfinite(made).all():
        raise BadRow(where, "the sound holds numbers that are not finite", "correct the file")
    return Audio(made, rate)


def _array(path: Path, where: Place | str) -> NDArray[Any]:
    """Mapped, not read: the file has to be as long as its header says."""
    import numpy as np

    with _reading(f"the array {path.name[:200]!a}", where):
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several")
    return array


def _bounded(
    where: Place | str, frames: int = 0, size: Sequence[int] = (0, 0), samples: int = 0
) -> None:
    """Refuse what would take too much memory."""
    pixels = frames * size[0] * size[1]
    if frames > MOST_FRAMES or pixels > MOST_PIXELS or samples > MOST_SAMPLES:
        raise BadRow(
            where,
            f"expected at most {MOST_FRAMES} frames, {MOST_PIXELS} pixels of them all and "
            f"{MOST_SAMPLES} samples; received {frames}, {pixels} and {samples} or more",
            "cut it, or take fewer and smaller frames: ffmpeg -i FILE -vf fps=2,scale=640:-2 NEW",
        )
