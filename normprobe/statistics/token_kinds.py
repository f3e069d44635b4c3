"""The rules by which a token is massive, a sink, of high norm, or still, with their sources."""

#: A massive activation (Sun et al., 2024, arXiv 2402.17762, Section 2): its magnitude is above 100
#: and at least about 1000 times the median magnitude of its hidden state.
MASSIVE_MAGNITUDE = 100.0
MASSIVE_RATIO = 1000.0

#: tau of Kang et al. (2025, arXiv 2503.03321): from which |h_d| / rms(h) on a token is a sink.
SINK_RATIO = 20.0

#: A token is of high norm from so many times the median norm of its group and sample on. In Darcet
#: et al. (2024, arXiv 2309.16588) such tokens have about ten times the norm of the others; their
#: cut-off of 150 was read off one model's histogram. The factor is between the two.
HIGH_NORM = 3.0

#: A token is still as long as every layer leaves it at this cosine or above, the bound by which
#: Fan et al. (2026, arXiv 2603.00510) call two tokens almost the same.
STILL_COSINE = 0.99
