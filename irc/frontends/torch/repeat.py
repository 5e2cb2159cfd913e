"""Repeated layers are traced once: the others are stubs, and their nodes are copies.

Tracing costs tens of milliseconds a layer, a copy of its nodes one or two. The first layer of a
group of equal ones is traced between two marks; each later one that is called alike leaves one
node, which :func:`expand` replaces by a copy of what lies between the marks, with that layer's own
parameters. The graph is then the one that plain tracing gives. A layer is traced by itself wherever
something is unusual: an attribute that differs and is read, objects among its arguments, hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

MIN_LAYERS = 4
"""Smaller groups gain nothing."""

Plain = bool | int | float | str | None
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
STORES = ("_parameters", "_buffers", "_modules")

LAYERS = "irc_capture"
"""The namespace of the marks around layers, and of the stubs for layers."""

_definitions: Any = torch.library
"""torch's definitions of ops, whose types are unknown in part."""
_LIBRARY = _definitions.Library(LAYERS, "DEF")
for _name in ("enter", "leave", "layer"):
    _LIBRARY.define(f"{_name}(Tensor[] values, str layer, int call) -> Tensor[]")
_OPS = torch.ops.irc_capture
_CALLS: dict[int, Callable[[], list[Tensor]]] = {}
_NUMBERS = count()


def _same(values: list[Tensor], layer: str, call: int) -> list[Tensor]:
    return [x.new_empty_strided(x.size(), x.stride()) for x in values]


def _of_call(values: list[Tensor], layer: str, call: int) -> list[Tensor]:
    return _CALLS[call]()


_definitions.register_fake("irc_capture::enter", _same, lib=_LIBRARY)
_definitions.register_fake("irc_capture::leave", _same, lib=_LIBRARY)
_definitions.register_fake("irc_capture::layer", _of_call, lib=_LIBRARY)


@dataclass
class Group:
    """Layers of one form, and how they have been called so far."""

    layers: dict[str, nn.Module]
    differing: list[tuple[str, str]]
    calls: dict[Any, tuple[int, pytree.TreeSpec, list[Any]]] = field(default_factory=dict[Any, Any])


def groups(module: nn.Module) -> list[Group]:
    """Return the groups of equal layers in the outermost containers of a module."""
    repeated: list[Group] = []
    inside: list[str] = []
    for path, container in _modules(module, remove_duplicate=True):
        if not isinstance(container, nn.ModuleList | nn.Sequential) or path.startswith(
            tuple(inside)
        ):
            continue
        by_form: dict[Any, dict[str, nn.Module]] = {}
        for name, layer in container.named_children():
            form = _form(layer)
            if form is not None:
                by_form.setdefault(form, {})[f"{path}.{name}" if path else name] = layer
        for layers in by_form.values():
            differing = _differing(list(layers.values()))
            if len(layers) >= MIN_LAYERS and differing is not None:
                repeated.append(Group(layers, differing))
                inside.append(f"{path}.")
    return repeated


