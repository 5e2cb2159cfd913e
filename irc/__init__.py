"""irc: a distributed machine learning compiler.

The public names are resolved when they are first used, because torch takes seconds to import
and `irc --help` should not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from irc.api import compile as compile
    from irc.api import export_plan as export_plan
    from irc.api import load as load
    from irc.api import original as original
    from irc.frontends.torch.capture import capture as capture
    from irc.ops.custom import register_op as register_op

__version__ = "0.1.0"

_LAZY = {
    "capture": "irc.frontends.torch.capture",
    "compile": "irc.api",
    "export_plan": "irc.api",
    "load": "irc.api",
    "original": "irc.api",
    "register_op": "irc.ops.custom",
}

__all__ = ["__version__", "capture", "compile", "export_plan", "load", "original", "register_op"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'irc' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
