import sys

import pytest

from normprobe.errors import NormprobeError
from normprobe.inputs.memory_limit import stopped_beyond

FAILURE = NormprobeError("it is too large", "mend it")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems keep no such bound")


def test_a_block_that_grows_too_large_is_stopped() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(NormprobeError, match="too large"), stopped_beyond(2**28, FAILURE):
        bytearray(2**30)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(2**30)) == 2**30


def test_a_block_that_does_not_is_not() -> None:
    with stopped_beyond(2**28, FAILURE):
        assert len(bytearray(2**20)) == 2**20
