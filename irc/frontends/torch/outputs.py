"""What a module returns, leaf by leaf: results of the program, and what somebody holds already."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from irc.frontends.torch.assemble import Argument, Result
from irc.frontends.torch.result_memory import (
    View,
    may_own,
    origin,
    owner,
    placed,
    return_too,
    sharing,
    traced_sharing,
    view_of,
)


@dataclass(frozen=True)
class Output:
    """One leaf of what the module returns: a result of the program, or a constant.

    Attributes:
        position: index among the results of role output; None for what is no result.
        constant: the value of a leaf that does not depend on tensors.
        number: true where the module returns a Python number, not a tensor.
        input_index: index of the input that the module gives back, written to or not: the caller's
            own tensor.
        held: the parameter or buffer that the module gives back.
        view: what part of the memory of that, or of the result, it is, if not that itself.
    """

    position: int | None
    constant: Any = None
    number: bool = False
    input_index: int | None = None
    held: torch.Tensor | None = None
    view: View | None = None

    def leaf(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] = ()) -> Any:
        """Return the leaf, of the program's results of role output and, if given, of its inputs."""
        if self.input_index is not None and inputs:
            return self._shown(inputs[self.input_index])
        if self.held is not None:
            return self._shown(self.held)
        if self.position is None:
            return self.constant
        result = results[self.position]
        return result.item() if self.number else self._shown(result)

    def _shown(self, memory: torch.Tensor) -> torch.Tensor:
        return memory if self.view is None else self.view.of(memory)


def with_given(
    outputs: list[Output], results: list[tuple[Any, Result]], inputs: list[tuple[Node, str]]
) -> list[Output]:
    """Mark the outputs that are inputs: as they came, or one node is output and new value."""
    named = {result.name: value for value, result in results if result.role == "state"}
    own = {named.get(name, node): i for i, (node, name) in enumerate(inputs)}
    return [
        output
        if output.position is None or output.number
        else replace(output, input_index=own.get(results[output.position][0]))
        for output in outputs
    ]


def sharing_of(traced: ExportedProgram) -> list[Any]:
    """Say of each leaf that a trace returns whose memory it lies in; writes are still part of it.

    Args:
        traced: as torch gives it.
    """
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    specs = traced.graph_signature.output_specs
    own = [
        value
        for spec, value in zip(specs, output.args[0], strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    return traced_sharing(own, traced.graph)


class ResultLayout:
    """Lets results lie in memory as eager's do.

    Args:
        arguments: what the placeholders of the graph mean.
        outputs: the leaves of the return value.
        results: of the program: outputs, then others.
        held: parameters and buffers by name.
        plain: leaves that stay results of their own, row by row: those of caches.

    Attributes:
        viewed: the inputs of whose strides it depends whether a result, or what is written to, is
            in their memory; known after :meth:`run`.
    """

    def __init__(
        self,
        arguments: Mapping[Node, Argument],
        outputs: Sequence[Output],
        results: Sequence[tuple[Any, Result]],
        held: Mapping[str, torch.Tensor],
        plain: Collection[int],
    ) -> None:
        self._outputs, self._results = outputs, results
        self._held, self._plain = held, plain
        inputs = [node for node, argument in arguments.items() if argument.role == "input"]
        self._input = {node: i for i, node in enumerate(inputs)}
        self._arguments = arguments
        by_name: dict[str, Node] = {}
        for node, argument in arguments.items():
            by_name.setdefault(argument.name, node)
        states = [(value, result.name) for value, result in results if result.role == "state"]
        self._written = {value: by_name[name] for value, name in states if name in by_name}
        self.viewed = {self._input[x] for x in self._written.values() if x in self._input}

    def _node(self, index: int) -> Node | None:
        """Return the node of a leaf that is a tensor of the program."""
        output = self._outputs[index]
        if output.position is None or output.number:
            return None
        value = self._results[output.position][0]
        return origin(value) if isinstance(value, Node) else None

    def is_entangled(self, traced: Sequence[Any]) -> bool:
        """True where results share memory in the trace and cannot in what was made of it.

        Args:
            traced: what :func:`sharing_of` says.
        """
        nodes = [self._node(i) for i in range(len(self._outputs))]
        written = {value: node for value, node in self._written.items() if _lie_alike(value, node)}
        own: dict[Any, Node] = {
            node: self._written[node] for node in nodes if node in self._written
        }
        now = sharing(nodes, {**written, **own})
        return any(
            now[i] != (there if isinstance(there, str) else now[there])
            for i, there in enumerate(traced)
            if there is not None and i not in self._plain
        )

    def run(self) -> tuple[list[Output], list[tuple[Any, Result]]]:
        """Return outputs and results; the graph gets nodes for results that it lacks."""
        nodes: list[Any] = [self._node(i) for i in range(len(self._outputs))]
        known = {i: self._known(node) for i, node in enumerate(nodes) if node is not None}
        laid = [i for i, each in known.items() if each is None and i not in self._plain]
        places = dict(zip(laid, placed([nodes[i] for i in laid]), strict=True))
        outputs: list[Output] = []
        wanted: dict[Any, Result] = {}
        for i, output in enumerate(self._outputs):
            if output.position is None:
                outputs.append(output)
                continue
            value, result = self._results[output.position]
            # Other strides of such an argument give a copy for a view, or the other way round.
            if isinstance(value, Node) and (source := may_own(value)) in self._input:
                self.viewed.add(self._input[source])
            if (known_output := known.get(i)) is not None:
                outputs.append(known_output)
                continue
            view = None
            if i in places:
                value, view = places[i].source, places[i].view
            wanted.setdefault(value, result)
            outputs.append(replace(output, position=[*wanted].index(value), view=view))
        sources = [node for node in wanted if isinstance(node, Node)]
        return_too(sources, [value for value, _ in self._results])
        rest = self._results[sum(o.position is not None for o in self._outputs) :]
        return outputs, [*wanted.items(), *rest]

    def _known(self, node: Node) -> Output | None:
        """Return an output in memory that the caller or the module holds; None for others."""
        base = owner(node)
        source = self._written.get(node) or (base if base.op == "placeholder" else None)
        if source is None and base in self._written and _lie_alike(base, self._written[base]):
            source = self._written[base]
        if source is None or source not in self._arguments:
            return None
        is_same = node is base or node in self._written
        view = None if is_same else view_of(node, base)
        if source in self._input:
            # Where it is that itself, it may be what `contiguous` gave, which leaves no trace then.
            self.viewed.add(self._input[source])
            return Output(None, input_index=self._input[source], view=view)
        argument = self._arguments[source]
        if argument.role in ("parameter", "buffer") and argument.name in self._held:
            return Output(None, held=self._held[argument.name], view=view)
        return None


def _lie_alike(value: Node, argument: Node) -> bool:
    one, other = value.meta["val"], argument.meta["val"]
    return (one.dtype, tuple(one.shape), tuple(one.stride())) == (
        other.dtype,
        tuple(other.shape),
        tuple(other.stride()),
    )
