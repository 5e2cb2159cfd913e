"""What a compiled module was specialised on, checked before each call in a few microseconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.frontends.torch.contents import same
from irc.frontends.torch.export import shape_specs
from irc.frontends.torch.held import attributes, sized
from irc.frontends.torch.held import held as held_by
from irc.frontends.torch.hooks import layer_hooks
from irc.frontends.torch.kinds import peculiar_argument
from irc.frontends.torch.outside import Outside, Question
from irc.frontends.torch.quick import Quick, accepting, holding
from irc.frontends.torch.reach import reach
from irc.frontends.torch.sizes import dims_of
from irc.frontends.torch.structure import argument_names
from irc.runtime.held import is_held


@dataclass(frozen=True)
class Leaf:
    """What is expected of a leaf of the arguments; ``shape`` has names where sizes are dynamic.

    ``lies`` says how it has to lie in memory where that matters: a function of this module, and
    what that says of it. Of one with ``parts`` ranks may hold parts (:mod:`irc.runtime.held`).
    """

    name: str
    shape: tuple[int | str, ...] = ()
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    requires_grad: bool = False
    value: Any = None
    lies: tuple[Callable[[torch.Tensor], tuple[Any, ...]], tuple[Any, ...]] | None = None
    parts: bool = False

    def reason(self, argument: Any, sizes: dict[str, int]) -> str | None:
        """Say how a leaf differs, or None; ``sizes`` collects the named ones."""
        if self.dtype is None:
            return (
                None
                if type(argument) is type(self.value) and argument == self.value
                else (f"'{self.name}' is {argument!r}, compiled for {self.value!r}")
            )
        if not isinstance(argument, torch.Tensor):
            return f"'{self.name}' is {type(argument).__name__}, compiled for a tensor"
        in_parts = self.parts and is_held(argument)
        if not in_parts and (what := peculiar_argument(argument)) is not None:
            return f"'{self.name}' is {what}, compiled for a dense one"
        if argument.dtype is not self.dtype:
            return f"'{self.name}' has dtype {argument.dtype}, compiled for {self.dtype}"
        if argument.device != self.device:
            return f"'{self.name}' is on {argument.device}, compiled for {self.device}"
        if argument.requires_grad is not self.requires_grad:
            grad = argument.requires_grad
            return f"'{self.name}' has requires_grad={grad}, compiled for {self.requires_grad}"
        shape = tuple(argument.shape)
        if shape == self.shape or self._fits(shape, sizes):
            if self.lies is not None and self.lies[0](argument) != self.lies[1]:
                return f"'{self.name}' lies in memory otherwise than at compile time"
            return None
        expected = ", ".join(map(str, self.shape))
        return f"'{self.name}' has shape {list(shape)}, compiled for [{expected}]"

    def _fits(self, shape: tuple[int, ...], sizes: dict[str, int]) -> bool:
        return len(shape) == len(self.shape) and all(
            sizes.setdefault(want, size) == size if isinstance(want, str) else want == size
            for size, want in zip(shape, self.shape, strict=True)
        )


@dataclass
class Guards:
    """The conditions under which a program stands for the module; build with :meth:`of`."""

    spec: pytree.TreeSpec
    keywords: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    grad: bool
    autocast: tuple[bool, Any]
    slots: tuple[tuple[dict[str, Any], str], ...]
    slot_names: tuple[str, ...]
    values: tuple[Any, ...]
    held_slots: tuple[tuple[dict[str, Any], str], ...]
    held_names: tuple[str, ...]
    held: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]
    pointers: list[int]
    flat: bool
    hooks: tuple[dict[int, Any], ...]
    hooked: list[dict[int, Any]]
    outside: Outside
    streams: tuple[Any, ...]
    sized: tuple[dict[str, Any], ...]
    counts: tuple[int, ...]

    @staticmethod
    def of(
        module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], dynamic_shapes: Any = None
    ) -> Guards:
        """Note the state of a module, of the interpreter and of the arguments at capture."""
        read = reach(vars(module).get("forward", module))
        parts = {id(part): part for part in (module, *read.modules)}.values()
        options = [*read.plain, *(each for part in parts for each in attributes(part))]
        tensors = [*read.held, *(each for part in parts for each in held_by(part))]
        sizes = {id(each): each for part in parts for each in sized(part)}.values()
        leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
        names = argument_names(module.forward, args, kwargs)
        _, specs = shape_specs(module.forward, tuple(args), kwargs, dynamic_shapes)
        held = tuple(slots[key] for _, slots, key in tensors)
        every = {id(each): each for each in (*held, *read.tensors)}.values()
        memory = tuple(
            each
            for each in every
            if type(each) in (torch.Tensor, nn.Parameter) and each.layout is torch.strided
        )
        hooks = layer_hooks(module)
        return Guards(
            spec=spec,
            keywords=tuple(kwargs),
            leaves=tuple(map(_leaf, names, leaves, specs)),
            grad=torch.is_grad_enabled(),
            autocast=_autocast(),
            slots=tuple((slots, key) for _, slots, key in options),
            slot_names=tuple(name for name, _, _ in options),
            values=tuple(slots[key] for _, slots, key in options),
            held_slots=tuple((slots, key) for _, slots, key in tensors),
            held_names=tuple(name for name, _, _ in tensors),
            held=held,
            tensors=memory,
            pointers=[each.data_ptr() for each in memory],
            flat=not kwargs and all(isinstance(arg, torch.Tensor) for arg in args),
            hooks=hooks,
            hooked=[dict(each) for each in hooks] if any(hooks) else [],
            outside=read.outside(),
            streams=tuple(read.streams),
            sized=tuple(sizes),
            counts=tuple(map(len, sizes)),
        )

    def opened(self, shapes: Mapping[int, Sequence[Any]]) -> Guards:
        """Return guards that accept other sizes, where the trace left them open.

        Args:
            shapes: by leaf, each dim as a number or as an expression of symbols; what relates one
                to the other is not checked here (:meth:`OpenSizes.refused` does).
        """
        leaves = list(self.leaves)
        for index, shape in shapes.items():
            leaf = leaves[index]
            sizes = [
                size if isinstance(size, int) else str(size) if size.is_Symbol
                else f"{leaf.name}.{dim}"
                for dim, size in enumerate(shape)
            ]  # fmt: skip
            leaves[index] = replace(leaf, shape=tuple(sizes))
        return replace(self, leaves=tuple(leaves))

    def lying(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Guards:
        """Return guards for a program that reads the memory in which its arguments lie."""
        values = pytree.tree_leaves((tuple(args), self.ordered(kwargs)))
        leaves = [
            replace(leaf, lies=(memory_of, memory_of(value)))
            if isinstance(value, torch.Tensor)
            else leaf
            for leaf, value in zip(self.leaves, values, strict=True)
        ]
        return replace(self, leaves=tuple(leaves))

    def laid(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        viewed: Collection[int],
        free: Collection[int],
    ) -> Guards:
        """Return guards for a program whose results lie in memory as eager's do.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            viewed: leaves of which results are views: their strides are those of the results.
            free: leaves that may lie as they like.
        """
        values = pytree.tree_leaves((tuple(args), self.ordered(kwargs)))
        leaves = list(self.leaves)
        for i, value in enumerate(values):
            if isinstance(value, torch.Tensor) and i not in free and leaves[i].lies is None:
                says = strides_of if i in viewed else order_of
                leaves[i] = replace(leaves[i], lies=(says, says(value)))
        return replace(self, leaves=tuple(leaves))

    def asking(self, questions: Sequence[Question]) -> Guards:
        """Return guards that ask for some settings of the process, too."""
        return replace(self, outside=self.outside.asking(questions))

    def fixes_strides(self) -> bool:
        """True where numbers of strides are part of what is checked."""
        return any(
            leaf.lies and leaf.lies[1] and leaf.lies[0] is strides_of for leaf in self.leaves
        )

    def of_ranks(self) -> Guards:
        """Return the same guards for a mesh, whose ranks may hold arguments in parts."""
        return replace(self, leaves=tuple(replace(leaf, parts=True) for leaf in self.leaves))

    def closed(self, shapes: Mapping[int, Sequence[int]]) -> Guards:
        """Return guards that accept one size only.

        Args:
            shapes: the sizes, by leaf.
        """
        leaves = [
            replace(leaf, shape=tuple(shapes[i])) if i in shapes else leaf
            for i, leaf in enumerate(self.leaves)
        ]
        return replace(self, leaves=tuple(leaves))

    def exchanged(self, replaced: Mapping[int, torch.Tensor]) -> Guards:
        """Return guards for a module that holds other tensors in the places of some.

        Args:
            replaced: by the identity of a tensor, what stands for it.
        """
        held = tuple(replaced.get(id(each), each) for each in self.held)
        memory = tuple(replaced.get(id(each), each) for each in self.tensors)
        pointers = [each.data_ptr() for each in memory]
        return replace(self, held=held, tensors=memory, pointers=pointers)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> str | None:
        """Return None where the program may run, else the first reason why not."""
        if torch.is_grad_enabled() is not self.grad:
            return f"gradients are {_on(not self.grad)}, compiled with them {_on(self.grad)}"
        if _autocast() != self.autocast:
            return f"autocast is {_autocast()}, compiled with {self.autocast}"
        if not same(self.values, tuple(starmap(dict.get, self.slots))):
            return self._attribute()
        if not all(map(is_, starmap(dict.get, self.held_slots), self.held)):
            return self._tensor()
        if tuple(map(len, self.sized)) != self.counts:
            return "a module has more attributes, tensors or layers than at compile time, or fewer"
        # `parameter.data = other` keeps the object and changes its memory.
        if [each.data_ptr() for each in self.tensors] != self.pointers:
            return self._memory()
        if (any(self.hooks) or self.hooked) and [*self.hooks] != self.hooked:
            return "layers have other hooks than at compile time"
        if self.outside and (reason := self.outside.change()) is not None:
            return reason
        return self._arguments(args, kwargs or {})

    def changed(self) -> str:
        """Say what of a module's state, of globals or collections is another now, if anything is.

        While a module is traced, fake tensors stand for what it holds: those are not looked at.
        """
        if not same(self.values, tuple(starmap(dict.get, self.slots))):
            return self._attribute()
        if tuple(map(len, self.sized)) != self.counts:
            return "an attribute was added or deleted"
        return self.outside.change() or ""

    def owned(self) -> list[tuple[str, Any]]:
        """Return the parameters, buffers and layers of modules as they are now, with their names.

        What a hook of a layer of torch's computes for each call, such as a normalised weight, is an
        attribute like others, and not among them.
        """
        return [
            (name, slots.get(key))
            for name, (slots, key) in zip(self.held_names, self.held_slots, strict=True)
            if "_buffers" not in slots
        ]

    def restore(self) -> None:
        """Undo what a trace has done to modules, globals and collections."""
        slots = (*self.slots, *self.held_slots)
        for (names, key), value in zip(slots, (*self.values, *self.held), strict=True):
            if names.get(key) is not value:
                names[key] = value
        self.outside.restore()

    def quick(self) -> Quick | None:
        """Return quick checks of positional arguments, None where they are not all plain tensors.

        What they accept, :meth:`check` accepts; they may refuse more (subclasses, sizes left open,
        autocast, gradients recorded while the module holds tensors).
        """
        fixed = all(isinstance(size, int) for leaf in self.leaves for size in leaf.shape)
        if not self.flat or not fixed or (self.grad and self.tensors) or self.autocast[0]:
            return None
        if self.hooked:
            return None
        if any(
            leaf.device != torch.device("cpu") or (leaf.lies and leaf.lies[1])
            for leaf in self.leaves
        ):
            return None
        outside = self.outside.holds if self.outside else None
        slots = (self.slots, self.values, self.held_slots, self.held, self.tensors, self.pointers,
                 self.hooks, outside, self.sized, self.counts)  # fmt: skip
        sizes = [torch.Size([n for n in x.shape if isinstance(n, int)]) for x in self.leaves]
        wanted = [(n, x.dtype, x.requires_grad) for n, x in zip(sizes, self.leaves, strict=True)]
        guarded = self.held or self.slots or outside or self.tensors or self.sized
        holds = holding(*slots) if guarded else None
        return Quick(len(wanted), self.grad, accepting(wanted), holds)

    def resized(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, int, int, int] | None:
        """Return the first leaf with other sizes: its name, the dim, the size then and now."""
        values = pytree.tree_leaves((tuple(args), self.ordered(kwargs)))
        if len(values) != len(self.leaves):
            return None
        for leaf, value in zip(self.leaves, values, strict=True):
            if not isinstance(value, torch.Tensor) or len(value.shape) != len(leaf.shape):
                continue
            for dim, (was, now) in enumerate(zip(leaf.shape, value.shape, strict=True)):
                if isinstance(was, int) and was != now:
                    return leaf.name, dim, was, now
        return None

    def ordered(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order of capture."""
        if tuple(kwargs) == self.keywords or set(kwargs) != set(self.keywords):
            return dict(kwargs)
        return {name: kwargs[name] for name in self.keywords}

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        values: Sequence[Any] = args
        # Tensors alone need no flattening, which costs more than all the rest.
        if not (self.flat and not kwargs and len(args) == len(self.leaves)):
            values, spec = pytree.tree_flatten((tuple(args), self.ordered(kwargs)))
            if spec != self.spec:
                return f"the arguments have structure {spec}, compiled for {self.spec}"
        sizes: dict[str, int] = {}
        for leaf, value in zip(self.leaves, values, strict=True):
            if (reason := leaf.reason(value, sizes)) is not None:
                return reason
        return None

    def _attribute(self) -> str:
        for name, (slots, key), old in zip(self.slot_names, self.slots, self.values, strict=True):
            if not same((old,), (slots.get(key),)):
                return f"'{name}' is {slots.get(key)!r}, compiled for {old!r}"
        return "an attribute of the module changed"

    def _memory(self) -> str:
        moved = (t for t, at in zip(self.tensors, self.pointers, strict=True) if t.data_ptr() != at)
        tensor = next(moved, None)
        places = [n for n, held in zip(self.held_names, self.held, strict=True) if held is tensor]
        return f"'{(places or ['a tensor'])[0]}' was given other memory since it was compiled"

    def _tensor(self) -> str:
        for name, (slots, key), old in zip(
            self.held_names, self.held_slots, self.held, strict=True
        ):
            if slots.get(key) is not old:
                what = "layer" if isinstance(old, nn.Module) else "tensor"
                return f"'{name}' is another {what} than at compile time"
        return "a parameter, buffer or layer is another than at compile time"


