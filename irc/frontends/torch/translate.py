"""Torch's functional graph to flow, node by node through the table."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch._higher_order_ops.effects import with_effects
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, tensor
from irc.dialects.items import NumberError
from irc.dialects.types import TensorType
from irc.errors import ErrorCollector, InternalError, IrcError
from irc.frontends.torch import extern, memory_views
from irc.frontends.torch.by_formula import row_by_formula
from irc.frontends.torch.determinants import to_factor
from irc.frontends.torch.eager_refusals import refuses
from irc.frontends.torch.expert_loops import is_of_loop
from irc.frontends.torch.failures import LOOPS
from irc.frontends.torch.kinds import peculiar
from irc.frontends.torch.locations import location
from irc.frontends.torch.lowering import Declined, Lowering, is_for
from irc.frontends.torch.sizes import SizeError, SizeNames
from irc.frontends.torch.table import row_of
from irc.frontends.torch.wrapped import AUTOCAST, WRAPPERS, casts_whole, is_autocast
from irc.ops.custom import declaration
from irc.ops.infer import ShapeError
from irc.runtime import effects
from irc.runtime.dtypes import dtype_name, dtype_names

CHECKS = ("_assert", "sym_constrain_range")

QUANTISING = ("quantize_per", "dequantize", "int_repr", "q_")
"""Ops on torch's quantised tensors, which a trace takes for plain ones."""


class Translation:
    """What all functions of one program share: size names, random streams, errors, externs."""

    def __init__(self, names: SizeNames, seed: Callable[[], SSAValue]) -> None:
        self.names = names
        self.errors = ErrorCollector()
        self.refused: set[Node] = set()
        self.externs: Counter[str] = Counter()
        self._seed = seed
        self._streams = 0

    def random(self) -> tuple[SSAValue, int]:
        """Return the seed and the number of a stream that nothing else draws from."""
        self._streams += 1
        return self._seed(), self._streams - 1

    @contextmanager
    def drawing_from(self, seed: SSAValue) -> Generator[None]:
        """Let random ops take another seed: that of a block, whose streams are its own."""
        kept = self._seed, self._streams
        self._seed, self._streams = lambda: seed, 0
        yield
        self._seed, self._streams = kept

    def kind(self, value: torch.Tensor) -> TensorType:
        """Return the type of a fake tensor."""
        if (what := peculiar(value)) is not None:
            raise IrcError("op-unsupported", f"irc has no type for {what}")
        dtype = dtype_name(value.dtype)
        return TensorType.of([self.names.dim(size) for size in value.shape], dtype)


