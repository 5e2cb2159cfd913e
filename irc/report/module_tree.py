"""What each module of the model holds and takes: weights, time, bytes, along the model's own tree.

A plan knows names of weights and the steps that read them. A step that reads weights of a module is
that module's; one that reads none belongs to what all modules of its call share (``layers.3`` for
an activation between two of its products), where calls are known by the ids of steps
(``n12/b0n4``). What is left is the model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from irc.plan.schema import Call, Copy, Kernels, Library, Plan, Start, Step, Wait, placement_of
from irc.report.weights import Argument, alike, merged_names
from irc.simulate.labels import Labels
from irc.simulate.plan import steps

GRADIENT = re.compile(r"\.g\d*$")
ROLES = ("parameter", "buffer", "constant")


@dataclass
class Taken:
    """What steps take, all runs together, on one rank.

    Attributes:
        compute_s: of kernels, ops of a library, and copies.
        comm_s: of collectives, on their links.
        num_bytes: that kernels and ops read and write.
    """

    compute_s: float = 0.0
    comm_s: float = 0.0
    num_bytes: float = 0.0

    def add(self, other: Taken, times: float = 1.0) -> None:
        """Add what others take."""
        self.compute_s += times * other.compute_s
        self.comm_s += times * other.comm_s
        self.num_bytes += times * other.num_bytes


@dataclass
class Module:
    """A module, or those that differ in their numbers alone: ``layers.{0-31}``.

    Attributes:
        name: the last part of its path.
        path: the dotted name; empty of the model.
        weights: its own, alike ones together.
        own: what its own steps take.
        all: with those of its children.
        children: by name, in the order of the model.
    """

    name: str
    path: str
    weights: list[Weights] = field(default_factory=list["Weights"])
    own: Taken = field(default_factory=Taken)
    all: Taken = field(default_factory=Taken)
    children: dict[str, Module] = field(default_factory=dict[str, "Module"])

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights of a rank, its children's too."""
        return sum(row.num_bytes for row in self.weights) + sum(
            child.num_bytes for child in self.children.values()
        )


@dataclass(frozen=True)
class Weights:
    """Weights that differ in the numbers of their names alone."""

    names: str
    count: int
    first: Argument
    num_bytes: int


def taken_by(plan: Plan) -> dict[str, Taken]:
    """Return what the steps of each module take in one call, by its dotted name; '' is the model.

    A step that reads weights of several modules counts in equal parts for each.
    """
    labels = Labels(plan)
    readers = _readers(plan)
    order = [step for _, step in steps(plan) if not isinstance(step, Wait)]
    by_call: dict[str, set[str]] = {}
    for step in order:
        if modules := readers.get(id(step)):
            by_call.setdefault(_call_of(step), set()).update(modules)
    shared = {call: _shared(modules) for call, modules in by_call.items() if call}
    taken: dict[str, Taken] = {}
    for step in order:
        modules = readers.get(id(step)) or (shared.get(_call_of(step), ""),)
        seconds, is_comm = step.seconds or 0.0, isinstance(step, Start)
        one = Taken(0.0 if is_comm else seconds, seconds if is_comm else 0.0,
                    0.0 if is_comm else labels(step).num_bytes)  # fmt: skip
        for module in modules:
            taken.setdefault(module, Taken()).add(one, 1 / len(modules))
    return taken


def _readers(plan: Plan) -> dict[int, tuple[str, ...]]:
    """Return the modules whose weights each step reads, by the identity of the step.

    What is made of weights alone (gathered, packed, cast) counts as the weights.
    """
    made_of: dict[int, frozenset[str]] = {
        plan.root(i): frozenset([plan.buffers[i].name.rpartition(".")[0]])
        for i in plan.weights
        if plan.buffers[i].role in ROLES
    }
    readers: dict[int, tuple[str, ...]] = {}
    before = [part for a in plan.prepared for part in (a.calls if isinstance(a, Kernels) else (a,))]
    for step in (*before, *(step for _, step in steps(plan))):
        read, written = _ends(plan, step)
        of_weights = [made_of[root] for root in map(plan.root, read) if root in made_of]
        modules = frozenset[str]().union(*of_weights)
        whole = bool(modules) and len(of_weights) == len(read)
        for root in map(plan.root, written):
            if whole and root not in map(plan.root, plan.weights):
                made_of[root] = modules
            elif plan.buffers[root].storage != "weight":
                made_of.pop(root, None)
        if modules:
            readers[id(step)] = tuple(sorted(modules))
    return readers


