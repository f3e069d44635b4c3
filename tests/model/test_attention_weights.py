"""What attention is made with, where modules say it in their own way."""

from types import SimpleNamespace

from torch import nn

from normprobe.model.attention_weights import attention_in


def test_a_property_that_raises_says_nothing() -> None:
    """The tower of LLaVA-Rad has a ``config`` that is not implemented."""

    class Raising(nn.Module):
        @property
        def config(self) -> object:
            raise NotImplementedError

    class Telling(nn.Module):
        config = SimpleNamespace(_attn_implementation="sdpa")

    assert attention_in(nn.ModuleList([Raising(), Telling()])) == {"sdpa"}
