"""Following operations leaves what is compiled as it was."""

from typing import Any

import pytest
import torch
from torch import nn

from normprobe.model.find.residual import Operations, _branch_of


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


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("self_attn", "attention"),
        ("attn_output_norm", "attention"),
        ("mamba", "attention"),
        ("mlp", "mlp"),
        ("feed_forward", "mlp"),
        ("block_sparse_moe", "mlp"),
        ("cross_attn", "cross attention"),
        ("encoder_attn", "cross attention"),
        ("ff_attention", "attention"),
    ],
)
def test_a_child_of_a_layer_is_told_by_its_name(name: str, branch: str) -> None:
    assert _branch_of(name, nn.Identity()).replace("_", " ") == branch


def test_a_child_whose_name_tells_nothing_is_told_by_its_class() -> None:
    for kind, branch in (("OwnAttention", "attention"), ("GatedConv", "attention"), ("A", "mlp")):
        assert _branch_of("temporal", type(kind, (nn.Module,), {})()) == branch
