"""Which ``torch.compile(backend="irc")`` a graph is of, and what of its function Dynamo traced.

torch.compile makes an object for each call of it, by which Dynamo calls the backend: what is noted
of a graph is kept there, and :func:`irc.explain` finds it by what torch.compile has returned.
Dynamo tells both only by names that are not public. Where a version of torch has others, facts go
to the loggers alone, and :func:`irc.explain` says that it knows of none.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from irc.calls.breaks import reason_of, reasons_so_far
from irc.calls.noted import call_kind, kind_of
from irc.frontends.torch.locations import innermost, shown
from irc.record import CallKind, FallBack, Record

RECORD = "_irc_record"
"""The attribute of torch.compile's object that facts are kept in."""
RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)")
"""How Dynamo calls what comes behind a break."""
TORCH = Path(torch.__file__).parent


def record_here(gm: GraphModule) -> Record:
    """Return where facts of a graph that Dynamo gives to the backend are noted.

    Where the graph ends in a break, that is noted first.
    """
    traced = _traced()
    owner = None if traced is None else _owner(traced.output.compiler_fn)
    if traced is None or owner is None:
        return Record()
    whole: Record = getattr(owner, RECORD, None) or Record()
    setattr(owner, RECORD, whole)
    record = whole.of_kind(_kind(traced))
    ended = getattr(gm, "compile_subgraph_reason", None)
    if ended is not None and ended.graph_break:
        record.note(_break(ended, _name(traced.f_code).partition(",")[0]))
    return record


def recorded_of(compiled: Any) -> tuple[str, Record | None]:
    """Return the name of what was given to torch.compile, and what is noted of it.

    Args:
        compiled: what torch.compile has returned for the backend ``irc``.

    Raises:
        LookupError: for another backend; its name is what is raised.
    """
    owner = _owner_of(compiled)
    name = getattr(owner, "compiler_name", "another")
    if name != "irc":
        raise LookupError(name)
    original = getattr(compiled, "_orig_mod", None)
    if original is None:
        original = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    told = getattr(original, "__qualname__", type(original).__name__)
    record: Record | None = getattr(owner, RECORD, None)
    # A function that breaks before its first op has no graph that could have said so.
    for left in _breaks_of(original, f"'{told}'"):
        record = record or Record()
        setattr(owner, RECORD, record)
        if left.line not in record.lines():
            record.note(left)
    return told, record


def _breaks_of(original: Any, name: str) -> list[FallBack]:
    """Return where Dynamo has broken graphs of a function, or of a module's forward."""
    code = getattr(inspect.unwrap(getattr(original, "forward", original)), "__code__", None)
    if code is None:
        return []
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    return [
        _break(each, name)
        for each in reasons_so_far()
        if each.user_stack
        and each.user_stack[0].filename == code.co_filename
        and code.co_firstlineno <= (each.user_stack[0].lineno or 0) <= last
    ]


def is_by_torch(compiled: Any) -> bool:
    """True for what torch.compile has returned."""
    return _owner_of(compiled) is not None


def _traced() -> Any:
    """Return what Dynamo translates at the moment; None where that is not known."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        traced = InstructionTranslator.current_tx()
    except AttributeError:
        return None
    names = ("f_code", "f_locals", "output")
    known = all(hasattr(traced, name) for name in names)
    return traced if known and hasattr(traced.output, "compiler_fn") else None


def _owner(backend: Any) -> Any:
    """Return torch.compile's own object, out of what Dynamo puts around it."""
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return backend if hasattr(backend, "compiler_name") else None


def _owner_of(compiled: Any) -> Any:
    if isinstance(compiled, nn.Module):
        context = getattr(compiled, "dynamo_ctx", None)
        if context is None:  # module.compile() changes the module itself
            return _owner_of(getattr(compiled, "_compiled_call_impl", None))
        return _owner(getattr(context, "callback", None))
    if not hasattr(compiled, "_torchdynamo_orig_callable"):
        return None
    try:
        held = inspect.getclosurevars(compiled).nonlocals
    except TypeError:
        return None
    return _owner(held.get("callback"))


def _kind(traced: Any) -> CallKind:
    """Return what Dynamo has traced, by the arguments of the function."""
    code: CodeType = traced.f_code
    values: dict[str, Any] = traced.f_locals
    inner = values.get("fn")
    if Path(code.co_filename).is_relative_to(TORCH) and callable(inner):  # around a whole module
        return call_kind(inner, values.get("args", ()), values.get("kwargs", {}))
    count = code.co_argcount + code.co_kwonlyargcount
    flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    count += sum(bool(code.co_flags & flag) for flag in flags)
    own = {n: values[n] for n in code.co_varnames[:count] if n in values and "__" not in n}
    first = next(iter(own), "")
    module = own.get(first)
    training = module.training if isinstance(module, nn.Module) else None
    if training is not None:
        del own[first]
    names: list[str] = []
    leaves: list[Any] = []
    for name, value in own.items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            names.append(f"{name}{pytree.keystr(path)}")
            leaves.append(leaf)
    return kind_of(names, leaves, training, of=_name(code))


def _name(code: CodeType) -> str:
    """Return what a function, or the part of one behind a break, is called."""
    if resumed := RESUMED.fullmatch(code.co_name):
        return f"the rest of '{resumed['name']}', {shown(code.co_filename)}:{resumed['line']}"
    return f"'{code.co_qualname}', {shown(code.co_filename)}:{code.co_firstlineno}"


def _break(ended: Any, name: str) -> FallBack:
    frames = [(f.filename, str(f.lineno), f.name) for f in ended.user_stack]
    line = innermost(frames) if frames else ""
    return FallBack("break", f"Python runs a part of {name}", reason_of(ended.reason), line)