def _ends(plan: Plan, step: Step) -> tuple[Sequence[int], Sequence[int]]:
    match step:
        case Call():
            count = plan.kernels[step.kernel].num_inputs
            return step.args[:count], step.args[count:]
        case Library() | Start():
            return step.inputs, step.outputs
        case Copy():
            return (step.source,), (step.target,)
        case _:
            return (), ()


def _call_of(step: Step) -> str:
    """Return the call of a block that a step is in, of either pass; empty outside of blocks."""
    call = step.id.partition(",")[0].rpartition("/")[0]
    return "/".join(GRADIENT.sub("", each) for each in call.split("/")) if call else ""


def _shared(modules: Iterable[str]) -> str:
    """Return what some modules are all in.

    >>> _shared(["layers.3.mlp.up", "layers.3.norm"]), _shared(["layers.1.up", "layers.2.up"])
    ('layers.3', 'layers')
    """
    paths = [module.split(".") for module in modules]
    first, count = paths[0], 0
    while count < min(map(len, paths)) and all(path[count] == first[count] for path in paths):
        count += 1
    return ".".join(first[:count])


def module_tree(
    arguments: Sequence[Argument], taken: Mapping[str, Taken], name: str = "model"
) -> Module:
    """Return the tree of modules, those that are alike in all but numbers as one.

    Args:
        arguments: weights; inputs and states are left out.
        taken: by dotted name of a module.
        name: of the root.
    """
    root = Module(name, "")
    merged: dict[str, str] = {}
    for group in alike(one for one in arguments if one.role in ROLES):
        names = merged_names([one.name for one in group])
        path, _, _ = names.rpartition(".")
        for one in group:
            # By each of its heads, since a step may belong to any module on the way.
            parts, heads = path.split("."), one.name.rpartition(".")[0].split(".")
            for length in range(1, len(heads) + 1):
                merged.setdefault(".".join(heads[:length]), ".".join(parts[:length]))
        held = sum(one.bytes_per_rank for one in group)
        at(root, path).weights.append(Weights(names, len(group), group[0], held))
    for module, own in taken.items():
        at(root, merged.get(module, module)).own.add(own)
    _add_up(root)
    return root


def at(root: Module, path: str) -> Module:
    """Return the module at a path, which is added where it is not there."""
    here = root
    for part in path.split(".") if path else ():
        full = f"{here.path}.{part}" if here.path else part
        here = here.children.setdefault(part, Module(part, full))
    return here


def _add_up(module: Module) -> None:
    module.all.add(module.own)
    for child in module.children.values():
        _add_up(child)
        module.all.add(child.all)


def plan_arguments(plan: Plan, indices: Iterable[int] | None = None) -> list[Argument]:
    """Return arguments or results of a plan as its buffers say them, where there is no IR to ask.

    Args:
        plan: of one program.
        indices: of its buffers; by default the weights.
    """
    arguments: list[Argument] = []
    for index in plan.weights if indices is None else indices:
        buffer = plan.buffers[index]
        placement = placement_of(buffer)
        shape = tuple(
            length * _parts(plan, placement.split_axes(dim))
            for dim, length in enumerate(buffer.shape)
        )
        placed = placement if placement.axes else None
        held = buffer.size_bytes
        arguments.append(Argument(buffer.name, buffer.role, shape, buffer.dtype, placed, held))
    return arguments


def _parts(plan: Plan, axes: Sequence[str]) -> int:
    number = 1
    for axis in axes:
        number *= plan.device_mesh.size(axis)
    return number
