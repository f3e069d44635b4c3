"""A checkpoint on a hub: what is fetched, by the log of a hub on this machine."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.commands import Ended, Forked, spawned
from support.flat import flat
from support.loopback_hub import COMMIT
from support.running_hub import ONLINE, Hub
from transformers import AutoModelForImageTextToText

from normprobe import align_norms
from normprobe.specimen import SPECIMEN_DIR

#: Each test starts commands in processes of their own.
pytestmark = pytest.mark.slow

#: The hub library writes, and can resume, in pieces of 10 MB.
PIECE = 10_485_760
ROWS = 60_000
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The specimen with a table of 15 MB, in shards; the processor is untouched."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(
        SPECIMEN_DIR, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors")
    )
    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR)
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    torch.manual_seed(0)
    model.get_input_embeddings().weight.data.normal_()
    model.save_pretrained(folder, max_shard_size="1MB")
    return folder


@pytest.fixture
def serve(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    hubs: list[Hub] = []

    def start(*options: str, served: Path = folder) -> Hub:
        log = tmp_path / f"requests-{len(hubs)}.jsonl"
        hubs.append(Hub(log, f"team/model={served}", *options))
        return hubs[-1]

    yield start
    for hub in hubs:
        hub.close()


@pytest.fixture
def online(tmp_path: Path) -> Callable[[Hub], dict[str, str]]:
    """The environment of a command that asks a hub; the cache is shared within a test."""
    return lambda hub: {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), **ONLINE}


@pytest.fixture
def ask(
    online: Callable[[Hub], dict[str, str]], start: Callable[..., Forked], tmp_path: Path
) -> Callable[..., Ended]:
    """Run a command against a hub in a process: libraries remember a hub as long as they run.

    Those of transformers 4.57 do so in more places than a fork can change.
    """

    def run(hub: Hub, *arguments: str, **environment: str) -> Ended:
        words, variables = (*arguments, "-o", "out", "--overwrite"), {**online(hub), **environment}
        if transformers.__version__.startswith("4."):
            return spawned(tmp_path, words, variables, unrendered=True)
        return start(*words, **variables).wait(timeout=120)

    return run


of_line_5 = pytest.mark.skipif(
    transformers.__version__.startswith("4."), reason="its hub library fetches in another way"
)


def shard_of(folder: Path, part: str) -> str:
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return next(file for key, file in weight_map.items() if part in key)


Ask = Callable[..., Ended]


@of_line_5
def test_one_shard_is_fetched_once(
    serve: Callable[..., Hub], ask: Ask, folder: Path, tmp_path: Path
) -> None:
    cut = 12_000_000
    shard = shard_of(folder, "embed_tokens")
    size = (folder / shard).stat().st_size
    hub = serve("--break-after", str(cut))
    first = ask(hub, "embeddings", "team/model")
    assert first.returncode == 0, first.stderr
    number = len(list(folder.glob("*.safetensors")))
    assert f"fetches 1 of {number} weight files" in first.stderr
    # Its header, what came before the connection broke, and the rest: not the file again.
    assert hub.weights_sent().keys() == {shard}
    ranges = [r["range"] for r in hub.requests() if r["path"] == shard and r["method"] == "GET"]
    assert ranges == ["bytes=0-100000", None, f"bytes={PIECE}-"]
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["weights"] == {
        "files": [shard],
        "bytes": ROWS * 128 * 2,
        "base_of_adapter": None,
        "everything_because": None,
    }
    assert len(record["model_revision"]) == 40
    table = (tmp_path / "out/embeddings.csv").read_text()

    again = serve()
    second = ask(again, "embeddings", "team/model")
    assert second.returncode == 0, second.stderr
    assert "reads 1 of" in second.stderr
    assert again.weights_sent() == {}
    assert not any("safetensors" in request["path"] for request in again.requests())

    offline = ask(again, "embeddings", "team/model", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert (tmp_path / "out/embeddings.csv").read_text() == table
    cold = ask(again, "interface", "team/model", "-n", "1", HF_HUB_OFFLINE="1")
    assert cold.returncode == 1
    assert "of team/model is not in the cache" in cold.stderr  # a shard: embeddings did not need it
    assert "is HF_HUB_OFFLINE set" in cold.stderr
    assert "Traceback" not in cold.stderr
    assert size > cut


@pytest.mark.parametrize(
    ("command", "wanted"),
    [(("embeddings",), 433 * 128 * 2), (("interface", "-n", "2"), 2_623_488)],
)
def test_needed_bytes_alone_are_fetched_where_they_are_few(
    command: tuple[str, ...], wanted: int, serve: Callable[..., Hub], ask: Ask, tmp_path: Path
) -> None:
    hub = serve("--break-after", "60000", served=SPECIMEN_DIR)
    name, *words = command
    result = ask(hub, name, "team/model", *words)
    assert result.returncode == 0, result.stderr
    assert "fetches bytes of 1 of 1 weight file" in result.stderr
    sent = [r["sent"] for r in hub.requests() if r["path"] == WEIGHTS and r["method"] == "GET"]
    assert sent[:2] == [60_000, 100_001]  # the broken header is asked for again
    assert wanted <= sum(sent[2:]) <= 1.05 * wanted + 60_000
    by_ranges = (tmp_path / f"out/{name}.csv").read_text()
    assert ask(hub, name, str(SPECIMEN_DIR), *words).returncode == 0
    assert (tmp_path / f"out/{name}.csv").read_text() == by_ranges
    whole = ask(hub, "layers", "team/model", "-n", "1")  # nearly all: the file is kept
    assert "fetches 1 of 1 weight file" in whole.stderr


def test_a_shard_that_the_hub_lacks_is_named(
    serve: Callable[..., Hub], ask: Ask, folder: Path, tmp_path: Path
) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    shard = shard_of(damaged, "embed_tokens")
    (damaged / shard).unlink()
    result = ask(serve(served=damaged), "embeddings", "team/model")
    assert result.returncode == 1
    assert f"lacks the weight file {shard}" in result.stderr
    assert not (tmp_path / "out").exists()


@of_line_5
def test_inspect_reads_headers_alone(
    serve: Callable[..., Hub],
    online: Callable[[Hub], dict[str, str]],
    folder: Path,
    tmp_path: Path,
) -> None:
    hub = serve()
    command = ("inspect", "team/model", "--weights", "--format", "json")
    result = spawned(tmp_path, command, online(hub))
    assert result.returncode == 0, result.stderr
    table = {row["what"]: row for row in json.loads(result.stdout)["weights"]}
    assert table["text_embedding"]["bytes"] == ROWS * 128 * 2
    assert table["text_embedding"]["files"] == shard_of(folder, "embed_tokens")
    assert all(sent <= 100_001 for sent in hub.weights_sent().values())


def test_an_aligned_checkpoint_and_an_adapter_of_a_commit(
    serve: Callable[..., Hub], ask: Ask, tmp_path: Path
) -> None:
    """The norm's shard is fetched where the norm is needed, and the adapter keeps the commit."""
    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR)
    align_norms(model, 7.0)
    served = tmp_path / "aligned"
    files = shutil.ignore_patterns("*.safetensors", "config.json")
    shutil.copytree(SPECIMEN_DIR, served, ignore=files)
    model.save_pretrained(served, max_shard_size="1MB")
    hub = serve(served=served)
    assert ask(hub, "embeddings", "team/model").returncode == 0
    assert hub.weights_sent().keys() == {shard_of(served, "embed_tokens")}
    done = ask(hub, "align", "team/model", "-n", "1", "--target", "3")
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "out/norm_alignment.json").read_text())
    assert settings["base_model"] == "team/model"
    assert re.fullmatch("[0-9a-f]{40}", settings["revision"])
    (tmp_path / "out").rename(tmp_path / "adapter")
    for source, norm in (("team/model", 7.0), ("./adapter", 3.0)):
        done = ask(hub, "interface", source, "-n", "1")
        assert done.returncode == 0, done.stderr
        table = flat(pd.read_csv(tmp_path / "out/interface.csv")).set_index(["stage", "group"])
        behind = table.loc[("projector_output", "visual"), "norm_mean"]
        assert behind == pytest.approx(norm, rel=0.01)
    done = ask(hub, "align", "./adapter", "-n", "1")
    again = json.loads((tmp_path / "out/norm_alignment.json").read_text())
    assert again == settings


