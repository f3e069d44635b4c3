"""How layers run is told without a script, too."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from normprobe.extensions.families.script_layers import how_layers_run, run_as_called

_ROWS = torch.arange(24.0).reshape(1, 6, 4) / 24


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.mlp(self.norm(rows))


def _layers() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(_Layer() for _ in range(3))


def _from_inside(layers: nn.ModuleList, after: nn.Module, until: int) -> Callable[[], None]:
    """Calls what is inside of layers, then fails: behind the layers, or in one of them."""

    def run() -> None:
        rows = _ROWS
        for number, layer in enumerate(layers):
            if number == until:
                raise RuntimeError("of the answer")
            rows = rows + layer.mlp(layer.norm(rows))
        after(rows)
        raise RuntimeError("of the answer")

    return run


def test_what_fails_behind_the_layers_is_none_of_the_prompt() -> None:
    layers, after = _layers(), nn.LayerNorm(4)
    run = _from_inside(layers, after, until=3)
    how = how_layers_run(layers, run)
    assert how is not None
    assert (how.called, how.after, [*how.pieces]) == (False, after, [0])

    shown: list[Tensor] = []
    handles = [layer.register_forward_hook(lambda *c: shown.append(c[-1])) for layer in layers]
    run_as_called(how, run)
    for handle in handles:
        handle.remove()
    rows = _ROWS
    for layer, seen in zip(layers, shown, strict=True):
        rows = layer(rows)
        torch.testing.assert_close(seen, rows)

    with pytest.raises(RuntimeError, match="of the answer"):
        how_layers_run(layers, _from_inside(layers, after, until=2))


def test_what_a_matrix_takes_first_is_no_state_for_sure() -> None:
    """A function may have normed it: rows of these layers would have norms that are none."""
    layers, after = _layers(), nn.LayerNorm(4)

    def run(ends: nn.Module, opens: bool) -> None:
        rows = _ROWS
        for layer in layers:
            normed = layer.norm(rows) if opens else nn.functional.layer_norm(rows, (4,))
            rows = rows + layer.mlp(normed)
        ends(rows)

    assert how_layers_run(layers, partial(run, after, opens=True)) is not None
    assert how_layers_run(layers, partial(run, after, opens=False)) is None
    assert how_layers_run(layers, partial(run, nn.Linear(4, 9), opens=True)) is None


def test_layers_that_are_called_once_with_all_rows_run_as_they_do() -> None:
    layers = _layers()

    def run() -> None:
        rows = _ROWS
        for layer in layers:
            rows = layer(rows)

    assert how_layers_run(layers, run) is None


def test_hooks_and_forwards_are_as_they_were() -> None:
    layers = _layers()
    how = how_layers_run(layers, _from_inside(layers, nn.LayerNorm(4), until=3))
    assert how is not None
    assert all("_compiled_call_impl" not in vars(module) for module in layers.modules())
    assert all("forward" not in vars(layer) for layer in layers)
