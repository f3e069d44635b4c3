"""What a user is told of an exception that ends a measurement, whoever raised it."""

from normprobe.errors import NormprobeError, first_line


def known_failure(error: BaseException, *, resumes: bool = False) -> NormprobeError | None:
    """The two lines that explain an exception; None: it is not known, and a traceback is due."""
    if isinstance(error, NormprobeError):
        return error
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate" in text:
        return NormprobeError(
            f"out of memory: {first_line(error) if text else 'no room for the model'}",
            "try --batch-size auto or a smaller one, --dtype bfloat16 or --device-map auto",
        )
    if "DataLoader worker" in text:
        return NormprobeError(
            f"a process that makes inputs was ended: {first_line(error)}",
            "free some memory"
            + "; --resume goes on from what is measured" * resumes
            + ", unless the checkpoint's own files ask for more than there is",
        )
    return _of_foreign_code(error)


def _of_foreign_code(error: BaseException) -> NormprobeError | None:
    """An exception that a checkpoint's own code raised; None: it was another's."""
    from normprobe.code_failures import raised_in_own_code

    place = raised_in_own_code(error)
    if place is None:
        return None
    return NormprobeError(
        f"the model's own code fails in {place}: {type(error).__name__}: {first_line(error)}",
        "it may need another version of transformers or a package; NORMPROBE_DEBUG=1 shows the "
        "traceback",
    )
