"""Functions of flash_attn in plain PyTorch, against attention as PyTorch has it."""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from normprobe.inputs.inputs_file import stand_in
from normprobe.remote_code_bridges import flash_attention
from normprobe.remote_code_bridges.flash_attention import (
    bridge_flash_attention,
    bridge_flash_functions,
    flash_attention_forward,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    index_first_axis,
    pad_input,
    rms_norm_fn,
    unpad_input,
)


def states(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """Of ``[batch, rows, heads, size]``, as PyTorch takes heads before rows."""
    heads = (each.transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(*heads, enable_gqa=True, **options).transpose(1, 2)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_pytorch(heads: int, causal: bool) -> None:
    q, k, v = states(2, 7, 4, 8), states(2, 7, heads, 8), states(2, 7, heads, 8)
    made = flash_attn_func(q, k, v, causal=causal, softmax_scale=0.3)
    torch.testing.assert_close(made, expected(q, k, v, is_causal=causal, scale=0.3))
    torch.testing.assert_close(flash_attn_func(q, k, v), expected(q, k, v))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_what_transformers_looks_up_hides_padding_and_what_is_far(
    causal: bool, window: int | None
) -> None:
    """InfiniteVL sets it by itself, whatever is asked for."""
    q, k, v = states(2, 4, 5, 8), states(2, 2, 5, 8), states(2, 2, 5, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    made, _ = flash_attention_forward(
        SimpleNamespace(is_causal=causal), q, k, v, mask, scaling=0.3, sliding_window=window
    )
    away = torch.arange(5) - torch.arange(5)[:, None]
    seen = mask.bool()[:, None, None, :] & (away <= 0 if causal else away < 9)
    seen = seen & (away > -(window or 9))
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.3, enable_gqa=True)
    there = mask.bool()
    torch.testing.assert_close(made[there], theirs.transpose(1, 2)[there])
    whole, _ = flash_attention_forward(
        SimpleNamespace(is_causal=not causal), q, k, v, None, is_causal=causal
    )
    expected_whole = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(whole, expected_whole.transpose(1, 2))


@pytest.mark.parametrize("installed", [True, False])
def test_it_is_offered_where_there_is_none(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    offered: dict[str, Any] = {}
    bridge_flash_attention(offered)
    assert offered == ({} if installed else {"flash_attention_2": flash_attention_forward})


def test_the_last_query_sees_all_keys_and_a_window_those_that_are_near() -> None:
    q, k, v = states(1, 3, 2, 8), states(1, 5, 2, 8), states(1, 5, 2, 8)
    places = torch.arange(5) - (torch.arange(3) + 2)[:, None]
    for options, seen in (
        ({"causal": True}, places <= 0),
        ({"window_size": (1, 0)}, (places >= -1) & (places <= 0)),
        ({"window_size": (1, -1), "causal": True}, (places >= -1) & (places <= 0)),
        ({"window_size": (-1, 1)}, places <= 1),
    ):
        made = flash_attn_func(q, k, v, **options)
        torch.testing.assert_close(made, expected(q, k, v, attn_mask=seen))


def test_scores_are_capped_and_fall_with_distance() -> None:
    q, k, v = states(1, 4, 2, 8), states(1, 4, 2, 8), states(1, 4, 2, 8)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
    away = (torch.arange(4) - torch.arange(4)[:, None]).abs()
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)
    for options, wanted in (
        ({"softcap": 2.0}, 2 * torch.tanh(scores / 2)),
        ({"alibi_slopes": slopes}, scores - slopes[:, None, None] * away),
    ):
        left = torch.einsum("bhqk,bkhd->bqhd", wanted.softmax(-1), v)
        torch.testing.assert_close(flash_attn_func(q, k, v, **options), left)


def test_packed_sequences_see_themselves_alone() -> None:
    q, k, v = states(9, 4, 8), states(9, 2, 8), states(9, 2, 8)
    cuts = torch.tensor([0, 4, 5, 9])
    made = flash_attn_varlen_func(q, k, v, cuts, cuts, 4, 4, causal=True)
    for first, last in ((0, 4), (4, 5), (5, 9)):
        alone = (each[None, first:last] for each in (q, k, v))
        torch.testing.assert_close(made[first:last], expected(*alone, is_causal=True)[0])
    packed = torch.stack((q, q + 1, q + 2), dim=1)
    together = flash_attn_varlen_qkvpacked_func(packed, cuts, 4)
    apart = flash_attn_varlen_func(q, q + 1, q + 2, cuts, cuts, 4, 4)
    torch.testing.assert_close(together, apart)
    in_one = flash_attn_qkvpacked_func(packed[None], 0.0, 0.5)
    torch.testing.assert_close(
        in_one, flash_attn_func(*(e[None] for e in (q, q + 1, q + 2)), 0, 0.5)
    )


def test_half_precision_weighs_in_full() -> None:
    q, k, v = (states(1, 6, 2, 8).to(torch.bfloat16) for _ in range(3))
    made = flash_attn_func(q, k, v)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(
        made.double(), expected(*(e.double() for e in (q, k, v))), atol=2e-2, rtol=2e-2
    )


def test_padding_is_taken_out_and_put_back() -> None:
    rows, mask = states(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    kept, places, cuts, longest, lengths = unpad_input(rows, mask)
    assert torch.equal(kept, rows[mask.bool()])
    assert (cuts.tolist(), longest, lengths.tolist()) == ([0, 2, 5], 3, [2, 3])
    assert torch.equal(pad_input(kept, places, 2, 4), rows * mask[..., None])
    assert torch.equal(index_first_axis(rows.flatten(0, 1), places), kept)


CODE = """
try:
    from flash_attn import flash_attn_func, flash_attn_varlen_func
except ImportError:
    flash_attn_func = None

def attend(q, k, v):
    return flash_attn_func(q, k, v)

def attend_packed(q, cuts):
    return flash_attn_varlen_func(q, q, q, cuts, cuts)
"""


def test_code_that_calls_what_it_could_not_import_finds_it(tmp_path: Any, monkeypatch: Any) -> None:
    """It guards the import and not the call (MiniMax-VL)."""
    (tmp_path / "nobodys_attention.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("nobodys_attention")
    monkeypatch.delitem(sys.modules, "nobodys_attention")
    before = dict(vars(module))
    bridge_flash_functions(module)
    q, k, v = (states(1, 5, 2, 4) for _ in "qkv")
    torch.testing.assert_close(module.attend(q, k, v), expected(q, k, v))
    packed = module.attend_packed(q[0], torch.tensor([0, 5]))
    torch.testing.assert_close(packed[None], expected(q, q, q))
    assert vars(module).keys() - before.keys() == {"flash_attn_varlen_func"}
    module.flash_attn_func = len
    bridge_flash_functions(module)
    assert module.flash_attn_func is len  # one that is there stays
    bridge_flash_functions(ModuleType("without_a_file"))


def test_a_package_that_is_stood_in_for_computes_attention(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    stand_in("flash_attn")
    for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding"):
        importlib.import_module(name)
    assert sys.modules["flash_attn"].flash_attn_func is flash_attn_func
    assert sys.modules["flash_attn.bert_padding"].unpad_input is unpad_input
    with pytest.raises(Exception, match="the code of the model calls flash_attn"):
        sys.modules["flash_attn"].layer_norm(1)
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        del sys.modules[name]
    assert flash_attention._flash_supports_window_size


def test_code_that_does_without_keeps_what_it_does_instead(monkeypatch: Any, tmp_path) -> None:
    """As InternVL's tower, which asserts that its states are on a GPU where kernels are there."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_kernels.py").write_text("from flash_attn.inside import flash_attn_func\n")
    tries = "try:\n    from flash_attn.inside import flash_attn_func\n    has = True\nexcept {}"
    (tmp_path / "does_without.py").write_text(tries.format("ImportError:\n    has = False\n"))
    asks = tries.format("ImportError:\n    raise ImportError('install it')\n")
    (tmp_path / "asks_for_them.py").write_text(asks)
    stand_in("flash_attn", tried=False)
    for _ in range(2):  # before code needs them, and after
        assert not importlib.import_module("does_without").has
        assert importlib.import_module("needs_kernels").flash_attn_func is flash_attn_func
        assert importlib.import_module("asks_for_them").has
        del sys.modules["does_without"]
    (tmp_path / "cells.ipynb").write_text('{"source": "try:", of}')  # no Python
    notebook = compile(
        "from flash_attn import flash_attn_func", str(tmp_path / "cells.ipynb"), "exec"
    )
    exec(notebook, found := {})
    assert found["flash_attn_func"] is flash_attn_func
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        del sys.modules[name]


def test_a_norm_of_rows_is_that_of_pytorch() -> None:
    """Of SDAR-VL, which imports it beside attention."""
    x, weight = states(2, 3, 8), states(8)
    expected_rows = torch.nn.functional.rms_norm(x, (8,), weight, 1e-3)
    torch.testing.assert_close(rms_norm_fn(x, weight, None, eps=1e-3), expected_rows)
    with pytest.raises(NotImplementedError, match="takes no residual"):
        rms_norm_fn(x, weight, None, residual=True)
