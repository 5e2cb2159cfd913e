"""Run a pass of another package: whatever goes wrong in it is said to be of that pass.

The pass may raise anything, leave a program that does not verify, or change what the program takes
and gives. A pass of irc that did so would have a bug of ours; this one has a name and an owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from traceback import walk_tb

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass

from irc.dialects.builder import arguments, functions
from irc.dialects.dominance import verify_module
from irc.dialects.flow import id_of
from irc.dialects.size import Size
from irc.dialects.types import TensorType
from irc.errors import IrcError


def apply_foreign(each: ModulePass, package: str, ctx: Context, module: ModuleOp) -> None:
    """Apply a pass of another package in place, and check what it leaves.

    The program must verify, and its entry take and give what it did. Ops that the pass made and
    gave the id of another op get ids of their own: :func:`number_copies`.

    Raises:
        IrcError: its own, as they are; ``pass-failed`` for everything else.
    """
    interface = _interface(module)
    owned = {key: set(ops) for key, ops in _ops_by_id(module).items()}
    try:
        each.apply(ctx, module)
    except IrcError:
        raise
    # A plug-in runs code of others: whatever it raises is about the plug-in.
    except (Exception, SystemExit) as error:
        raise IrcError(
            "pass-failed",
            f"pass '{each.name}' of package '{package}' failed",
            where=_place(error, each),
            because=f"{type(error).__name__}: {error}",
            help=f"report it to '{package}', or leave the pass out; --traceback shows more",
        ) from error
    try:
        verify_module(module)
    except Exception as error:
        raise _invalid(each, package, str(error)) from error
    if (change := _changed(interface, _interface(module))) is not None:
        raise _invalid(each, package, change)
    number_copies(module, owned)


def _invalid(each: ModulePass, package: str, problem: str) -> IrcError:
    return IrcError(
        "pass-failed",
        f"pass '{each.name}' of package '{package}' left an invalid program",
        because=problem,
        help=f"report it to '{package}', or leave the pass out; irc opt FILE -p {each.name} runs it"
        " alone",
    )


def _place(error: BaseException, each: ModulePass) -> str:
    """Return the last line of the plug-in's own code that an error went through."""
    root = type(each).__module__.partition(".")[0]
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == root:
            place = f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
    return place


Interface = list[tuple[str, Attribute]]


def _interface(module: ModuleOp) -> Interface | None:
    """Return what @forward takes and gives; None where a module has no such function."""
    forward = functions(module).get("forward")
    if forward is None or not forward.body.blocks:
        return None
    inputs = [(f"{role} '{name}'", value.type) for role, name, value in arguments(forward)]
    kinds = forward.function_type.outputs
    return [*inputs, *((f"result {number}", kind) for number, kind in enumerate(kinds))]


def _changed(was: Interface | None, now: Interface | None) -> str | None:
    """Say in what an interface is another one; a named size may have been bound."""
    if was is None:
        return None
    if now is None:
        return "it has no function @forward any more"
    if [name for name, _ in was] != [name for name, _ in now]:
        shown = [", ".join(name for name, _ in each) for each in (was, now)]
        return f"@forward took and gave {shown[0]}; now {shown[1]}"
    for (name, before), (_, after) in zip(was, now, strict=True):
        if not _fits(before, after, placed=name.startswith("result ")):
            return f"{name} of @forward was {before} and is {after}"
    return None


def _fits(was: Attribute, now: Attribute, *, placed: bool) -> bool:
    """True where a type stands for another: the same, or with named sizes bound.

    A pass may lay arguments elsewhere among ranks; who calls the program counts on its results.
    """
    if not isinstance(was, TensorType) or not isinstance(now, TensorType):
        return was == now
    sizes = len(was.shape) == len(now.shape) and all(
        a == b or isinstance(a, Size) for a, b in zip(was.shape, now.shape, strict=True)
    )
    return sizes and was.dtype == now.dtype and (not placed or was.placement == now.placement)


def _ops_by_id(module: ModuleOp) -> dict[tuple[str, str], list[Operation]]:
    """Return the ops of each function by the function's name and their id, in order.

    Those inside a fusion or a kernel are parts of one op, and share ids with it.
    """
    ops: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for name, func in functions(module).items():
        for block in func.body.blocks:
            for op in block.ops:
                if id_of(op):
                    ops[name, id_of(op)].append(op)
    return ops


def number_copies(module: ModuleOp, owned: dict[tuple[str, str], set[Operation]]) -> None:
    """Give ops that repeat an id an id of their own: ``n2.1``, ``n2.2``, in order.

    An id names a value, which `irc check` compares on every level. The ops that had it before the
    pass keep it; where the pass took them away, the last one keeps it, since a chain of ops that
    stands for one ends with its value.

    Args:
        module: changed.
        owned: which ops had which id of which function before.
    """
    now = _ops_by_id(module)
    for (function, name), ops in now.items():
        before = owned.get((function, name), set())
        keep = [op for op in ops if op in before] or ops[-1:]
        fresh = _fresh(name, {other for func, other in now if func == function})
        for op in ops:
            if op not in keep:
                op.attributes["id"] = StringAttr(next(fresh))


def _fresh(name: str, taken: set[str]) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        if f"{name}.{number}" not in taken:
            yield f"{name}.{number}"