def _modules(module: Any, *, remove_duplicate: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Return all modules in one by path; torch's method has no types."""
    return module.named_modules(remove_duplicate=remove_duplicate)


def _form(layer: nn.Module) -> Any:
    """Return what equal layers have in common, None where a layer is unusual."""
    parts: list[Any] = []
    for path, child in _modules(layer):
        if "forward" in vars(child) or any(getattr(child, hook) for hook in HOOKS):
            return None
        held = [
            (name, None if x is None else (x.shape, x.dtype, x.device, x.requires_grad))
            for store in (child._parameters, child._buffers)  # pyright: ignore[reportPrivateUsage]
            for name, x in store.items()
        ]
        parts.append((path, type(child), tuple(held), child.training))
    return tuple(parts)


def _differing(layers: list[nn.Module]) -> list[tuple[str, str]] | None:
    """Return (submodule, attribute) of numbers that differ; None where objects differ."""
    numbers: list[tuple[str, str]] = []
    children: tuple[tuple[str, nn.Module], ...]
    for children in zip(*map(_modules, layers), strict=True):
        attributes: list[dict[str, Any]] = [
            {k: v for k, v in vars(child).items() if k not in STORES} for _, child in children
        ]
        first = attributes[0]
        if any(other.keys() != first.keys() for other in attributes):
            return None
        for key, value in first.items():
            if isinstance(value, Tensor):
                return None
            if all(other[key] is value or _equal(other[key], value) for other in attributes):
                continue
            if not all(isinstance(other[key], Plain) for other in attributes):
                return None
            numbers.append((children[0][0], key))
    return numbers


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    own: Any = a
    if isinstance(a, Plain | set | frozenset):
        return a == b
    if isinstance(a, list | tuple):
        return len(own) == len(b) and all(map(_equal, own, b))
    if isinstance(a, dict):
        return own.keys() == b.keys() and all(_equal(own[k], b[k]) for k in own)
    return False


@contextmanager
def stubbed(module: nn.Module) -> Generator[bool]:
    """Replace the forward of repeated layers; yields whether there are any."""
    repeated = groups(module)
    with ExitStack() as stack:
        for group in repeated:
            for path, layer in group.layers.items():
                replaced = _Stub(group, path, layer)
                stack.enter_context(mock.patch.dict(layer.__dict__, {"forward": replaced}))
        try:
            yield bool(repeated)
        finally:
            _CALLS.clear()


class _Stub:
    """Stands for a layer's forward: traces the first call of its kind, and marks the others."""

    def __init__(self, group: Group, path: str, layer: nn.Module) -> None:
        self._group = group
        self._path = path
        self._layer = layer
        self._forward = type(layer).forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_foreign)
        if (
            not all(isinstance(leaf, Tensor | Plain) for leaf in leaves)
            or not torch.compiler.is_exporting()
        ):
            return self._forward(self._layer, *args, **kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (spec, *map(_meta, leaves))
        if key not in self._group.calls:
            return self._trace(key, leaves, spec, tensors)
        call, out_spec, outputs = self._group.calls[key]
        results = iter(_OPS.layer(tensors, self._path, call))
        return pytree.tree_unflatten(
            [next(results) if isinstance(x, Tensor) else x for x in outputs], out_spec
        )

    def _trace(
        self, key: Any, leaves: list[Any], spec: pytree.TreeSpec, tensors: list[Tensor]
    ) -> Any:
        call = next(_NUMBERS)
        entered = iter(_OPS.enter(tensors, self._path, call))
        args, kwargs = pytree.tree_unflatten(
            [next(entered) if isinstance(x, Tensor) else x for x in leaves], spec
        )
        before = _state(self._layer)
        with _watched(self._layer, self._group.differing) as read:
            returned = self._forward(self._layer, *args, **kwargs)
        outputs, out_spec = pytree.tree_flatten(returned, is_leaf=_is_foreign)
        usual = (
            all(isinstance(x, Tensor | Plain) for x in outputs)
            and not read
            and before == _state(self._layer)
        )
        results = [x for x in outputs if isinstance(x, Tensor)]
        left = iter(_OPS.leave(results, self._path, call))
        if not usual:
            return returned
        _CALLS[call] = lambda: _same(results, "", call)
        self._group.calls[key] = call, out_spec, outputs
        return pytree.tree_unflatten(
            [next(left) if isinstance(x, Tensor) else x for x in outputs], out_spec
        )


def _is_foreign(value: Any) -> bool:
    # Objects that are trees too (caches) may be written to by the layer: leaves here, and refused.
    held: Any = value
    return not isinstance(value, list | tuple | dict) or hasattr(held, "__dict__")


def _meta(x: object) -> Any:
    if not isinstance(x, Tensor):
        return type(x), x
    return tuple(map(str, (*x.shape, *x.stride(), x.dtype, x.device)))


def _state(layer: nn.Module) -> list[int]:
    return [id(value) for child in layer.modules() for value in vars(child).values()]


@contextmanager
def _watched(layer: nn.Module, attributes: list[tuple[str, str]]) -> Generator[set[str]]:
    """Note which of the attributes are read."""
    read: set[str] = set()
    with ExitStack() as stack:
        for path in dict.fromkeys(path for path, _ in attributes):
            child = layer.get_submodule(path)
            names = [name for owner, name in attributes if owner == path]
            stack.callback(setattr, child, "__class__", type(child))
            child.__class__ = _watching(type(child), names, read)
        yield read


def _watching(cls: type, names: list[str], read: set[str]) -> type:
    def watch(name: str) -> property:
        def get(self: Any) -> Any:
            read.add(name)
            return self.__dict__[name]

        return property(get, lambda self, value: self.__dict__.__setitem__(name, value))

    # The same names: torch notes the class of each module that it traces.
    same = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), {**same, **{name: watch(name) for name in names}})


