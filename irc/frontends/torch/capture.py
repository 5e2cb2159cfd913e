"""Capture: a PyTorch module or function, called once with examples, becomes a program."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr

from irc.dialects.builder import arguments as named_arguments
from irc.dialects.builder import entry
from irc.errors import IrcError
from irc.frontends.torch.annotations import ANNOTATION
from irc.frontends.torch.assemble import Argument, Assembly, Result, assemble
from irc.frontends.torch.caches import (
    Part,
    Watch,
    leaves_in_caches,
    parts_of,
    put_together,
    spans_of,
)
from irc.frontends.torch.detached_writes import (
    data_as_detached,
    refuse_detach_in_place,
    refuse_other_data,
)
from irc.frontends.torch.eager_refusals import of_other_dtype, refused
from irc.frontends.torch.examples import bound, check_held, check_leaves, positional
from irc.frontends.torch.export import LOOKING, as_module, export, shape_specs
from irc.frontends.torch.exported_signature import SignatureReader, named_tensors
from irc.frontends.torch.failures import explained
from irc.frontends.torch.foreign_calls import ForeignCalls, calls_foreign
from irc.frontends.torch.grad_reads import GradReads
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.hooks import refuse_backward_hooks, refuse_hook
from irc.frontends.torch.idle_dropout import idle
from irc.frontends.torch.locations import location
from irc.frontends.torch.memory_views import looks_at_memory
from irc.frontends.torch.open_sizes import (
    NumberedSizes,
    OpenSizes,
    named_dims,
    open_dims,
    open_sizes,
)
from irc.frontends.torch.outputs import Output, ResultLayout, sharing_of, with_given
from irc.frontends.torch.overlapping_writes import name_of, overlapping_write
from irc.frontends.torch.real_writes import RealWrites
from irc.frontends.torch.seeds import Seeds
from irc.frontends.torch.settings import settings_of
from irc.frontends.torch.sizes import SizeNames, named_symbols
from irc.frontends.torch.steps import without_steps
from irc.frontends.torch.streams import Streams
from irc.frontends.torch.stride_reads import (
    StrideReads,
    decided_by_strides,
    lying_as_angles,
    writes_around,
)
from irc.frontends.torch.structure import argument_names, register_known
from irc.frontends.torch.tensor_checks import TensorChecks
from irc.frontends.torch.traced_calls import TracedCalls
from irc.frontends.torch.unseen_casts import shown_to_modes, unseen_cast
from irc.frontends.torch.written_out import written_out
from irc.process_wide import deep_recursion
from irc.program import Program


@dataclass
class Captured:
    """A program and how to call it like the module that it was made from.

    Attributes:
        program: the IR and its tensors.
        guards: what the program is specialised on.
        in_spec: structure of ``(args, kwargs)``.
        tensor_leaves: which flattened leaves are the program's inputs, in order.
        out_spec: structure of the module's return value.
        outputs: where each leaf of it comes from.
        states: names of the results of role state, in order: buffers, or inputs written to.
        mutated_inputs: among these, state name -> index of the input that is copied back to.
        externs: how often each library op without flow form is called.
        input_names: of the inputs, in order.
        cached_inputs: those that are tensors of caches.
        parts: the leaves of the return value, where caches are leaves.
        parts_spec: how they make it up.
        open: the sizes that the trace left open, where it was asked to; the program is then the one
            for the example's sizes, and others come from :meth:`at`.
        is_entangled: results share memory with each other or with arguments, and writes to it are
            part of the program, which does not say so: it gives numbers alone.
        effect: what a call does besides, and the program does not: it changes an attribute, say.
        is_foreign: it calls ops that torch does not ship: what they do besides is not known.
    """

    program: Program
    guards: Guards
    in_spec: pytree.TreeSpec
    tensor_leaves: tuple[int, ...]
    out_spec: pytree.TreeSpec
    outputs: tuple[Output, ...]
    states: tuple[str, ...] = ()
    mutated_inputs: dict[str, int] = field(default_factory=dict[str, int])
    externs: Counter[str] = field(default_factory=Counter[str])
    input_names: tuple[str, ...] = ()
    cached_inputs: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    parts_spec: pytree.TreeSpec | None = None
    open: OpenSizes | None = None
    is_entangled: bool = False
    effect: str = ""
    is_foreign: bool = False

    def numbered(self, values: Mapping[str, int]) -> Captured:
        """Return the same capture with numbers for the sizes of views.

        Args:
            values: a number for each symbol of :attr:`open`.
        """
        assert self.open is not None
        numbers = NumberedSizes(self.open.whole(values))
        outputs = tuple(
            each if each.view is None else replace(each, view=each.view.numbered(numbers.dim))
            for each in self.outputs
        )
        return replace(self, outputs=outputs)

    def at(self, values: Mapping[str, int]) -> Captured:
        """Return the same capture with the program for other sizes; nothing is traced.

        Args:
            values: a number for each symbol of :attr:`open`.
        """
        assert self.open is not None
        return replace(self, program=self.open.program_at(values))

    def flatten(
        self, args: Sequence[Any], kwargs: dict[str, Any] | None = None
    ) -> list[torch.Tensor]:
        """Return the program's inputs, in order."""
        # Tensors alone need no flattening, which costs more than all the rest.
        if self.guards.flat and not kwargs and len(args) == len(self.guards.leaves):
            return [args[i] for i in self.tensor_leaves]
        leaves = pytree.tree_leaves((tuple(args), self.guards.ordered(kwargs or {})))
        return [leaves[i] for i in self.tensor_leaves]

    def unflatten(self, results: Sequence[torch.Tensor]) -> Any:
        """Return what the module would return, given the program's results of role output."""
        leaves = [output.leaf(results) for output in self.outputs]
        return pytree.tree_unflatten(leaves, self.out_spec)

    def returned(
        self,
        results: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        caches: Sequence[Any] = (),
    ) -> Any:
        """Return what the module would return: with the caller's own tensors and caches.

        Args:
            results: as :meth:`unflatten` takes them.
            inputs: the inputs, in order.
            caches: those among the arguments; they are brought up to date.
        """
        leaves = [each.leaf(results, inputs) for each in self.outputs]
        assert self.parts_spec is not None
        return put_together(self.parts, self.parts_spec, leaves, caches)


