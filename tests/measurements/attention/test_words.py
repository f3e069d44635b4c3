from support import made_tables

from normprobe.measurements.attention.words import attention_verdict


def test_how_much_how_widely_and_how_well():
    assert attention_verdict(made_tables.attention(layers=4)) == (
        "Text gives 32% of its attention to visual tokens (spread evenly: 90%), most in layer 1 "
        "(60%). Over them it is most focused in layer 4 (entropy 0.76 of 1). A token inside the "
        "box draws 2.4 x the attention of one outside, at best 2.8 x in layer 4."
    )


def test_an_image_outside_of_the_sequence_has_no_share_to_tell():
    table = made_tables.attention(layers=1, target=False).assign(
        even_share_mean=1.0, share_mean=1.0
    )
    assert attention_verdict(table) == (
        "Text gives 100% of its attention to visual tokens. Over them it is most focused in "
        "layer 1 (entropy 0.79 of 1)."
    )
