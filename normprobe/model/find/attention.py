"""Which attention implementation runs in the parts of a model, as its modules say."""

from typing import Any

from torch import nn

from normprobe.model.find.parts import Parts

#: The parts whose layers attend.
_ATTEND = ("vision_encoder", "decoder_layers")


def attention_of(model: nn.Module, parts: Parts) -> dict[str, str]:
    """The implementation by part, such as ``sdpa``; several of one part are joined by a comma."""
    found = {}
    for role in _ATTEND:
        part = getattr(parts, role)
        names = attention_in(part.module) if part is not None else set()
        holder = part.name if part is not None else ""
        while part is not None and not names and holder:  # the config stands further up
            holder = holder.rpartition(".")[0]
            names = _by_config(model.get_submodule(holder))
        if names:
            found[role] = ", ".join(sorted(names))
    return found


def attention_in(module: nn.Module) -> set[str]:
    """The implementations that the modules inside one were made with, or their configs name.

    An attribute of a module is what it reads when it runs; a config may say what it was made of.
    """
    inner = list(module.modules())
    own = {
        name
        for each in inner
        if isinstance(name := getattr(each, "attn_implementation", None), str)
    }
    return own or {name for each in inner for name in _by_config(each)}


def _by_config(module: nn.Module) -> set[str]:
    config: Any = getattr(module, "config", None)
    name = getattr(config, "_attn_implementation", None)
    return {name} if isinstance(name, str) else set()
