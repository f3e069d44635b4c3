"""What runs share is told once, the rest run by run."""

from normprobe.report.page.document import own_facts, shared_facts
from normprobe.runs.run_folder import RunStore

LAYERS = {
    "command": "layers",
    "model": "org/one",
    "device": "cpu",
    "sample_ids": ["a", "b"],
    "argv": ["/x/normprobe", "layers", "a b"],
}


def test_of_one_run_everything_is_shared() -> None:
    runs = [RunStore(LAYERS)]
    assert dict(shared_facts(runs)) == {
        "model": "org/one",
        "samples": "2",
        "command line": "normprobe layers 'a b'",
        "device": "cpu",
    }
    assert own_facts(runs, ["layers"]).empty


def test_what_differs_stands_by_run() -> None:
    aligned = RunStore(LAYERS | {"device": "cuda", "alignment": {"scale": 0.123456, "at": None}})
    compared = RunStore({"command": "compare", "compared": "layers", "model": "2 runs of layers"})
    runs = [RunStore(LAYERS), aligned, compared]
    shared = dict(shared_facts(runs))
    assert shared["model"] == "org/one"  # a comparison has no model of its own
    assert not {"device", "alignment norm"} & set(shared)
    own = own_facts(runs, ["layers", "layers, aligned", "compare"])
    assert own.to_dict("records") == [
        {"run": "layers", "alignment norm": "", "device": "cpu"},
        {"run": "layers, aligned", "alignment norm": "scale: 0.1235", "device": "cuda"},
        {"run": "compare", "alignment norm": "", "device": ""},
    ]


def test_digests_of_all_tensors_are_one() -> None:
    one, other = {"a": "1", "b": "2"}, {"a": "1", "b": "3"}
    runs = [RunStore(LAYERS | {"weight_digests": weights}) for weights in (one, one, other)]
    (told,) = (value for words, value in shared_facts(runs[:2]) if words == "weights")
    assert len(told) == 16
    assert list(own_facts(runs, ["a", "b", "c"])["weights"].value_counts()) == [2, 1]
