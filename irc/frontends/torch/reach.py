"""What traced code reads that is no argument of it: globals, closures, objects and what they hold.

A trace takes all of it for constant, so it is guarded as what a module holds is. Of objects,
classes and Python modules that is what the code has names for. Libraries are taken not to change,
but objects of their classes do, such as the configuration of a model.
"""

from __future__ import annotations

import builtins
import os
from collections import UserDict, UserList
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import ReferenceType

import torch
from torch import nn

from irc.frontends.torch.contents import Container, is_array, is_container, same
from irc.frontends.torch.held import is_torchs
from irc.frontends.torch.locations import LIBRARIES
from irc.frontends.torch.outside import CELL, MISSING, Field, Outside, Question, read
from irc.frontends.torch.read_names import (
    answers,
    globals_in,
    implicit,
    is_library,
    is_of_package,
    names_in,
    names_of_layer,
    words_in,
)
from irc.frontends.torch.settings import default_device
from irc.frontends.torch.streams import is_stream

Slot = tuple[str, dict[str, Any], str]
"""A name for messages, and the entry of a dictionary."""


@dataclass
class Reach:
    """What is read from outside.

    Attributes:
        plain: globals and attributes that have to be the same objects, or equal.
        held: globals that are tensors, modules, functions or collections: they have to be the same.
        fields: attributes and variables; what they hold has to be the same, or equal.
        containers: that are read; so have their items.
        questions: settings of the process that are asked for.
        streams: what gives something else each time that it is asked.
        modules: those among all that.
        tensors: those among all that.
    """

    plain: list[Slot] = field(default_factory=list[Slot])
    held: list[Slot] = field(default_factory=list[Slot])
    fields: list[Field] = field(default_factory=list[Field])
    containers: list[Container] = field(default_factory=list[Container])
    questions: list[Question] = field(default_factory=list[Question])
    streams: list[Any] = field(default_factory=list[Any])
    modules: list[nn.Module] = field(default_factory=list[nn.Module])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def records(self) -> bool:
        """True where a gradient may be wanted of something that is read."""
        inner = [p for module in self.modules for p in module.parameters()]
        return any(tensor.requires_grad for tensor in (*self.tensors, *inner))

    def outside(self) -> Outside:
        """Return the check of what no dictionary of globals or of a module holds."""
        return Outside.of(self.fields, self.containers, self.questions)


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
        self._by_name = False
        self._perhaps: dict[str, None] = {}
        self._strings: dict[str, None] = {}
        self._library_names: dict[str, None] = {}
        self._objects: list[Any] = []
        self._of_libraries: list[Any] = []
        self._fields: set[tuple[int, str]] = set()

    def visit(self, value: Any) -> None:
        """Note a value that is read, and what is read through it."""
        if isinstance(value, str) and value.isidentifier():
            self._strings[value] = None
        if id(value) in self._seen or isinstance(value, bool | int | float | str | None):
            return
        self._seen[id(value)] = value
        held: Any = value
        match value:
            case torch.Tensor():
                self.reach.tensors.append(value)
            case nn.Module():
                self._module(value)
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
                self.visit(held.__func__)
            case tuple() | frozenset():
                for item in held:
                    self.visit(item)
            case UserDict() | UserList():
                self.visit(held.data)
            case ReferenceType():
                self.visit(value())
            case ContextVar():
                self.reach.fields.append((Variable(held), "value"))
                self.visit(held.get(None))
            case _ if is_stream(value):
                self.reach.streams.append(value)
            case Enum():
                pass
            case _ if is_container(value):
                self.reach.containers.append(value)
                self._items(value)
            case _:
                self._object(value)

    def _items(self, container: Container) -> None:
        """Note what a container holds; arrays of numbers hold nothing that reads more."""
        if is_array(container) and not container.dtype.hasobject:
            return
        for item in container.values() if hasattr(container, "values") else container:
            self.visit(item)

    def visit_objects(self) -> None:
        """Look into objects for what functions have names for; methods may have names for more."""
        known = -1
        while known != (known := self._size()):
            names = {**self._names, **self._perhaps, "forward": None, "__call__": None}
            if self._by_name:
                names |= self._strings
            for owner in [*self._objects]:
                for name in names:
                    self._attribute(owner, name)
                for name, method in implicit(owner):
                    self._fields.add((id(owner), name))
                    self.visit(method)
            for owner in [*self._of_libraries]:
                for name in {**names, **self._library_names}:
                    self._attribute_of_library(owner, name)
        self._ask()

    def _size(self) -> int:
        sizes = map(len, (self._names, self._perhaps, self._strings, self._library_names,
                          self._objects, self._of_libraries, self._fields))  # fmt: skip
        return sum(sizes)

    def _ask(self) -> None:
        """Note settings of the process that functions have names for."""
        self.reach.questions += [ask for name, ask in QUESTIONS.items() if name in self._names]
        if self._names.keys() & {"environ", "getenv"}:
            environ: Any = os.environ
            self.reach.containers.append(environ._data)

    def _object(self, value: object) -> None:
        if isinstance(function := getattr_static(value, "__wrapped__", None), FunctionType):
            self.visit(function)  # of a decorator that makes objects: what it calls reads
        if not is_library(value if isinstance(value, type | ModuleType) else type(value)):
            self._objects.append(value)
        elif not isinstance(value, type | ModuleType) and is_of_package(type(value)):
            self._of_libraries.append(value)

    def _module(self, module: nn.Module) -> None:
        self.reach.modules.append(module)
        for child in module.modules():
            if not is_library(type(child)):
                self._objects.append(child)
            elif not is_torchs(child):
                names = names_of_layer(type(child))
                self._library_names |= dict.fromkeys(names)
                for name, value in vars(child).items():
                    if name in names and name not in INTERNAL:
                        self._held_by_library(child, name, value)

    def _held_by_library(self, owner: nn.Module, name: str, value: Any) -> None:
        """Note what a library's layer holds that is no plain attribute, which all layers' are."""
        if not isinstance(value, bool | int | float | str | None | torch.Tensor | nn.Module):
            self.reach.plain.append((name, vars(owner), name))
            self.visit(value)

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
        names = names_in(code)
        self._names |= dict.fromkeys(names)
        if BY_NAME & {*names}:
            self._by_name = True
            self._perhaps |= dict.fromkeys(words_in(code))
        words = words_in(code) if BY_NAME_OF_GLOBALS & {*names} else []
        for name in (*names, *words):
            if name in function.__globals__:
                self._global(name, function.__globals__)
        for name in (*globals_in(code), *words):
            if name not in function.__globals__ and not hasattr(builtins, name):
                self._absent(name, function.__globals__)

    def _absent(self, name: str, slots: dict[str, Any]) -> None:
        """Note a global that there is not: code may ask whether there is, or catch the error."""
        if (id(slots), name) not in self._fields:
            self._fields.add((id(slots), name))
            self.reach.fields.append((Globals(slots), name))

    def _global(self, name: str, slots: dict[str, Any]) -> None:
        value = slots[name]
        if (id(slots), name) in self._fields or isinstance(value, ModuleType):
            self.visit(value)
            return
        self._fields.add((id(slots), name))
        held = self.reach.held if isinstance(value, HELD) else self.reach.plain
        held.append((name, slots, name))
        self.visit(value)

    def _attribute(self, owner: Any, name: str) -> None:
        """Note an attribute; a property is what its function reads, and is not called here."""
        if (id(owner), name) in self._fields:
            return
        kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
        shared = next((vars(kind)[name] for kind in kinds if name in vars(kind)), None)
        own = getattr(owner, "__dict__", {})
        if name in ("vars", "__dict__"):
            self._all_of(owner)
        elif isinstance(shared, CODE):
            self._fields.add((id(owner), name))
            self.visit(shared)
        elif name in own or _is_plain(shared):
            self._fields.add((id(owner), name))
            value = getattr(owner, name, None)
            is_guarded = isinstance(owner, nn.Module) and not name.startswith("_")
            if not is_guarded or not isinstance(value, bool | int | float | str | None):
                self._read(owner, name)
            self.visit(value)
        elif shared is not None:
            self._fields.add((id(owner), name))
            self.visit(shared)  # a descriptor of the user's: what it holds, and its __get__
        elif name in self._perhaps and not isinstance(owner, nn.Module):
            self._fields.add((id(owner), name))
            self.reach.fields.append((owner, name))

    def _read(self, owner: Any, name: str) -> None:
        """Note an attribute that is there: an entry of a dictionary is looked up faster."""
        slots: Any = getattr(owner, "__dict__", None)
        own = slots
        if isinstance(own, dict) and name in own and not isinstance(owner, nn.Module):
            self.reach.plain.append((name, slots, name))
        else:
            self.reach.fields.append((owner, name))

    def _attribute_of_library(self, owner: object, name: str) -> None:
        """Note what an object of a library's class holds, or says that it does when asked."""
        if (id(owner), name) in self._fields or name.startswith("__"):
            return
        self._fields.add((id(owner), name))
        is_own = name in getattr(owner, "__dict__", {})
        if isinstance(getattr(type(owner), name, None), CODE):
            self._all_of(owner)
        if not is_own and not answers(type(owner)):
            return
        try:
            value, again = read(owner, name), read(owner, name)
        except Exception:  # whatever a library raises for a name that it does not know
            return
        if value is not MISSING and not callable(value) and same((value,), (again,)):
            self._read(owner, name)
            self.visit(value)

    def _all_of(self, owner: Any) -> None:
        """Note all that an object holds: its methods may read it."""
        slots: Any = getattr(owner, "__dict__", None)
        own = slots
        if (
            isinstance(own, dict)
            and not isinstance(owner, nn.Module)
            and id(slots) not in self._seen
        ):
            self.visit(slots)