def strides_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's strides; nothing where it lies row by row."""
    if tensor.layout is not torch.strided:
        return (tensor.layout,)
    return () if tensor.is_contiguous() else tensor.stride()


def order_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what of strides eager's results have too; nothing where dims lie in their own order.

    It is the order in which dims lie, and which have no memory of their own (expand).
    """
    strides = strides_of(tensor)
    if not strides or tensor.layout is not torch.strided:
        return strides
    dims = [dim for dim, size in enumerate(tensor.shape) if size != 1]
    order = sorted(dims, key=lambda dim: (-strides[dim], dim))
    empty = [dim for dim in dims if strides[dim] == 0]
    return () if order == dims and not empty else (*order, None, *empty)


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what of the memory around it a tensor's numbers are."""
    return tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()


def _leaf(name: str, value: Any, spec: Any) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(name, value=value)
    shape: list[int | str] = list(value.shape)
    for index, dim in dims_of(spec):
        if dim is not None and not isinstance(dim, int):
            # A dim without a name varies by itself.
            shape[index] = getattr(dim, "__name__", None) or f"{name}.{index}"
    return Leaf(name, tuple(shape), value.dtype, value.device, value.requires_grad)


def _autocast() -> tuple[bool, Any]:
    if not torch.is_autocast_enabled("cpu"):
        return False, None
    return True, torch.get_autocast_dtype("cpu")


def _on(flag: bool) -> str:
    return "on" if flag else "off"
