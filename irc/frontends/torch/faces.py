"""Faces of a module: objects of other classes that share its state, so that one call differs.

A face has the module's own ``__dict__``: parameters, buffers, layers, hooks and attributes are
those of the module, read and written. Only what its class says of itself is another.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def face(cls: type[nn.Module], module: nn.Module) -> nn.Module:
    """Return a face of a module.

    Args:
        cls: its class, by which it behaves.
        module: whose state it has.
    """
    instance = object.__new__(cls)
    object.__setattr__(instance, "__dict__", module.__dict__)
    return instance


def subclass(cls: type[nn.Module], **members: Any) -> Any:
    """Return a class of modules that goes by the name of another, with other members."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**names, **members})
