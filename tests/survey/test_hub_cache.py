"""The cache of a survey: what stays in the hub cache, and what of it when a model is done."""

from pathlib import Path

import pytest

from normprobe.survey.hub_cache import HubCache

FILES = {"model.safetensors": "blobs/1", "config.json": "blobs/2"}


def fetched(repository: Path) -> Path:
    """A repository as the hub's library keeps it: links of a snapshot to blobs."""
    snapshot = repository / "snapshots/main"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name, blob in FILES.items():
        (repository / blob).write_text(f"{repository.name}: {name}")
        (snapshot / name).symlink_to(Path("../..", blob))
    return repository


def contents(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("keep", ["none", "config", "all"])
def test_the_hub_cache_stays_as_it_was_and_of_new_models_what_is_kept(
    keep: str, tmp_path: Path
) -> None:
    before = fetched(tmp_path / "shared/models--org--before")
    held = contents(before)
    cache = HubCache(tmp_path / "survey", tmp_path / "shared", keep)
    cache.open()
    own = tmp_path / "survey/cache/hub"
    linked = own / before.name / "snapshots/main/model.safetensors"
    assert linked.exists() == (keep != "all")
    new = fetched(own / "models--org--new")
    cache.close()
    assert contents(before) == held
    assert linked.exists() == (keep == "config")
    left = {Path(name).name for name in contents(new)} if new.exists() else set()
    assert (
        left
        == {
            "none": set(),
            "config": {"config.json", "2"},
            "all": {"model.safetensors", "config.json", "1", "2"},
        }[keep]
    )
