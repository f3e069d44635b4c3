"""The one exception a user is meant to see: one line what is wrong, one line what to do."""


class NormprobeError(Exception):
    """A known failure.

    Args:
        problem: one line: what is wrong, with what was expected, what was received and where.
        remedy: one line: what to do about it, a command where there is one.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n{self.remedy}"
