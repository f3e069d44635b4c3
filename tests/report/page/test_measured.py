"""What was measured, as the first screen says it."""

from normprobe.report.page.document import measured, models
from normprobe.runs.run_folder import RunStore

ONE = {
    "model": "org/one",
    "model_type": "llava",
    "sizes": {"decoder_layers": 32, "hidden_size": 4096},
    "data": "sample",
    "data_provenance": {
        "sources": [
            {"benchmark": "pope", "questions": 2},
            {"benchmark": "mmstar", "questions": 1},
        ]
    },
    "sample_ids": ["a", "b", "c"],
    "image_hashes": {"a": "1", "b": "1", "c": "2"},
}


def test_model_data_and_samples() -> None:
    compared = RunStore({"model": "2 runs of layers", "compared": "layers", "data": "sample"})
    runs = [RunStore(ONE), RunStore(ONE), compared]
    assert models(runs) == ["org/one"]
    assert measured(runs) == [
        ("Model", "llava, 32 decoder layers, hidden size 4096"),
        ("Data", "sample (2 pope, 1 mmstar)"),
        ("Samples", "3 with 2 images"),
    ]


def test_of_many_models_a_few_are_named() -> None:
    runs = [RunStore(ONE | {"model": f"org/{number}"}) for number in range(6)]
    assert dict(measured(runs))["Model"] == "org/0; org/1; org/2; org/3; 2 more"


def test_what_a_stranger_wrote_in_a_record_is_no_reason_to_fail() -> None:
    strange = {"sizes": [1], "data_provenance": {"sources": [None]}, "image_hashes": 3}
    told = dict(measured([RunStore(ONE | strange)]))
    assert told == {"Data": "sample", "Samples": "3"}
