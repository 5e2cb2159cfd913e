"""Several entry points of one model, placed together: weights and caches lie in one way for all.

One after the other, the first entry would decide alone how weights and caches lie, and a prefill
has other wishes than the decode that runs a hundred times after it. So the entries become blocks of
one program, which calls each of them:

    forward(weights, caches, inputs of prefill, inputs of decode):
        prefill(weights, caches?, inputs)  -> outputs, caches
        decode(weights, caches, inputs)    -> outputs, caches

A weight is one argument with a reader in each entry, and a new cache lies as the argument of its
name does: what the search prices is what every call pays, as often as each entry runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, SSAValue

from irc.constraints.pins import Statement
from irc.constraints.resolve import resolve
from irc.cost.model import ClusterCost
from irc.dialects.builder import argument_attrs, arguments, entry, finish_function, functions
from irc.dialects.builder import results as results_of
from irc.dialects.placement import Placement
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.search.facts import Facts
from irc.search.graph import Wishes
from irc.search.on_mesh import search

HELD = ("parameter", "buffer", "cache")
"""Roles of arguments that all entries have in common, by name."""


def place_together(
    modules: Mapping[str, ModuleOp],
    cost: ClusterCost,
    *,
    own: Mapping[str, Collection[str]] | None = None,
    runs: Mapping[str, int] | None = None,
    pins: Sequence[Statement] = (),
    memory_bytes: int | None = None,
) -> dict[str, dict[str, Placement]]:
    """Return how each entry's arguments and new caches lie, by entry and name.

    Args:
        modules: of each entry, level flow; they are not changed.
        cost: prices, on a mesh.
        own: for each entry, names of weights that are not the others' of the same name.
        runs: how often each entry runs, relative to the others; once by default.
        pins: constraints of arguments.
        memory_bytes: what a device may hold at any moment.

    Raises:
        IrcError: ``input-mismatch`` where entries disagree about a cache.
        TooSmall: nothing fits.
    """
    union = _Union(own or {})
    for name, module in modules.items():
        union.add(name, module)
    module = union.module()
    facts = Facts(module)
    often = {name: max(1, (runs or {}).get(name, 1)) for name in modules}
    for function in facts.counts:
        facts.counts[function] *= often.get(function.partition(".")[0], 1)
    facts.often.update({call: often[name] for name, call in union.calls.items()})
    wishes = Wishes("replicated", resolve(module, cost.mesh, pins), memory_bytes)
    plan = search(module, cost, wishes, facts=facts)
    choice, sources = plan.solution.choice, plan.graph.sources
    placed: dict[str, dict[str, Placement]] = {name: {} for name in modules}
    known = {name: value for _, name, value in arguments(entry(module))}
    for (name, own_name), shared in union.names.items():
        port = sources[known[shared]]
        placed[name][own_name] = port.placements[choice[port.node]]
    return placed


@dataclass
class _Union:
    """The program that calls every entry, while it is made.

    Attributes:
        names: the argument of the union for each argument and new cache of an entry.
        calls: the call of each entry.
    """

    own: Mapping[str, Collection[str]]
    names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    calls: dict[str, CallOp] = field(default_factory=dict[str, CallOp])
    _block: Block = field(default_factory=Block)
    _functions: list[FuncOp] = field(default_factory=list[FuncOp])
    _arguments: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    _attrs: list[DictionaryAttr] = field(default_factory=list[DictionaryAttr])
    _results: list[tuple[SSAValue, DictionaryAttr]] = field(
        default_factory=list[tuple[SSAValue, DictionaryAttr]]
    )

    def add(self, name: str, module: ModuleOp) -> None:
        """Call one more entry."""
        copy = module.clone()
        known = functions(copy)
        for func in known.values():
            func.properties["sym_name"] = StringAttr(f"{name}.{func.sym_name.data}")
            for op in func.walk():
                if isinstance(op, CallOp):
                    callee = f"{name}.{op.callee.string_value()}"
                    op.properties["callee"] = SymbolRefAttr(callee)
        func = known["forward"]
        operands = [self._argument(name, *each) for each in arguments(func)]
        end = func.body.block.last_op
        assert isinstance(end, ReturnOp)
        call = CallOp(func.sym_name.data, operands, [v.type for v in end.operands])
        call.attributes["id"] = StringAttr(name)
        for (role, own_name), value, result in zip(
            results_of(func), end.operands, call.res, strict=True
        ):
            self._result(name, role, own_name, value.type, result)
        self._block.add_op(call)
        self.calls[name] = call
        func.arg_attrs = func.res_attrs = None
        for each in known.values():
            each.detach()
            self._functions.append(each)

    def _argument(self, entry_name: str, role: str, name: str, value: SSAValue) -> SSAValue:
        shared = role in HELD and name not in self.own.get(entry_name, ())
        key = name if shared else f"{entry_name}/{name}"
        return self._shared(entry_name, name, key, role, value.type)

    def _shared(self, entry_name: str, name: str, key: str, role: str, kind: Attribute) -> SSAValue:
        known = self._arguments.get(key)
        if known is None:
            known = self._block.insert_arg(kind, len(self._block.args))
            self._arguments[key] = known
            self._attrs.append(argument_attrs(role, key))
        if known.type != kind:
            raise IrcError(
                "input-mismatch",
                f"'{name}' is {kind} in '{entry_name}' and {known.type} in another entry",
                help="entries that share a cache take it in one size",
            )
        self.names[entry_name, name] = key
        return known

    def _result(
        self, entry_name: str, role: str, name: str, kind: Attribute, value: SSAValue
    ) -> None:
        if role not in ("state", "cache") or not isinstance(kind, TensorType):
            self._results.append((value, argument_attrs("output", f"{entry_name}/{name}")))
            return
        if role == "cache":
            self._shared(entry_name, name, name, "cache", kind)
        held = self.names.get((entry_name, name), name)
        self._results.append((value, argument_attrs("state", held)))

    def module(self) -> ModuleOp:
        """Return the program."""
        values, attrs = zip(*self._results, strict=True)
        func = finish_function(
            "forward", self._block, values, arg_attrs=self._attrs, res_attrs=attrs
        )
        return ModuleOp([*self._functions, func])
