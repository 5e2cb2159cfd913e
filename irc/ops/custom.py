"""Ops of users and other packages: rule, FLOPs, bytes and CPU reference, declared in one place.

    @irc.register_op("mylib::scaled_add", rule="(a b, a b) -> (a b) linear(0 1)",
                     flops=lambda call: 2 * call["a"] * call["b"])
    def scaled_add(x, y, scale):
        return x + scale * y

Every part may be left out: without a rule the op is replicated, without a reference torch's own op
runs, without FLOPs or bytes they are estimated from the sizes (never taken as zero), and
:func:`left_out` reports it. A package declares its ops under the entry point group ``irc.ops``; the
name is the namespace of its ops, and the module is imported when the first of them is met::

    [project.entry-points."irc.ops"]
    mylib = "mylib.declared"
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from irc.entry_points import OPS, load, provider
from irc.errors import IrcError
from irc.installed import warn_of_disabled
from irc.ops.functions.formula import Expression
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, parse_rule

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp
    from irc.ops.shapes import Product
    from irc.ops.strategies import Strategy

LIBRARIES = frozenset({"aten", "onnx", "prims"})
"""Namespaces that no plug-in declares."""


@dataclass(frozen=True)
class Call:
    """One call of a declared op, whole or on one rank: what formulas of work read.

    Attributes:
        sizes: the size of each factor of the rule; ``call["m"]`` is short for it.
        arguments: ``[positional, keywords]`` of the call; ``{"operand": 0}`` is a tensor.
        item_bytes: the bytes of an element of the first result.
    """

    sizes: Mapping[str, int]
    arguments: Any
    item_bytes: int

    def __getitem__(self, factor: str) -> int:
        return self.sizes[factor]


Work: TypeAlias = "tuple[float | Product, float]"
"""What a kernel computes, in operations or as a product, and the bytes that it moves."""
Formula: TypeAlias = Callable[[Call], int]
PointwiseFormula: TypeAlias = Callable[..., Expression]
"""An op by elements: called as the op is, with an expression for each tensor."""
RuleFunction: TypeAlias = Callable[[Attrs, Sequence[Signature], Sequence[Signature]], Rule]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """What irc knows of an op that has no flow form.

    Attributes:
        target: ``namespace::name``, or with an overload, ``namespace::name.overload``.
        rule: its sharding rule as text, or what makes it of a call; empty where it is not known.
        flops: its arithmetic operations; a formula may give 0 for a call that it does not know.
        bytes: the bytes that it reads and writes; None or 0: each operand and result once.
        reference: what computes it on CPU tensors, or ``module:function``; None: torch's own op.
        derivative: gives the gradients of its tensor operands from those of its results, or
            ``module:function``; None: torch's autograd of the reference, else of the op.
        strategies: ways to shard it that the rule cannot say (`irc.ops.strategies`).
        kernels: the work of each kernel that computes a call of an op, one behind the other; None:
            it is one, of ``flops`` and ``bytes``.
        formula: what each element is; with it the op is no op of a library, but pointwise functions
            of irc, which have rules, work, derivatives and kernels.
    """

    target: str
    rule: str | RuleFunction = ""
    flops: Formula | None = None
    bytes: Formula | None = None
    reference: Callable[..., Any] | str | None = None
    derivative: Callable[..., Any] | str | None = None
    strategies: (
        Callable[[Attrs, Sequence[Signature], Sequence[Signature]], list[Strategy]] | None
    ) = None
    kernels: Callable[[Call, FlowOp], Sequence[Work]] | None = None
    formula: PointwiseFormula | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was not declared and is therefore assumed."""
        return tuple(name for name in ("rule", "flops", "bytes") if not getattr(self, name))

    def work(self, what: str, call: Call) -> int:
        """Return the ``flops`` or ``bytes`` of a call, 0 where nobody declared them.

        Raises:
            IrcError: ``op-declaration`` where the formula fails, or gives no number.
        """
        formula: Formula | None = getattr(self, what)
        if formula is None:
            return 0
        try:
            return int(formula(call))
        except Exception as error:  # the user's own code raises what it likes
            raise IrcError(
                "op-declaration",
                f"the formula for {what} of {self.target} fails",
                because=f"{type(error).__name__}: {error}",
                help=f"it is called with a Call, whose sizes are {', '.join(call.sizes) or 'none'}",
            ) from error

    def run(self) -> Callable[..., Any] | None:
        """Return the reference, imported."""
        return _imported(self.reference)

    def differentiate(self) -> Callable[..., Any] | None:
        """Return the derivative, imported."""
        return _imported(self.derivative)


