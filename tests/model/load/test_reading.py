"""The sentence and the record of what a load reads."""

from pathlib import Path

from support.cases import model_of

from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import reading_record, reading_sentence
from normprobe.model.load.plan import plan_for
from normprobe.model.load.required_tensors import embedding_tables, everything


def test_a_partial_load_names_files_and_bytes(tmp_path: Path) -> None:
    model_of("llava").save_pretrained(tmp_path, max_shard_size="50KB")
    plan = plan_for(embedding_tables, open_checkpoint(str(tmp_path)))
    number = len(plan.weights.files)
    assert number > 2
    assert reading_sentence(plan).startswith(f"reads 1 of {number} weight files of ")
    table = model_of("llava").get_input_embeddings().weight
    record = reading_record(plan)
    assert record["bytes"] == table.nbytes
    assert record["files"] == plan.files
    assert record["everything_because"] is None


def test_a_full_load_says_why(tmp_path: Path) -> None:
    model_of("llava").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    asked_for = plan_for(everything, checkpoint)
    assert "weight file of" in reading_sentence(asked_for)
    unknown = plan_for(embedding_tables, checkpoint, named={"decoder_layers": "model.nowhere"})
    assert "reads every weight of" in reading_sentence(unknown)
    assert "its structure does not tell its parts" in reading_sentence(unknown)
    assert reading_record(unknown)["everything_because"] == unknown.because
