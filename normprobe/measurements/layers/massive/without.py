"""What is told without massive tokens, beside what is told with them."""

#: Metrics of ``layers.csv``.
WITHOUT = ("norm", "cosine", "angle")

#: Behind their names.
SUFFIX = "_without_massive"
