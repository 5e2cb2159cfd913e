"""What code has names for, and whose classes its objects are of: a user's or a library's."""

from __future__ import annotations

import dis
import inspect
import sys
from contextlib import suppress
from functools import cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from irc.frontends.torch.locations import LIBRARIES, TORCH

UNASKED = frozenset(
    f"__{name}__"
    for name in (
        "init", "new", "del", "post_init", "init_subclass", "class_getitem", "repr", "str",
        "format", "dir", "eq", "hash", "reduce", "reduce_ex", "getstate", "setstate", "replace",
        "set", "setattr", "delattr", "set_name",
    )
)  # fmt: skip
"""Methods that no expression runs, or none that a trace is about."""


def implicit(owner: Any) -> list[tuple[str, FunctionType]]:
    """Return the methods of a user's class that code runs without naming them."""
    kinds = () if isinstance(owner, type | ModuleType) else type(owner).__mro__
    return [
        (name, method)
        for kind in kinds
        if not is_library(kind)
        for name, method in vars(kind).items()
        if name.startswith("__") and name not in UNASKED and isinstance(method, FunctionType)
    ]


def answers(cls: type) -> bool:
    """True for a class that computes attributes."""
    return hasattr(cls, "__getattr__") or cls.__getattribute__ is not object.__getattribute__


def names_in(code: CodeType) -> list[str]:
    """Return the names that a function and those defined in it may read of anything."""
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [*dict.fromkeys([*code.co_names, *(name for c in inner for name in names_in(c))])]


@cache
def globals_in(code: CodeType) -> tuple[str, ...]:
    """Return the names that a function and those defined in it look up among globals."""
    own = [
        each.argval
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in globals_in(c)]
    return tuple(dict.fromkeys([*own, *inner]))


def words_in(code: CodeType) -> list[str]:
    """Return the names among the strings of a function."""
    inner = [word for c in code.co_consts if isinstance(c, CodeType) for word in words_in(c)]
    own = [c for c in code.co_consts if isinstance(c, str) and c.isidentifier()]
    return [*own, *inner]


@cache
def names_of_layer(cls: type) -> frozenset[str]:
    """Return the names in the code that a call of a library's layer may run, within its package."""
    root = cls.__module__.partition(".")[0]
    codes: dict[CodeType, FunctionType] = {}
    queue: list[Any] = [getattr(cls, "forward", None)]
    while queue:
        function = unwrapped(queue.pop())
        if not isinstance(function, FunctionType) or function.__code__ in codes:
            continue
        codes[function.__code__] = function
        for name in names_in(function.__code__):
            queue.append(inspect.getattr_static(cls, name, None))
            value = function.__globals__.get(name)
            if isinstance(value, FunctionType) and value.__module__.partition(".")[0] == root:
                queue.append(value)
        for cell in function.__closure__ or ():  # what a decorator has wrapped
            with suppress(ValueError):
                queue.append(cell.cell_contents)
    return frozenset(name for code in codes for name in names_in(code))


def unwrapped(value: Any) -> Any:
    """Return the function that a property or a method of a class runs."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, _BOUND) else value


_BOUND: tuple[type[Any], ...] = (staticmethod, classmethod, MethodType)


BAGS = (
    "types.SimpleNamespace", "argparse.Namespace", "_thread._local", "threading.Event",
    "collections.ChainMap", "configparser.RawConfigParser", "configparser.ConfigParser",
    "configparser.SectionProxy",
)  # fmt: skip
"""Classes of Python's own whose objects hold what users put there."""


def is_library(owner: type | ModuleType) -> bool:
    """True for classes and modules of torch, of installed packages and of Python itself."""
    module = owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None) or ""
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return isinstance(owner, ModuleType) or f"{name}.{owner.__name__}" not in BAGS
    return root == OWN or any(part in file for part in LIBRARIES)


def is_of_package(cls: type) -> bool:
    """True for a class of an installed package that is neither torch nor this one."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None) or ""
    root = cls.__module__.partition(".")[0]
    return root not in sys.stdlib_module_names and root != OWN and not file.startswith(TORCH)


OWN = __name__.partition(".")[0]