class Globals:
    """The globals of a Python module as attributes: to read one that may come later."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


class Variable:
    """A variable of a context: what it is here."""

    def __init__(self, variable: ContextVar[Any]) -> None:
        self._variable = variable

    @property
    def value(self) -> Any:
        """What the variable is."""
        return self._variable.get(MISSING)

    @value.setter
    def value(self, value: Any) -> None:
        self._variable.set(value)


CODE = (property, cached_property, FunctionType, staticmethod, classmethod)
"""What a class holds to be run."""

HELD = (torch.Tensor, nn.Module, FunctionType, BuiltinFunctionType, type, list, dict, set)
"""Globals that have to be the same objects: what else they are is checked by itself."""

BY_NAME = frozenset({"getattr", "hasattr", "attrgetter", "vars", "__dict__"})
"""What reads attributes by names that are values."""

BY_NAME_OF_GLOBALS = frozenset({"globals", "vars", "locals"})
"""What reads globals by names that are values."""

INTERNAL = frozenset(vars(nn.Module()))
"""What each module holds for itself."""

QUESTIONS: dict[str, Question] = {
    "finfo": torch.get_default_dtype,
    "get_default_device": default_device,
    **{
        name: getattr(torch, name)
        for name in (
            "get_default_dtype", "are_deterministic_algorithms_enabled",
            "get_deterministic_debug_mode", "get_num_threads", "get_float32_matmul_precision",
            "is_inference_mode_enabled",
        )
    },
}  # fmt: skip
"""What tells traced code how the process is set."""


def _is_plain(shared: object) -> bool:
    """True for what a class holds for its objects to read; to read others may run code."""
    return isinstance(shared, MemberDescriptorType) or (
        shared is not None and not hasattr(type(shared), "__get__")
    )


def _read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None
