"""Referring expressions as people have them on disk: COCO's form, and lists of references."""

import pytest
from PIL import Image

from data.published import write_lines
from normprobe import NormprobeError
from normprobe.data.data_set import open_data

ANNOTATIONS = [
    {"id": 70, "image_id": 7, "bbox": [2, 3, 10, 5], "tokens_positive": [[8, 11]]},
    {"id": 80, "image_id": 8, "bbox": [0.0, 0.0, 32.4, 24.3]},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train2014").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (32, 24)).save(tmp_path / "train2014" / name)
    return tmp_path


def coco(*captions):
    images = [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}]
    for image, caption in zip(images, captions, strict=False):
        image["caption"] = caption
    return {"images": images, "annotations": ANNOTATIONS, "categories": []}


def test_captions_in_the_form_of_coco(folder):
    whole = coco("the red cup on the left", "a dog")
    path = write_lines(folder / "finetune_refcoco_val.json", whole)
    first, second = open_data(str(path))
    assert [first.id, second.id] == ["referring/70", "referring/80"]
    assert first.prompt == "Where is the red cup on the left?"
    assert (first.referent.word, first.referent.box) == ("cup", (2, 3, 12, 8))
    # Without characters all of the caption means the box; COCO rounds beyond the border.
    assert (second.referent.word, second.referent.box) == ("a dog", (0, 0, 32, 24))


def test_references_beside_instances(folder):
    sentences = [{"sent_id": 5, "sent": "red cup"}, {"sent_id": 6, "sent": "left cup"}]
    references = [
        {"ref_id": 1, "ann_id": 70, "sentences": sentences},
        {"ref_id": 2, "ann_id": [80], "sentences": [{"sent_id": 9, "sent": "dog"}]},
    ]
    boxes = write_lines(folder / "instances.json", coco())
    with pytest.raises(NormprobeError, match="boxes without expressions") as raised:
        open_data(str(boxes))
    assert "pickle" in raised.value.remedy
    path = write_lines(folder / "grefs(unc).json", references)
    for spec in (path, folder):
        samples = list(open_data(str(spec)))
        assert [sample.id for sample in samples] == [f"referring/{key}" for key in (5, 6, 9)]
        assert [sample.referent.word for sample in samples] == ["red cup", "left cup", "dog"]
        assert samples[1].prompt == "Where is left cup?"
        assert samples[0].referent.box == samples[1].referent.box == (2, 3, 12, 8)


@pytest.mark.parametrize(
    ("image", "said"),
    [([7], "boxes without expressions"), ({}, "boxes without expressions")],
)
def test_an_image_id_that_is_none_is_no_image(folder, image, said):
    whole = coco("the red cup on the left", "a dog")
    whole["annotations"] = [ANNOTATIONS[0] | {"image_id": image}]
    with pytest.raises(NormprobeError, match=said):
        open_data(str(write_lines(folder / "a.json", whole)))


def test_a_name_that_no_file_can_have_is_a_bad_row(folder):
    whole = coco("the red cup on the left", "a dog")
    whole["images"][0]["file_name"] = "a" * 5000
    data = open_data(str(write_lines(folder / "a.json", whole)), skip_bad=True)
    assert [sample.id for sample in data] == ["referring/80"]
    assert "cannot be read" in data.bad.skipped[0].reason


def test_an_expression_of_several_boxes_is_a_bad_row(folder):
    """As "the two dogs" of gRefCOCO."""
    references = [
        {"ref_id": 1, "ann_id": 70, "sentences": [{"sent_id": 5, "sent": "red cup"}]},
        {"ref_id": 2, "ann_id": [70, 80], "sentences": [{"sent_id": 9, "sent": "both"}]},
    ]
    write_lines(folder / "instances.json", coco())
    path = write_lines(folder / "grefs(unc).json", references)
    data = open_data(str(path), skip_bad=True)
    assert [sample.id for sample in data] == ["referring/5"]
    assert len(data.bad.skipped) == 1