@deep_recursion()
def capture(
    module_or_function: nn.Module | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    device: str = "cpu",
    outline: bool = True,
    keep_open: bool = False,
    hooks: bool = True,
    memory: bool = False,
) -> Captured:
    """Trace a module or function and return it as a program.

    Args:
        module_or_function: what to capture; neither it nor its buffers change.
        args: example positional arguments.
        kwargs: example keyword arguments.
        dynamic_shapes: per argument which dims are named sizes: ``{"x": {0: "B"}}``, with names or
            ``torch.export.Dim``; other sizes are fixed. With ``keep_open`` it may be True: all that
            the module does not fix.
        device: where the program's constants are put.
        outline: make functions of repeated layers.
        keep_open: return the program for the example's sizes, and the way to those for others.
        hooks: of the module itself are part of the program; those of its layers always are.
        memory: :meth:`Captured.returned` is to return tensors that lie in memory as eager's do:
            with their strides, and views of arguments, of what the module holds, of each other.
            The program then runs here, and refuses the numbers that eager refuses.

    Raises:
        IrcError: ``capture-failed`` or ``op-unsupported``, all causes at once; ``input-mismatch``
            where the module takes other arguments.
    """
    register_known()
    module, args, kwargs = as_module(module_or_function), positional(args), dict(kwargs or {})
    bound(module.forward, args, kwargs)
    refuse_backward_hooks(module, own=hooks)
    leaf_names = argument_names(module.forward, args, kwargs)
    check_leaves(leaf_names, args, kwargs)
    args, kwargs = _placed(module, args, kwargs)
    guards = Guards.of(module, args, kwargs, None if keep_open else dynamic_shapes)
    check_held(guards.held_names, guards.held)
    watch = Watch()
    with explained(module_or_function):
        if keep_open:
            spec, leaf_specs = open_dims(module, args, kwargs, dynamic_shapes), []
        else:
            spec, leaf_specs = shape_specs(module.forward, args, kwargs, dynamic_shapes)
        traced: list[tuple[list[Any], frozenset[str], bool]] = []

        def look(program: ExportedProgram) -> None:
            overlapping = overlapping_write(program.graph.nodes)
            if overlapping is not None and not memory:
                raise _written_at_once(overlapping)
            is_around = overlapping is not None or writes_around(program)
            traced.append((sharing_of(program), decided_by_strides(program), is_around))

        reads, writes, checks = StrideReads(), RealWrites(), TensorChecks()
        of_gradients, foreign = GradReads(), ForeignCalls()
        watched = watch.over(
            module, hooks=hooks, changed=guards.changed, held=guards.owned, reads=of_gradients
        )
        try:
            # Where results need not have eager's dtypes, such a call computes without casts.
            asks = (
                foreign.note, reads.note, writes.keep, idle, refused, checks.note, written_out,
                refuse_other_data, refuse_hook,
                of_gradients.detached_in_place, refuse_detach_in_place,
                *[unseen_cast] * memory,
            )  # fmt: skip
            with (
                TracedCalls(
                    asks,
                    (lying_as_angles, of_other_dtype),
                    read=(reads.note, data_as_detached, of_gradients.refuse),
                ),
                Seeds() as seeds,
                Streams(guards.streams) as streams,
                without_steps(),
                shown_to_modes() if memory else nullcontext(),
            ):
                exported = export(watched, args, kwargs, spec, look, LOOKING if memory else ())
        finally:
            guards.restore()
            writes.undo()
    checks.look(exported.graph_module)
    shared, perhaps, around = traced[-1]
    if reads.of_memory or looks_at_memory(exported.graph_module):
        guards = guards.lying(args, kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    tensor_leaves = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    reader = SignatureReader(exported, module, device)
    arguments = reader.arguments([leaf_names[i] for i in tensor_leaves])
    inputs = [node for node, argument in arguments.items() if argument.role == "input"]
    roles = {node: argument.role for node, argument in arguments.items()}
    guards = guards.asking(settings_of(exported.graph_module, roles))
    outputs, results = reader.results()
    spans = spans_of((args, kwargs), tensor_leaves)
    cached = tuple(i for own, _ in spans for i in own if i is not None)
    is_entangled = False
    if memory:
        layout = ResultLayout(
            arguments, outputs, results, reader.tensors, leaves_in_caches(reader.example())
        )
        is_entangled = around or layout.is_entangled(shared)
        outputs, results = layout.run()
        decide = layout.viewed | {i for i, node in enumerate(inputs) if node.name in perhaps}
        viewed = {*(tensor_leaves if reads.of_strides else (tensor_leaves[i] for i in decide))}
        guards = guards.laid(args, kwargs, viewed, {tensor_leaves[i] for i in cached})
        is_entangled |= keep_open and guards.fixes_strides()

    def assembled(names: SizeNames) -> Assembly:
        source = _source(module_or_function)
        graph = exported.graph_module
        return assemble(graph, arguments, results, names, source=source, outline=outline)

    opened_sizes = None
    if keep_open:
        named_inputs = [(arguments[node].name, node.meta["val"]) for node in inputs]
        opened_sizes = open_sizes(
            exported.graph_module,
            named_inputs,
            lambda values: assembled(NumberedSizes(values)).program,
        )
        for places in named_dims(module, args, kwargs, dynamic_shapes).values():
            opened_sizes.tie([[str(opened_sizes.shapes[i][d]) for i, d in places]])
        values = opened_sizes.read([tuple(leaves[i].shape) for i in tensor_leaves])
        guards = guards.opened(dict(zip(tensor_leaves, opened_sizes.shapes, strict=True)))
        assembly = assembled(NumberedSizes(opened_sizes.whole(values)))
    else:
        fakes = [node.meta["val"] for node in inputs]
        sizes = named_symbols(fakes, [leaf_specs[i] for i in tensor_leaves])
        assembly = assembled(SizeNames(sizes))
    _note_annotations(assembly.program.module, module, reader.first)
    named = [(node, arguments[node].name) for node in inputs]
    if not memory:
        outputs = with_given(outputs, results, named)
    own = [output.input_index if output.view is None else None for output in outputs]
    parts = parts_of(reader.example(), watch.kept, spans, own)
    captured = _captured(assembly, guards, exported, tensor_leaves, outputs, results, arguments)
    return replace(
        captured,
        input_names=tuple(captured.program.input_names),
        cached_inputs=cached,
        parts=parts[0],
        parts_spec=parts[1],
        open=opened_sizes,
        is_entangled=is_entangled,
        effect=watch.effect or seeds.effect or streams.effect or checks.effect,
        is_foreign=foreign.any or calls_foreign(exported.graph_module),
    )


def _written_at_once(node: Node) -> IrcError:
    return IrcError(
        "capture-failed",
        f"'{name_of(node)}' writes to memory that is several elements of what it takes",
        location(node),
        because="the tensor that it writes to is expanded, or what it reads lies there too",
        help="write to the tensor that was expanded, or read or write a copy: x.clone()",
    )


def _captured(
    assembly: Assembly,
    guards: Guards,
    exported: ExportedProgram,
    tensor_leaves: tuple[int, ...],
    outputs: list[Output],
    results: list[tuple[Any, Result]],
    arguments: dict[Node, Argument],
) -> Captured:
    spec = exported.call_spec
    states = tuple(result.name for _, result in results if result.role == "state")
    inputs = [a.name for a in arguments.values() if a.role == "input"]
    mutated = {name: inputs.index(name) for name in states if name in inputs}
    assert spec.in_spec is not None and spec.out_spec is not None
    return Captured(
        assembly.program,
        guards,
        spec.in_spec,
        tensor_leaves,
        spec.out_spec,
        tuple(outputs),
        states,
        mutated,
        assembly.externs,
    )


def _note_annotations(program: ModuleOp, module: nn.Module, names: dict[int, str]) -> None:
    """Pin the parameters and buffers that `irc.place` was called on."""
    held = (*named_tensors(module.named_parameters), *named_tensors(module.named_buffers))
    asked = {
        names[id(value)]: StringAttr(getattr(value, ANNOTATION))
        for _, value in held
        if hasattr(value, ANNOTATION)
    }
    known = {name for _, name, _ in named_arguments(entry(program))}
    pins = {name: pin for name, pin in asked.items() if name in known}
    if pins:
        program.attributes["irc.pins"] = DictionaryAttr(dict(pins))


def _placed(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move examples to the meta device for a module that is on it."""
    held = next((p for p in (*module.parameters(), *module.buffers())), None)
    if held is None or held.device.type != "meta":
        return args, kwargs
    return pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs))


def _source(target: nn.Module | Callable[..., Any]) -> str:
    named = type(target) if isinstance(target, nn.Module) else target
    try:
        file = inspect.getsourcefile(named)
    except TypeError:
        file = None
    name = getattr(named, "__name__", type(target).__name__)
    return f"{file.rpartition('/')[2]}:{name}" if file else name
