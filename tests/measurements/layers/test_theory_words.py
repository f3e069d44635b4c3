from support import made_tables

from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.theory_words import theory_verdict

THEORY = made_tables.theory()
ASSUMPTIONS = assumptions_table(THEORY)


def test_how_many_assumptions_hold_and_where_the_prediction_ends():
    sentence = theory_verdict(THEORY, ASSUMPTIONS)
    assert "1 of 4 assumptions hold in every layer. After layer 6 Eq. 15 predicts" in sentence
    assert sentence.endswith("rad after layer 6.")


def test_samples_without_a_lag_angle_are_told():
    few = THEORY.assign(lag_angle_samples=5)
    assert "in the 5 of 56 samples that begin with" in theory_verdict(few, ASSUMPTIONS)