def test_old_weight_files_are_found_again_offline(
    serve: Callable[..., Hub], ask: Ask, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "old"))
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    hub = serve(served=old)
    assert ask(hub, "embeddings", "team/model").returncode == 0
    table = (tmp_path / "out/embeddings.csv").read_text()
    offline = ask(hub, "embeddings", "team/model", HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert (tmp_path / "out/embeddings.csv").read_text() == table


def test_an_adapter_on_the_hub_is_merged_and_pinned(
    serve: Callable[..., Hub], ask: Ask, folder: Path, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model  # slow

    adapter = tmp_path / "adapter"
    model = AutoModelForImageTextToText.from_pretrained(folder)
    config = LoraConfig(r=2, target_modules=["embed_tokens"], init_lora_weights=False)
    adapted = get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = "team/model"
    adapted.save_pretrained(adapter)
    hub = serve(f"team/adapter={adapter}")
    result = ask(hub, "embeddings", "team/adapter")
    assert result.returncode == 0, result.stderr
    shard = shard_of(folder, "embed_tokens")
    assert hub.weights_sent().keys() == {shard, "adapter_model.safetensors"}
    assert json.loads((tmp_path / "out/run.json").read_text())["adapter_revision"] == COMMIT
    merged = adapted.merge_and_unload().get_input_embeddings().weight.detach().double()
    table = flat(pd.read_csv(tmp_path / "out/embeddings.csv")).set_index("rows")
    expected = merged.norm(dim=1).mean().item()
    assert table.loc["all_rows", "norm_mean"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["gated/model"], {}, ["gated/model is gated", "HF_TOKEN"]),
        (["team/model", "--revision", "dev"], {}, ["team/model has no revision 'dev'"]),
        (
            ["team/model"],
            {"HF_HUB_OFFLINE": "1"},
            ["config.json of team/model is not in the cache", "HF_HUB_OFFLINE is set"],
        ),
    ],
    ids=["gated", "revision", "offline"],
)
def test_why_the_hub_gives_nothing(
    arguments: list[str],
    environment: dict[str, str],
    words: list[str],
    serve: Callable[..., Hub],
    ask: Ask,
    tmp_path: Path,
) -> None:
    result = ask(serve(), "embeddings", *arguments, **environment)
    assert result.returncode == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    assert not (tmp_path / "out").exists()
