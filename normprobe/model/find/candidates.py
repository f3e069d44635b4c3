"""What an error says where a part is not found: candidates, and how to name one by hand."""

from difflib import get_close_matches

from torch import nn

from normprobe.code_failures import runs_own_code
from normprobe.errors import NormprobeError


def size_of(module: nn.Module) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def children_of(module: nn.Module) -> str:
    """The names of a module's children, for a message."""
    return ", ".join(name for name, _ in module.named_children()) or "none"


def check_name(model: nn.Module, role: str, name: str) -> None:
    """Refuse a name given by hand that is no module of the model, and suggest one that is."""
    names = [known for known, _ in model.named_modules()]
    if name not in names:
        close = get_close_matches(name, names) or [known for known in names if "." not in known][1:]
        raise NormprobeError(
            f"{type(model).__name__} has no module {name!r} for {role.replace('_', ' ')}",
            f"did you mean {' or '.join(close[:3])}? `normprobe inspect` lists what was found",
        )


def by_hand(model: nn.Module, option: str, value: str) -> str:
    """The remedy that names a part by hand, with MODEL and a candidate filled in where known."""
    trust = " --trust-remote-code" if runs_own_code(model) else ""
    source = getattr(model, "name_or_path", "") or "MODEL"
    return f"name it by hand: normprobe layers {source}{trust} {option} {value}"


def largest(model: nn.Module, kind: type[nn.Module], names: dict[int, str]) -> str:
    """The name of the largest module of a kind: the best candidate for a part."""
    found = [module for module in model.modules() if isinstance(module, kind)]
    return names[id(max(found, key=size_of))] if found else "NAME"


def candidates(model: nn.Module, names: dict[int, str]) -> str:
    """The lists of modules in a model and their lengths, for a message."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    return ", ".join(f"{names[id(m)]} ({len(m)})" for m in lists) or "none"
