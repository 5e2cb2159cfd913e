"""The entry of a training program: which result is the loss, which arguments are trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.builder import argument_attrs, arguments, functions, results
from irc.dialects.flow import id_of, tensor
from irc.dialects.types import TensorType, is_complex, is_float
from irc.errors import IrcError, did_you_mean
from irc.sharding.padding import ROWS

HELD = ("parameter", "buffer", "constant")
"""Roles of arguments that are the same in every call."""


def globs(text: str) -> list[str]:
    """Split ``*.bias, head.*``."""
    return [part for part in (p.strip() for p in text.split(",")) if part]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True where one of the globs is the name's."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def choose(func: FuncOp, role: str, wanted: str, unwanted: str, option: str) -> dict[str, SSAValue]:
    """Return arguments of a role by name: real, matching ``wanted``, not ``unwanted``.

    Raises:
        IrcError: ``option-value``, for a glob that no argument matches.
    """
    named = {name: value for kind, name, value in arguments(func) if kind == role}
    for pattern in (*globs(wanted), *globs(unwanted)):
        if pattern != "*" and not any(matches(name, [pattern]) for name in named):
            raise IrcError(
                "option-value",
                f"no {role} matches '{pattern}' of option {option}",
                help=did_you_mean(pattern, named),
            )
    return {
        name: value
        for name, value in named.items()
        if matches(name, globs(wanted))
        and not matches(name, globs(unwanted))
        and is_float(tensor(value).dtype)
    }


def refuse_complex(func: FuncOp, wanted: str, unwanted: str) -> None:
    """Refuse complex parameters that would be trained, and that something reads.

    Raises:
        IrcError: ``not-differentiable``.
    """
    for role, name, value in arguments(func):
        is_chosen = matches(name, globs(wanted)) and not matches(name, globs(unwanted))
        if (
            role == "parameter"
            and is_complex(tensor(value).dtype)
            and value.uses
            and is_chosen
            and not is_frozen(func, value)
        ):
            raise IrcError(
                "not-differentiable",
                f"parameter '{name}' is complex, and no optimiser of a step moves those",
                help="hold real numbers [..., 2], and compute on torch.view_as_complex of them; "
                "freeze it; or train by irc.compile(model) and an optimizer of torch's",
            )


def is_frozen(func: FuncOp, value: SSAValue) -> bool:
    """True for an argument with ``trainable = false``."""
    index = list(func.body.block.args).index(value)  # type: ignore[arg-type]  # an argument
    attr = func.arg_attrs.data[index].data.get("trainable") if func.arg_attrs else None
    return isinstance(attr, IntegerAttr) and not attr.value.data


def loss_index(func: FuncOp, name: str) -> int:
    """Return which result is the loss: the one of that name, else the only real scalar.

    Raises:
        IrcError: ``loss-unknown``.
    """
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    named = [(n, v) for (role, n), v in zip(results(func), end.operands, strict=True)
             if role == "output"]  # fmt: skip
    scalars = [n for n, v in named if tensor(v).shape == () and is_float(tensor(v).dtype)]
    chosen = [name] if name else scalars
    if len(chosen) != 1 or chosen[0] not in scalars:
        shown = ", ".join(f"{n} {tensor(v)}" for n, v in named)
        raise IrcError(
            "loss-unknown",
            f"'{name}' is no result that is one real number"
            if name
            else f"{len(scalars)} results are one real number",
            because=f"the program gives {shown}",
            help=did_you_mean(name, scalars)
            if name and scalars
            else "return the loss from the module, or say how it is computed: loss=FUNCTION of the "
            "output and targets, or --loss NAME:FUNCTION",
        )
    return [n for _, n in results(func)].index(chosen[0])


def set_results(func: FuncOp, values: Sequence[SSAValue], attrs: Sequence[DictionaryAttr]) -> None:
    """Return these values, at the end of the body."""
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    end.detach()
    end.erase()
    func.body.block.add_op(ReturnOp(*values))
    func.properties["function_type"] = FunctionType.from_lists(
        [a.type for a in func.body.block.args], [v.type for v in values]
    )
    func.res_attrs = ArrayAttr(attrs)


def add_argument(func: FuncOp, kind: TensorType, role: str, name: str) -> SSAValue:
    """Append an argument."""
    return add_arguments(func, [(kind, role, name)])[0]


def add_arguments(
    func: FuncOp, wanted: Sequence[tuple[TensorType, str, str]], rows: Sequence[int] = ()
) -> list[SSAValue]:
    """Append arguments, each a type, a role and a name.

    Args:
        func: the entry.
        wanted: of each argument.
        rows: of each that is padded how many rows are values, of others 0.
    """
    block = func.body.block
    known = func.arg_attrs.data if func.arg_attrs else [DictionaryAttr({})] * len(block.args)
    more = [argument_attrs(role, name) for _, role, name in wanted]
    more = [
        DictionaryAttr({**attrs.data, ROWS: IntegerAttr(count, i64)}) if count else attrs
        for attrs, count in zip(more, rows or [0] * len(more), strict=True)
    ]
    func.arg_attrs = ArrayAttr([*known, *more])
    return [block.insert_arg(kind, len(block.args)) for kind, _, _ in wanted]


def drop_unread(func: FuncOp) -> None:
    """Erase ops and calls whose results nobody reads: all are pure."""
    for op in reversed(list(func.body.block.ops)):
        if not isinstance(op, ReturnOp) and not any(value.first_use for value in op.results):
            op.detach()
            op.erase()


def drop_uncalled(module: ModuleOp) -> None:
    """Erase functions that the entry does not reach."""
    known, reached, todo = functions(module), set[str](), ["forward"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [
                op.callee.string_value() for op in known[name].walk() if isinstance(op, CallOp)
            ]
    for name, func in known.items():
        if name not in reached:
            func.detach()
            func.erase()


def distinguish_ids(module: ModuleOp) -> None:
    """Rename ids that stand in an earlier function: variants of one block share them."""
    seen: dict[str, str] = {}
    for number, (name, func) in enumerate(functions(module).items()):
        for op in func.body.block.ops:
            if (key := id_of(op)) and seen.setdefault(key, name) != name:
                op.attributes["id"] = StringAttr(f"{key}.v{number}")
