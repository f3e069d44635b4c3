"""Referring expressions as people have them on disk: COCO's form, and lists of references."""

import json

import pytest
from PIL import Image

from normprobe import NormprobeError
from normprobe.data.data_set import open_data

IMAGES = [
    {"id": 7, "file_name": "a.png", "caption": "the red cup on the left"},
    {"id": 8, "file_name": "b.png", "caption": "a dog"},
]
ANNOTATIONS = [
    {"id": 70, "image_id": 7, "bbox": [2, 3, 10, 5], "tokens_positive": [[8, 11]]},
    {"id": 80, "image_id": 8, "bbox": [0.0, 0.0, 32.4, 24.0]},
]
REFERENCES = [
    {
        "ref_id": 1,
        "ann_id": 70,
        "sentences": [{"sent_id": 5, "sent": "red cup"}, {"sent_id": 6, "sent": "left cup"}],
    },
    {"ref_id": 2, "ann_id": [80], "sentences": [{"sent_id": 9, "sent": "dog"}]},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train2014").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (32, 24)).save(tmp_path / "train2014" / name)
    return tmp_path


def write(path, whole):
    path.write_text(json.dumps(whole))
    return path


def coco(images=IMAGES, annotations=ANNOTATIONS):
    return {"images": images, "annotations": annotations, "categories": []}


def without_captions():
    return coco([{name: i[name] for name in ("id", "file_name")} for i in IMAGES])


def test_captions_in_the_form_of_coco(folder):
    samples = list(open_data(str(write(folder / "finetune_refcoco_val.json", coco()))))
    assert [sample.id for sample in samples] == ["referring/70", "referring/80"]
    first, second = samples
    assert first.prompt == "Where is the red cup on the left?"
    assert (first.referent.word, first.referent.box) == ("cup", (2, 3, 12, 8))
    # Without characters all of the caption means the box; COCO rounds beyond the border.
    assert (second.referent.word, second.referent.box) == ("a dog", (0, 0, 32, 24))


def test_references_beside_instances(folder):
    write(folder / "instances.json", without_captions())
    path = write(folder / "grefs(unc).json", REFERENCES)
    for spec in (path, folder):
        samples = list(open_data(str(spec)))
        assert [sample.id for sample in samples] == [f"referring/{key}" for key in (5, 6, 9)]
        assert [sample.referent.word for sample in samples] == ["red cup", "left cup", "dog"]
        assert samples[1].prompt == "Where is left cup?"
        assert samples[0].referent.box == samples[1].referent.box == (2, 3, 12, 8)


def test_boxes_alone_say_where_the_expressions_may_be(folder):
    path = write(folder / "instances.json", without_captions())
    with pytest.raises(NormprobeError, match="boxes without expressions") as raised:
        open_data(str(path))
    assert "pickle" in raised.value.remedy


def test_references_alone_ask_for_instances(folder):
    path = write(folder / "refs(unc).json", REFERENCES)
    with pytest.raises(NormprobeError, match="expected its boxes and pictures in "):
        open_data(str(path))


def changed(**cells):
    return coco(annotations=[{**ANNOTATIONS[0], **cells}, ANNOTATIONS[1]])


@pytest.mark.parametrize(
    ("whole", "fault"),
    [
        (
            changed(bbox=[2, 3, 40, 5]),
            "column box: 2,3,42,8 is no region of the image",
        ),
        (changed(bbox=[2, 3, 0, 5]), "is no region"),
        (changed(bbox=[2, 3, 5]), "expected a list of four numbers"),
        (changed(bbox=[True, 3, 5, 5]), "expected a list of four numbers"),
        (changed(tokens_positive=[[9, 11]]), "'up' is not in the prompt"),
        (changed(tokens_positive=[["a", 2]]), "expected begin and end of the characters"),
        (coco([{**IMAGES[0], "file_name": "../../a.png"}, IMAGES[1]]), "leaves the folder"),
        (coco([{**IMAGES[0], "file_name": "no.png"}, IMAGES[1]]), "cannot be read"),
    ],
)
def test_a_bad_entry_is_named_and_can_be_skipped(folder, whole, fault):
    path = write(folder / "val.json", whole)
    with pytest.raises(NormprobeError) as raised:
        list(open_data(str(path)))
    assert fault in raised.value.problem
    assert "annotation 1" in raised.value.problem
    data = open_data(str(path), skip_bad=True)
    assert [sample.id for sample in data] == ["referring/80"]
    assert len(data.bad.skipped) == 1


@pytest.mark.parametrize("ann_id", [None, 71, [70, 80], {}])
def test_a_reference_to_no_box_or_to_several_is_a_bad_row(folder, ann_id):
    write(folder / "instances.json", without_captions())
    path = write(folder / "refs.json", [{**REFERENCES[0], "ann_id": ann_id}, REFERENCES[1]])
    data = open_data(str(path), skip_bad=True)
    assert [sample.id for sample in data] == ["referring/9"]
    assert "expected the id of one annotation" in data.bad.skipped[0].reason
