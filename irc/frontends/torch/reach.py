"""What a function reads that is no argument of it: globals, closures, the object of a method.

A trace takes all of it for constant, so it is guarded as what a module holds is. Libraries are
taken not to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from irc.frontends.torch.locations import LIBRARIES

Slot = tuple[str, dict[str, Any], str]
"""A name for messages, and the entry of a dictionary."""


@dataclass
class Reach:
    """What is read from outside.

    Attributes:
        plain: entries that are numbers, strings or None: they have to be equal.
        held: entries that are tensors, modules or functions: they have to be the same.
        cells: of closures; what they hold has to be the same, or equal.
        modules: those among them.
        tensors: those among them.
    """

    plain: list[Slot] = field(default_factory=list[Slot])
    held: list[Slot] = field(default_factory=list[Slot])
    cells: list[CellType] = field(default_factory=list[CellType])
    modules: list[nn.Module] = field(default_factory=list[nn.Module])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def records(self) -> bool:
        """True where a gradient may be wanted of something that is read."""
        inner = [p for module in self.modules for p in module.parameters()]
        return any(tensor.requires_grad for tensor in (*self.tensors, *inner))


def reach(function: Callable[..., Any]) -> Reach:
    """Return what a function, and the functions of the user that it names, read from outside."""
    found = Reach()
    _walk(function, found, set())
    return found


def _walk(value: Any, found: Reach, seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    match value:
        case torch.Tensor():
            found.tensors.append(value)
        case nn.Module():
            found.modules.append(value)
        case partial():
            for part in (value.func, *value.args, *value.keywords.values()):
                _walk(part, found, seen)
        case MethodType():
            _walk(value.__func__, found, seen)
            if isinstance(value.__self__, nn.Module):
                _walk(value.__self__, found, seen)
            elif not isinstance(value.__self__, type):
                for name in vars(value.__self__) if hasattr(value.__self__, "__dict__") else ():
                    _entry(name, vars(value.__self__), found, seen)
        case FunctionType() if not _is_library(value.__code__):
            for cell in value.__closure__ or ():
                try:
                    content = cell.cell_contents
                except ValueError:  # a name that has no value yet
                    continue
                found.cells.append(cell)
                _walk(content, found, seen)
            for name in _names(value.__code__):
                if name in value.__globals__:
                    _entry(name, value.__globals__, found, seen)
        case _:
            pass


def _entry(name: str, slots: dict[str, Any], found: Reach, seen: set[int]) -> None:
    value = slots[name]
    if isinstance(value, bool | int | float | str | None):
        found.plain.append((name, slots, name))
    elif isinstance(value, torch.Tensor | nn.Module | FunctionType):
        found.held.append((name, slots, name))
        _walk(value, found, seen)


def _names(code: CodeType) -> list[str]:
    """Return the names that a function and those defined in it may read from its module."""
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [*dict.fromkeys([*code.co_names, *(name for c in inner for name in _names(c))])]


def _is_library(code: CodeType) -> bool:
    return any(part in code.co_filename for part in LIBRARIES)
