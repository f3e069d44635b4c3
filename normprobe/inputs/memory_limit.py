"""A bound on the memory of a stranger's code, such as a template that doubles a text for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normprobe.errors import NormprobeError

_SIZES = Path("/proc/self/statm")  # of this process, in pages; Linux alone has it


@contextmanager
def stopped_beyond(more: int, failure: NormprobeError) -> Iterator[None]:
    """Stop the block when the process grows too large in it. Only on Linux.

    Args:
        more: bytes of address space that the process may take beyond what it has.
        failure: what is raised then.

    Raises:
        NormprobeError: ``failure``.
    """
    if not _SIZES.exists():
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = int(_SIZES.read_text().split()[0]) * resource.getpagesize() + more
    known = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    except MemoryError as error:
        raise failure from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
