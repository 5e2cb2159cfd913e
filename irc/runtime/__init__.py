"""Running plans: on torch and its process groups, or natively (:func:`load`) with numpy alone."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from irc.runtime.native.program import Program as Program
    from irc.runtime.native.program import load as load

__all__ = ["Program", "load"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'irc.runtime' has no attribute {name!r}")
    return getattr(import_module("irc.runtime.native.program"), name)
