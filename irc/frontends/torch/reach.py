"""What traced code reads that is no argument of it: globals, closures, objects and what they hold.

A trace takes all of it for constant, so it is guarded as what a module holds is. Of objects,
classes and Python modules that is what the code has names for. Libraries are taken not to change.
"""

# pyright: basic
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from irc.frontends.torch.locations import LIBRARIES
from irc.frontends.torch.outside import CELL, Container, Field, Outside

Slot = tuple[str, dict[str, Any], str]
"""A name for messages, and the entry of a dictionary."""


@dataclass
class Reach:
    """What is read from outside.

    Attributes:
        plain: globals that are numbers, strings or None: they have to be equal.
        held: globals that are tensors, modules or functions: they have to be the same.
        fields: attributes and variables; what they hold has to be the same, or equal.
        containers: that are read; so have their items.
        modules: those among all that.
        tensors: those among all that.
    """

    plain: list[Slot] = field(default_factory=list[Slot])
    held: list[Slot] = field(default_factory=list[Slot])
    fields: list[Field] = field(default_factory=list[Field])
    containers: list[Container] = field(default_factory=list[Container])
    modules: list[nn.Module] = field(default_factory=list[nn.Module])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def records(self) -> bool:
        """True where a gradient may be wanted of something that is read."""
        inner = [p for module in self.modules for p in module.parameters()]
        return any(tensor.requires_grad for tensor in (*self.tensors, *inner))

    def outside(self) -> Outside:
        """Return the check of what no dictionary of globals or of a module holds."""
        return Outside.of(self.fields, self.containers)


def reach(target: Callable[..., Any]) -> Reach:
    """Return what a module or function reads, itself and by functions that it names."""
    walk = _Walk()
    walk.visit(target)
    walk.visit_objects()
    return walk.reach


class _Walk:
    """Follows names from function to function, then into the objects that they were seen with."""

    def __init__(self) -> None:
        self.reach = Reach()
        self._seen: dict[int, Any] = {}
        self._names: dict[str, None] = {}
        self._objects: list[Any] = []
        self._fields: set[tuple[int, str]] = set()

    def visit(self, value: Any) -> None:
        """Note a value that is read, and what is read through it."""
        if id(value) in self._seen or isinstance(value, bool | int | float | str | None):
            return
        self._seen[id(value)] = value
        match value:
            case torch.Tensor():
                self.reach.tensors.append(value)
            case nn.Module():
                self.reach.modules.append(value)
                self._objects += [m for m in value.modules() if not _is_library(type(m))]
            case partial():
                for part in (value.func, *value.args, *value.keywords.values()):
                    self.visit(part)
            case MethodType():
                self.visit(value.__func__)
                self.visit(value.__self__)
            case FunctionType():
                self._function(value)
            case property() | cached_property():
                self.visit(value.fget if isinstance(value, property) else value.func)
            case staticmethod() | classmethod():
                self.visit(value.__func__)
            case list() | dict() | set() | tuple() | frozenset():
                if not isinstance(value, tuple | frozenset):
                    self.reach.containers.append(value)
                for item in value.values() if isinstance(value, dict) else value:
                    self.visit(item)
            case Enum():
                pass
            case _ if not _is_library(value if isinstance(value, type) else type(value)):
                self._objects.append(value)
            case ModuleType() if not _is_library(value):
                self._objects.append(value)

    def visit_objects(self) -> None:
        """Look into objects for what functions have names for; methods may have names for more."""
        known = -1
        while known != (known := len(self._names) + len(self._objects) + len(self._fields)):
            for owner in [*self._objects]:
                for name in [*self._names, "forward", "__call__"]:
                    self._attribute(owner, name)

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        if any(part in code.co_filename for part in LIBRARIES):
            # A decorator's wrapper, `torch.no_grad()` for one, holds the user's function.
            for cell in function.__closure__ or ():
                if isinstance(content := _read_cell(cell), FunctionType | MethodType):
                    self.visit(content)
            return
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default)
        for cell in function.__closure__ or ():
            self.reach.fields.append((cell, CELL))
            self.visit(_read_cell(cell))
        names = _names_in(code)
        self._names |= dict.fromkeys(names)
        for name in names:
            if name in function.__globals__:
                self._global(name, function.__globals__)

    def _global(self, name: str, slots: dict[str, Any]) -> None:
        value = slots[name]
        if isinstance(value, bool | int | float | str | None):
            self.reach.plain.append((name, slots, name))
        elif isinstance(value, torch.Tensor | nn.Module | FunctionType | list | dict | set):
            self.reach.held.append((name, slots, name))
        self.visit(value)

    def _attribute(self, owner: Any, name: str) -> None:
        """Note an attribute; a property is what its function reads, and is not called here."""
        if (id(owner), name) in self._fields:
            return
        kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
        shared = next((vars(kind)[name] for kind in kinds if name in vars(kind)), None)
        own = getattr(owner, "__dict__", {})
        if isinstance(shared, CODE):
            self._fields.add((id(owner), name))
            self.visit(shared)
        elif name in own or _is_plain(shared):
            self._fields.add((id(owner), name))
            value = getattr(owner, name, None)
            is_guarded = isinstance(owner, nn.Module) and not name.startswith("_")
            if not is_guarded or not isinstance(value, bool | int | float | str | None):
                self.reach.fields.append((owner, name))
            self.visit(value)


CODE = (property, cached_property, FunctionType, staticmethod, classmethod)
"""What a class holds to be run."""


def _is_plain(shared: Any) -> bool:
    """True for what a class holds for its objects to read; to read others may run code."""
    return isinstance(shared, MemberDescriptorType) or (
        shared is not None and not hasattr(type(shared), "__get__")
    )


def _read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None


def _names_in(code: CodeType) -> list[str]:
    """Return the names that a function and those defined in it may read of anything."""
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [*dict.fromkeys([*code.co_names, *(name for c in inner for name in _names_in(c))])]


BAGS = ("types.SimpleNamespace", "argparse.Namespace")
"""Classes of Python's own whose objects hold what users put there."""


def _is_library(owner: type | ModuleType) -> bool:
    """True for classes and modules of torch, of installed packages and of Python itself."""
    module = owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None) or ""
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return isinstance(owner, ModuleType) or f"{name}.{owner.__name__}" not in BAGS
    return root == OWN or any(part in file for part in LIBRARIES)


OWN = __name__.partition(".")[0]
