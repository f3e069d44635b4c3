"""Which bridges were needed: by name, and on the classes that have theirs."""

#: Marks a class that has its bridges, and holds the names of those it needed when it came.
BRIDGED = "_normprobe_bridged"

#: Where bridges are noted: the list of the innermost ``foreign_code``.
noting: list[list[str]] = []


def note_bridge(name: str) -> None:
    """Say once, to the innermost ``foreign_code``, that a bridge was needed."""
    if noting and name not in noting[-1]:
        noting[-1].append(name)
