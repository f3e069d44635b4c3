"""Whether what a model answers by itself is right, by the rule of the data."""

from normprobe.data.sample import Answer

#: What may stand around an answer.
_AROUND = " \t\n.,:;!?\"'()[]*"


def is_right(said: str, answer: Answer) -> bool:
    """Whether an answer is the right one; letter case, and signs around it, have no say.

    Of several options the one that it begins with is what was answered: ``B.``, ``b) a cup``.
    Without options all of it has to be the answer.
    """
    text, right = _plain(said), _plain(answer.text)
    if not answer.options:
        return text == right
    begun = [option for option in map(_plain, answer.options) if _begins(text, option)]
    return max(begun, key=len, default="") == right != ""


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(_AROUND)


def _begins(text: str, option: str) -> bool:
    """Whether a text begins with an option, as a word or several."""
    return text.startswith(option) and not text[len(option) : len(option) + 1].isalnum()