class Scope:
    """The nodes of one function, and the values that they have become."""

    def __init__(
        self,
        shared: Translation,
        b: FlowBuilder,
        module: GraphModule,
        *,
        autocast: bool = False,
    ) -> None:
        self.shared = shared
        self.b = b
        self.module = module
        self.autocast = autocast
        self.values: dict[Node, Any] = {}

    def run(self, nodes: Iterable[Node]) -> None:
        """Translate nodes in order; what cannot be is collected as an error, with its line."""
        for node in nodes:
            if node.op != "call_function" or node in self.values or not node.users:
                continue
            self.b.loc = location(node)
            try:
                self.values[node] = self._call(node)
            except (IrcError, SizeError) as error:
                self.shared.errors.add(_located(error, node, self.b.loc))
                self.shared.refused.add(node)
                self.values[node] = self._stand_ins(node)
            except InternalError:
                # It reads what stands in for the result of an op that is reported.
                if not self.shared.errors:
                    raise
                self.shared.refused.add(node)
                self.values[node] = self._stand_ins(node)

    def resolve(self, value: Any) -> Any:
        """Replace nodes by their values, in nested lists too."""
        if isinstance(value, Node):
            stated = value.meta.get("val")
            if isinstance(stated, torch.SymInt):
                return self.shared.names.dim(stated)
            if isinstance(stated, torch.SymFloat | torch.SymBool):
                return self.shared.names.number(stated)
            if isinstance(stated, int | float | bool) and value not in self.values:
                return stated
            if value.op == "placeholder" and value not in self.values:
                raise IrcError(
                    "capture-failed",
                    "an op is given an object that is no tensor, such as a torch.Generator of the"
                    " program's own",
                    help="draw from torch's default generator, or hand in what was drawn",
                )
            return self.values[value]
        if isinstance(value, list | tuple):
            items: list[Any] = [*value]
            return [self.resolve(item) for item in items]
        return value

    def _call(self, node: Node) -> Any:
        target = node.target
        if target is operator.getitem:
            return self._item(node)
        if isinstance(
            node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool
        ):
            return None  # readers take it from the meta data
        if target is with_effects:
            return self._effect(node)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._inline(node, target.name())
        if not isinstance(target, torch._ops.OpOverload):
            raise IrcError(
                "capture-failed", f"the graph calls {target}, which is no tensor operation"
            )
        if target._schema.name.partition("::")[2].startswith(CHECKS):
            return None
        args = tuple(self.resolve(arg) for arg in node.args)
        kwargs = {name: self.resolve(arg) for name, arg in node.kwargs.items()}
        stated = node.meta["val"]
        several = isinstance(stated, list | tuple)
        fakes: list[Any] = [*stated] if several else [stated]
        op = cast("torch._ops.OpOverload[..., Any]", target)
        results = self._lowered(node, op, args, kwargs, fakes)
        return results if several else results[0]

    def _lowered(
        self,
        node: Node,
        target: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fakes: list[Any],
    ) -> list[Any]:
        read = _read(node, len(fakes))
        layouts = memory_views.Layouts(self.shared.names)
        if (at := memory_views.row_at(node, target, layouts)) is not None:
            kind = self.shared.kind(fakes[0])
            if 0 in kind.shape:
                return [self.b.constant([0], kind.shape, kind.dtype)]
            lowering = Lowering(self.b, [kind], read, self.shared.random)
            return [self._checked(target, at(lowering, node, self.resolve, layouts), kind)]
        row = row_of(target) or row_by_formula(target._schema.name)
        # A result that nobody reads may be of a type that irc lacks (a generator's state), or be
        # left out (the gradient that a mask switches off).
        seen = [fake for fake, is_read in zip(fakes, read, strict=True) if is_read]
        if row is not None and not is_for(row, self._dtypes(args, kwargs, seen)):
            row = None
        if any(isinstance(arg, complex) for arg in (*args, *kwargs.values())):
            row = None  # literals are real
        autocast = self._is_cast(node)
        if autocast and casts_whole(target):
            args, kwargs = self._widened(args, kwargs, seen)
        if row is not None and not autocast and refuses(target, node.args, node.kwargs):
            row = None
        if row is not None and all(
            fake is None or isinstance(fake, torch.Tensor) for fake in fakes
        ):
            types = [
                self.shared.kind(fake)
                if fake is not None and (is_read or fake.dtype in dtype_names())
                else TensorType.of((), "i64")
                for fake, is_read in zip(fakes, read, strict=True)
            ]
            if all(0 in kind.shape for kind in types):
                # Rows need not think of tensors without elements.
                return [self.b.constant([0], kind.shape, kind.dtype) for kind in types]
            try:
                lowering = Lowering(self.b, types, read, self.shared.random, autocast=autocast)
                lowered = row(lowering, *args, **kwargs)
            except (Declined, NumberError):
                pass
            except (ShapeError, TypeError, KeyError, AssertionError) as error:
                raise InternalError(
                    f"the row of {target} fails on {node.format_node()}: {error}"
                ) from error
            else:
                results: list[Any] = [*lowered] if isinstance(lowered, list) else [lowered]
                return [
                    None if fake is None else self._checked(target, value, kind)
                    for value, kind, fake in zip(results, types, fakes, strict=False)
                ]
        if not memory_views.is_alone(node, target):
            raise IrcError("op-unsupported", "it depends on how its operand lies in memory")
        if autocast and casts_whole(target):
            args, kwargs = self._narrowed(args, kwargs, seen)
        return self._extern(target, to_factor(self.b, node, target, args), kwargs, fakes)

    def _widened(self, args: Any, kwargs: Any, results: list[Any]) -> Any:
        """Cast operands of half types as autocast does for an op that computes in float32."""
        wide = {torch.float32, torch.complex64}
        if not any(isinstance(x, torch.Tensor) and x.dtype in wide for x in results):
            return args, kwargs
        return self._cast(args, kwargs, ("f16", "bf16"), "f32")

    def _narrowed(self, args: Any, kwargs: Any, results: list[Any]) -> Any:
        """Cast operands in float32 as autocast does for an op that computes in a half type."""
        half = {x.dtype for x in results if isinstance(x, torch.Tensor)}
        if len(half) != 1 or not half <= {torch.float16, torch.bfloat16}:
            return args, kwargs
        return self._cast(args, kwargs, ("f16", "bf16", "f32"), dtype_names()[half.pop()])

    def _cast(self, args: Any, kwargs: Any, dtypes: tuple[str, ...], to: str) -> Any:
        def one(value: SSAValue | complex | str | None) -> Any:
            if isinstance(value, SSAValue) and tensor(value).dtype in dtypes:
                return self.b.cast(value, to)
            return value

        return pytree.tree_map(one, (args, kwargs))

    def _is_cast(self, node: Node) -> bool:
        return self.autocast or bool(node.meta.get(AUTOCAST))

    def _dtypes(self, args: Any, kwargs: Any, fakes: list[Any]) -> set[str]:
        """Return the element types of a call's operands and results that irc has names of."""
        operands: list[SSAValue] = [
            x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, SSAValue)
        ]
        results = [x.dtype for x in fakes if isinstance(x, torch.Tensor)]
        own = {tensor(x).dtype for x in operands}
        return own | {dtype_names()[dtype] for dtype in results if dtype in dtype_names()}

    def _checked(
        self, target: object, value: SSAValue | None, stated: TensorType
    ) -> SSAValue | None:
        if value is None:
            return None
        value = self.b.cast(value, stated.dtype)
        if tensor(value).shape != stated.shape:
            raise InternalError(f"the row of {target} gives {tensor(value)}, torch {stated}")
        return value

    def _extern(
        self,
        target: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fakes: list[Any],
    ) -> list[Any]:
        if any(isinstance(fake, torch.SymInt | torch.SymFloat) for fake in fakes):
            raise SizeError(f"{target} takes a number out of a tensor")
        if target._schema.is_mutable:
            raise IrcError(
                "op-unsupported", "it writes to its operands and torch could not undo that"
            )
        if target._schema.name.partition("::")[2].startswith(QUANTISING):
            raise IrcError("op-unsupported", "irc has no type for quantised tensors")
        name = extern.target(target)
        self.shared.externs[name] += 1
        declared = declaration(name)
        # A rule that is made for each call is made where it is asked for.
        stated = declared.rule if declared else ""
        rule = stated if stated and isinstance(stated, str) else None
        return self._called(name, args, kwargs, fakes, rule)

    def _called(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fakes: list[Any],
        rule: str | None = None,
    ) -> list[Any]:
        kinds = [self.shared.kind(fake) for fake in fakes if isinstance(fake, torch.Tensor)]
        operands: list[SSAValue] = []
        text = extern.arguments(args, kwargs, operands)
        results = iter(
            self.b.ops(ExternOp, operands, results=kinds, target=name, arguments=text, rule=rule)
        )
        return [next(results) if isinstance(fake, torch.Tensor) else None for fake in fakes]

    def _effect(self, node: Node) -> list[Any]:
        """Translate an op that does more than compute; the token keeps it in the program."""
        token, target, *rest = (self.resolve(arg) for arg in node.args)
        kwargs = {name: self.resolve(arg) for name, arg in node.kwargs.items()}
        if not isinstance(target, torch._ops.OpOverload):
            raise IrcError("op-unsupported", f"{target} has an effect, and runs Python code")
        name = extern.target(cast("torch._ops.OpOverload[..., Any]", target))
        self.shared.externs[name] += 1
        return self._called(effects.TARGET, (name, token, *rest), kwargs, list(node.meta["val"]))

    def _item(self, node: Node) -> Any:
        source, index = node.args
        assert isinstance(source, Node)
        several = self.values[source]
        if several is None:
            raise InternalError(f"nothing is known of what {source.name} gives")
        return several[index]

    def _inline(self, node: Node, name: str) -> list[Any]:
        if name not in WRAPPERS:
            raise IrcError(
                "capture-failed",
                f"control flow '{name}' depends on tensor values",
                help="use torch.where on both results",
            )
        body, *operands = node.args[WRAPPERS[name] :]
        assert isinstance(body, Node)
        graph_module = getattr(self.module, str(body.target))
        enabled = is_autocast(node, self._is_cast(node))
        inner = Scope(self.shared, self.b, graph_module, autocast=enabled)
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            inner.values[placeholder] = self.resolve(operand)
        inner.run(graph_module.graph.nodes)
        (output,) = [n for n in graph_module.graph.nodes if n.op == "output"]
        return [inner.resolve(value) for value in output.args[0]]

    def _stand_ins(self, node: Node) -> Any:
        """Return values of the right types, so that translation goes on and finds all errors."""
        stated = node.meta.get("val")
        fakes: list[Any] = [*stated] if isinstance(stated, list | tuple) else [stated]
        stand_ins: list[Any] = []
        for fake in fakes:
            if not isinstance(fake, torch.Tensor):
                stand_ins.append(None)
                continue
            try:
                shape = [self.shared.names.dim(size) for size in fake.shape]
            except (SizeError, IrcError):
                shape = [1] * fake.ndim
            dtype = dtype_names().get(fake.dtype, "f32")
            stand_ins.append(self.b.constant([0], shape, dtype))
        return stand_ins if isinstance(stated, list | tuple) else stand_ins[0]


def _read(node: Node, count: int) -> Sequence[bool]:
    # An item that nobody uses is taken by unpacking alone.
    items = {user.args[1] for user in node.users if user.target is operator.getitem and user.users}  # type: ignore[misc]  # a position
    whole = any(user.target is not operator.getitem for user in node.users)
    return [whole or index in items for index in range(count)]


def _located(error: Exception, node: Node, where: str) -> IrcError:
    if isinstance(error, IrcError):
        return IrcError(
            error.code, f"{node.target}: {error.message}", where, error.because, error.help
        )
    return IrcError(
        "capture-failed",
        f"{node.target}: {error}",
        where,
        help="write it with fixed sizes, such as torch.where instead of a boolean index"
        + LOOPS * is_of_loop(node),
    )