def is_mark(node: Node) -> bool:
    """Return whether a node is a mark around a layer, or stands for one."""
    return node.target in (_OPS.enter.default, _OPS.leave.default, _OPS.layer.default)


def expand(program: ExportedProgram, module: nn.Module) -> None:
    """Replace stubs by copies of the traced layer, and drop the marks."""
    _Expansion(program, module).run()


class _Expansion:
    def __init__(self, program: ExportedProgram, module: nn.Module) -> None:
        self._graph: Graph = program.graph
        self._nodes = list(self._graph.nodes)
        self._module = module
        signature = program.graph_signature
        by_name = {node.name: node for node in self._nodes if node.op == "placeholder"}
        self._held: dict[Node, Tensor] = {}
        self._holder: dict[int, Node] = {}
        named = dict(
            (
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            )
        )
        for name, target in {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
        }.items():
            if target in named:
                node, value = by_name[name], named[target]
                self._held[node] = value
                # Of tied weights, the placeholder that is read.
                if id(value) not in self._holder or node.users:
                    self._holder[id(value)] = node

    def run(self) -> None:
        marks: dict[Any, dict[Any, Node]] = {_OPS.enter.default: {}, _OPS.leave.default: {}}
        for node in self._nodes:
            if node.target in marks:
                marks[node.target][node.args[2]] = node
        enters, leaves = marks.values()
        place = {node: i for i, node in enumerate(self._nodes)}
        for node in self._nodes:
            if node.target is _OPS.layer.default:
                enter, leave = enters[node.args[2]], leaves[node.args[2]]
                self._copy(node, enter, leave, self._nodes[place[enter] + 1 : place[leave]])
        for node in (*enters.values(), *leaves.values()):
            values: Any = node.args[0]
            self._bypass(node, list(values))

    def _copy(self, stub: Node, enter: Node, leave: Node, region: list[Node]) -> None:
        path, traced = str(stub.args[1]), str(enter.args[1])
        env: dict[Node, Any] = {}
        for node in region:
            if node.args and node.args[0] is enter:
                env[node] = stub.args[0][node.args[1]]  # type: ignore[index]  # getitem of a list
                continue
            for source in node.all_input_nodes:
                if source not in env:
                    env[source] = self._of_layer(source, traced, path)
            with self._graph.inserting_before(stub):
                env[node] = self._graph.node_copy(node, lambda x: env[x])
            if "nn_module_stack" in node.meta:
                env[node].meta["nn_module_stack"] = _moved(
                    node.meta["nn_module_stack"], traced, path
                )
        results = [env.get(x, x) for x in leave.args[0]]  # type: ignore[union-attr]  # a list of nodes
        self._bypass(stub, results)

    def _of_layer(self, source: Node, traced: str, path: str) -> Node:
        """Return the node that is to this layer what ``source`` is to the traced one."""
        value = self._held.get(source)
        if value is None:
            return source
        first, layer = self._module.get_submodule(traced), self._module.get_submodule(path)
        for name, own in (
            *first.named_parameters(remove_duplicate=False),
            *first.named_buffers(remove_duplicate=False),
        ):
            if own is value:
                owner, _, last = name.rpartition(".")
                return self._holder[id(getattr(layer.get_submodule(owner), last))]
        return source

    def _bypass(self, node: Node, values: list[Any]) -> None:
        for item in list(node.users):
            item.replace_all_uses_with(values[item.args[1]])  # type: ignore[index]  # getitem
            self._graph.erase_node(item)
        self._graph.erase_node(node)


def _moved(stack: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Say of a copied node that it stands in another layer."""

    def move(text: str) -> str:
        head, separator, tail = text.partition(old)
        return f"{head}{new}{tail}" if separator else text

    return {move(key): (move(value[0]), *value[1:]) for key, value in stack.items()}
