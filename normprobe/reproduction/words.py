"""What is said before the commands run: what they fetch, read and need."""

from collections.abc import Mapping

from rich.filesize import decimal

from normprobe.reproduction.forecast import Forecast, bytes_fetched
from normprobe.reproduction.jobs import Job


def plan_sentence(name: str, forecasts: Mapping[Job, Forecast], finished: int) -> str:
    """What is to come, in one line."""
    done = f"{_commands(finished)} of {name} {'is' if finished == 1 else 'are'} finished already"
    if not forecasts:
        return done
    fetched = bytes_fetched(forecasts.values())
    verb = f"fetches {_size(fetched)} of weights" if any_fetched(forecasts) else "reads weights"
    cached = sum(forecast.cached for forecast in forecasts.values())
    largest = max(forecasts, key=lambda job: forecasts[job].memory)
    return (
        f"{verb} for {_commands(len(forecasts))} of {name}, each in a process of its own"
        + (f"; {decimal(cached)} are cached" if cached else "")
        + f"; the largest, {largest.words[0]} of {largest.model}, holds "
        f"{decimal(forecasts[largest].memory)} in memory" + (f"; {done}" if finished else "")
    )


def plan_by_model(forecasts: Mapping[Job, Forecast]) -> list[str]:
    """A line a model: its commands, and what they fetch and need."""
    fetched = dict(zip(forecasts, bytes_fetched(forecasts.values()), strict=True))
    lines = []
    for model in dict.fromkeys(job.model for job in forecasts):
        jobs = [job for job in forecasts if job.model == model]
        memory = max(forecasts[job].memory for job in jobs)
        commands = ", ".join(dict.fromkeys(job.words[0] for job in jobs))
        lines.append(
            f"  {model}: {commands}; fetches {_size([fetched[job] for job in jobs])}, "
            f"holds {decimal(memory)} in memory"
        )
    return lines


def any_fetched(forecasts: Mapping[Job, Forecast]) -> bool:
    """Whether a byte of weights is fetched, as far as that is known."""
    return any(size != 0 for size in bytes_fetched(forecasts.values()))


def _commands(number: int) -> str:
    return "1 command" if number == 1 else f"{number} commands"


def _size(sizes: list[int | None]) -> str:
    """Their sum; a size that the hub does not tell makes it a lower bound."""
    known = decimal(sum(size for size in sizes if size is not None))
    if None in sizes:
        return f"at least {known}"
    return known if any(sizes) else "nothing"
