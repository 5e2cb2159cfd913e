"""Python objects that a command names: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from irc.errors import IrcError, did_you_mean


@dataclass(frozen=True)
class Example:
    """A module, and arguments to call it with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


def named_example(text: str) -> Example:
    """Call the function that a text names; it returns ``(module, example arguments)``.

    The arguments are a tuple, a list, one tensor, or a dict of keyword arguments; a third item, a
    dict, gives keyword arguments too.

    Raises:
        IrcError: ``model-missing`` or ``model-invalid``.
    """
    build = named_object(text)
    if not callable(build):
        raise IrcError(
            "model-invalid",
            f"'{text}' is {type(build).__name__}, not a function",
            help="name a function that returns (module, example_args)",
        )
    try:
        returned = build()
    except IrcError:
        raise
    except Exception as error:
        raise _failed(f"'{text}' failed", error) from error
    return _example(text, returned)


def named_loss(text: str) -> str | Callable[..., Any]:
    """Return the loss that a text names: a function, or as it stands the name of a result.

    Raises:
        IrcError: ``model-missing`` or ``model-invalid``.
    """
    if ":" not in text:
        return text
    loss = named_object(text)
    if _is_layer(loss):
        loss = loss()
    if not callable(loss):
        raise IrcError("model-invalid", f"'{text}' is {type(loss).__name__}, not a function")
    return loss


def _is_layer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def named_object(text: str) -> Any:
    """Import ``NAME:OBJECT``; NAME is a module, or a file that ends in ``.py``.

    Raises:
        IrcError: ``model-missing``; ``model-invalid`` where importing it fails.
    """
    name, _, attribute = text.rpartition(":")
    module = _file(Path(name)) if name.endswith(".py") else _module(name)
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items()
                 if callable(value) and not key.startswith("_")]  # fmt: skip
        raise IrcError(
            "model-missing", f"'{name}' has no '{attribute}'", help=did_you_mean(attribute, known)
        )
    return getattr(module, attribute)


def import_all(names: Sequence[str]) -> None:
    """Import files and modules, for what they declare: ops of the user's.

    Args:
        names: a module as an import names it, or a file that ends in ``.py``; one that is imported
            already is not imported again.

    Raises:
        IrcError: ``model-missing``; ``model-invalid`` where importing it fails.
    """
    for name in names:
        if not name.endswith(".py"):
            _module(name)
            continue
        path = Path(name)
        known = getattr(sys.modules.get(path.stem), "__file__", None)
        if known is None or Path(known) != path.resolve():
            _file(path)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise IrcError("model-missing", f"no file '{path}'")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As for a script: what lies beside it can be imported, and it can find itself.
    _search(path.resolve().parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(f"'{path}' cannot be imported", error) from error
    return module


def _module(name: str) -> ModuleType:
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise IrcError(
                "model-missing",
                f"no Python module '{name}'",
                because=f"it was looked for in {Path.cwd()} and among what is installed",
                help="name it as an import does, or as a file: net.py:build",
            ) from None
        raise _failed(f"'{name}' cannot be imported", error) from error
    except Exception as error:
        raise _failed(f"'{name}' cannot be imported", error) from error


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _failed(what: str, error: Exception) -> IrcError:
    """Return an error that says where the user's code failed: the innermost line that is theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__
           and not f.filename.startswith("<frozen")]  # fmt: skip
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    return IrcError("model-invalid", what, where=where, because=f"{type(error).__name__}: {error}")


# Told apart by these, values keep the type Any, and so does what stands in them.
_ITEMS: tuple[type[Any], ...] = (tuple, list)
_NAMED: type[Any] = Mapping


def _example(text: str, returned: Any) -> Example:
    items: list[Any] = list(returned) if isinstance(returned, _ITEMS) else [returned]
    if len(items) not in (2, 3) or not isinstance(items[0], nn.Module):
        shown = ", ".join(type(item).__name__ for item in items)
        raise IrcError(
            "model-invalid",
            f"'{text}' returns ({shown})",
            help="return (module, example_args): the module, and a tuple of tensors",
        )
    module, args = items[0], items[1]
    kwargs: Any = items[2] if len(items) == 3 else {}
    if isinstance(args, _NAMED) and not kwargs:
        args, kwargs = (), args
    elif isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, _ITEMS) or not isinstance(kwargs, _NAMED):
        raise IrcError(
            "model-invalid",
            f"'{text}' returns arguments of type {type(args).__name__}",
            help="give a tuple of tensors, or a dict of keyword arguments",
        )
    return Example(module, tuple(args), {str(name): value for name, value in kwargs.items()})
