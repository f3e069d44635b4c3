"""The questions inside the package: real photographs, no download."""

from pathlib import Path

from normprobe.errors import NormprobeError


def bundled_data_dir() -> Path:
    """Return the folder of the bundled files, in an installed wheel or in a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "bundled"  # the build maps benchmarks_data to this place
    checkout = here.parents[1] / "benchmarks_data"
    for folder in (installed, checkout):
        if folder.is_dir():
            return folder
    raise NormprobeError(
        f"the bundled questions are missing: neither {installed} nor {checkout} exists",
        "reinstall normprobe, or pass a data file with --data PATH",
    )