def _imported(function: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


DECLARED: dict[str, Declaration] = {}
"""What :func:`register_op` was called with, by target."""


def register_op(
    target: object,
    *,
    rule: str = "",
    flops: Formula | None = None,
    bytes: Formula | None = None,  # noqa: A002 - what users call it
    reference: Callable[..., Any] | str | None = None,
    derivative: Callable[..., Any] | str | None = None,
    formula: PointwiseFormula | None = None,
) -> Callable[[Function], Function]:
    """Declare an op; used as a decorator, the function below is its CPU reference.

    Args:
        target: ``"mylib::op"``, or the op: of ``torch.library.custom_op``, ``triton_op``,
            or ``torch.ops.mylib.op``.
        rule: its sharding rule, as ``(b m k, k n) -> (b m n) sum(k)``.
        flops: arithmetic operations of a call; reads the sizes of the rule's factors.
        bytes: bytes read and written by a call.
        reference: computes the op on CPU tensors.
        derivative: called with a tuple of the results' gradients (None where a result has none) and
            then as the op is; returns the gradient of each tensor operand in order, None where it
            is zero. Without it torch differentiates the reference, or the op where it registers
            an autograd formula.
        formula: what each element of the result is, for a function of elements that broadcast:
            called as the op is, with an expression for each tensor. ``x + scale * y`` is one, and
            ``x.of("tanh")`` applies a function of `irc.ops.functions`. The op is then in irc's
            kernels on every target, computed in float32 where it is of half types, and its
            gradient is that of the formula; nothing else needs to be declared.

    Declared once, they hold for every way to compile. Where autograd records (``irc.compile``,
    ``torch.compile``) torch is told the formula, unless the op registers one with torch itself.

    Raises:
        IrcError: ``rule-syntax``, ``op-undeclared``; ``op-declaration`` for what is no text or
            function, and for a formula beside a derivative.
    """
    name = _name(target)
    _check_types(name, {"rule": rule, "flops": flops, "bytes": bytes, "reference": reference,
                        "derivative": derivative})  # fmt: skip
    if not (formula is None or callable(formula)):
        raise _wrong(name, "formula", formula, "a function of the op's arguments")
    if formula is not None and derivative is not None:
        raise IrcError(
            "op-declaration",
            f"{name} is declared with a formula and a derivative",
            because="the gradient of a formula is its own",
            help="leave one of them out: a reference with a derivative may have any gradient",
        )
    if rule:
        parse_rule(rule, where=name)
    declared = Declaration(name, rule, flops, bytes, reference, derivative, formula=formula)
    DECLARED[name] = declared

    def with_reference(function: Function) -> Function:
        if not callable(function):
            raise _wrong(name, "reference", function, "a function")
        DECLARED[name] = replace(declared, reference=function)
        return function

    return with_reference


def _check_types(target: str, parts: Mapping[str, object]) -> None:
    for part, value in parts.items():
        if part == "rule":
            if not isinstance(value, str):
                raise _wrong(target, part, value, 'text, such as "(m k, k n) -> (m n) sum(k)"')
        elif isinstance(value, str) and part in ("flops", "bytes"):
            raise _wrong(target, part, value, "a function of a Call")
        elif not (value is None or callable(value) or isinstance(value, str)):
            raise _wrong(target, part, value, 'a function, or "module:function" for one')


def _wrong(target: str, part: str, value: object, wanted: str) -> IrcError:
    return IrcError(
        "op-declaration",
        f"the {part} declared for {target} is {type(value).__name__} {value!r}",
        help=f"give {wanted}",
    )


def _name(target: object) -> str:
    """Return ``namespace::name`` of a text, a custom op, an overload or a packet."""
    if isinstance(target, str) and all(target.partition("::")):
        return target
    schema = getattr(target, "_schema", None)
    for name in (
        getattr(target, "_qualname", None),
        getattr(target, "_qualified_op_name", None),
        getattr(schema, "name", None),
    ):
        if isinstance(name, str):
            return name
    raise IrcError(
        "op-undeclared",
        f"{target!r} is no op",
        because="it has no name of the form namespace::name",
        help='declare it as irc.register_op("namespace::name", ...)',
    )


def declaration(target: str) -> Declaration | None:
    """Return the declaration of an op, that of its name where its overload has none."""
    namespace = target.partition("::")[0]
    known = _builtin()
    name = target.partition(".")[0]
    if target not in DECLARED and name not in DECLARED and namespace not in LIBRARIES:
        _load_plugin(namespace)
    for key in (target, name):
        declared = DECLARED.get(key) or known.get(key)
        if declared is not None:
            return declared
    if namespace in LIBRARIES:  # a package may have been to declare it
        warn_of_disabled()
    return None


OWN = (
    "experts",
    "grouped",
    "attention_ops",
    "resampling",
    "along_dim",
    "linear_loss",
    "window_work",
)
"""Modules of :mod:`irc.ops` that declare ops: as text, since they need what stands here."""


@cache
def _builtin() -> Mapping[str, Declaration]:
    modules = [import_module(f"irc.ops.{name}") for name in OWN]
    return {known.target: known for module in modules for known in module.DECLARATIONS}


@cache
def _load_plugin(namespace: str) -> None:
    warn_of_disabled()
    if plugin := provider(OPS, namespace):
        load(OPS, plugin)


def call_of(attrs: Attrs, sizes: Mapping[str, int], item_bytes: int) -> Call:
    """Return a ``flow.extern`` as the formulas of its declaration read it."""
    return Call(sizes, json.loads(attrs["arguments"]), item_bytes)


def assumed(attrs: Attrs) -> tuple[str, ...]:
    """Return what neither a ``flow.extern`` itself nor a declaration of its target says."""
    declared = declaration(attrs["target"])
    missing = declared.left_out if declared else ("rule", "flops", "bytes")
    return tuple(name for name in missing if name != "rule" or "rule" not in attrs)


@dataclass(frozen=True)
class Gap:
    """What irc had to assume of an op: it is replicated, or its work is estimated."""

    target: str
    assumed: tuple[str, ...]
    calls: int


def left_out(ops: Iterable[FlowOp]) -> list[Gap]:
    """Return what is not declared of the library ops among ``ops``, by target, most calls first."""
    calls: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for op in ops:
        if op.name != "flow.extern":
            continue
        target, missing = op.plain["target"], assumed(op.plain)
        if missing:
            calls[target, missing] += 1
    return [Gap(target, missing, count) for (target, missing), count in calls.most_common()]
