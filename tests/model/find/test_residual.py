"""Following operations leaves what is compiled as it was."""

from typing import Any

import torch

from normprobe.model.find.residual import Operations


def test_what_runs_compiled_elsewhere_stays_compiled() -> None:
    """Dynamo leaves a function alone, from then on, that it meets below a dispatch mode."""
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    followed: list[Any] = []

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        followed.append(func)
        return func(*args, **kwargs)

    with Operations(run):
        assert doubled(torch.ones(3)).tolist() == [2, 2, 2]
    assert followed and not compiled
    assert doubled(torch.ones(3)).tolist() == [2, 2, 2]
    assert compiled
    torch.compiler.reset()
