"""The signature of an exported program: what its arguments and its results are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.assemble import Argument, Result
from irc.frontends.torch.locations import location
from irc.frontends.torch.outputs import Output
from irc.frontends.torch.structure import output_names

ROLES = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


class SignatureReader:
    """Reads the signature of an exported program."""

    def __init__(self, exported: ExportedProgram, module: nn.Module, device: str) -> None:
        self.exported = exported
        self.module = module
        self.device = device
        self.nodes = {node.name: node for node in exported.graph.nodes}
        first: dict[int, str] = {}
        for name, value in (
            *named_tensors(module.named_parameters),
            *named_tensors(module.named_buffers),
        ):
            first.setdefault(id(value), name)
        self.first = first
        self.input_names: dict[str, str] = {}
        self.tensors = dict(
            (*named_tensors(module.named_parameters), *named_tensors(module.named_buffers))
        )

    def arguments(self, input_names: list[str]) -> dict[Node, Argument]:
        """Say what each placeholder that is a tensor means; tied weights share the first name."""
        names = iter(input_names)
        arguments: dict[Node, Argument] = {}
        for spec in self.exported.graph_signature.input_specs:
            if spec.kind is InputKind.TOKEN:
                arguments[self.nodes[spec.arg.name]] = Argument(
                    "constant", spec.arg.name, torch.empty(0)
                )
            if not isinstance(spec.arg, TensorArgument):
                continue
            node = self.nodes[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                self.input_names[spec.arg.name] = name = next(names)
                arguments[node] = Argument("input", name)
            else:
                arguments[node] = self._held(ROLES[spec.kind], str(spec.target))
        return arguments

    def _held(self, role: str, target: str) -> Argument:
        value = self.tensors.get(target)
        if value is None:
            value = self.exported.constants.get(target, self.exported.state_dict.get(target))
            name = target
        else:
            name = self.first[id(value)]
        assert isinstance(value, torch.Tensor), target
        return Argument(role, name, value.detach())

    def results(self) -> tuple[list[Output], list[tuple[Any, Result]]]:
        """Return the leaves of the return value; and the entry's results, outputs, then states."""
        leaves: list[Output] = []
        values: list[tuple[Any, bool]] = []
        states: list[tuple[Any, Result]] = []
        tokens: list[tuple[Any, Result]] = []
        for spec, value in zip(
            self.exported.graph_signature.output_specs, self._returned(), strict=True
        ):
            if spec.kind is OutputKind.USER_OUTPUT:
                self._output(spec.arg, value, leaves, values)
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                states.append((value, Result("state", self._first_name(str(spec.target)))))
            elif spec.kind is OutputKind.PARAMETER_MUTATION:
                raise _written_parameter(self._first_name(str(spec.target)), value)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                name = self.input_names[str(spec.target)]
                self._check_size(self.nodes[str(spec.target)], value, name)
                states.append((value, Result("state", name)))
            elif spec.kind is OutputKind.TOKEN:
                # No leaf takes it; as a result it keeps what has an effect in the program.
                tokens.append((value, Result("output", spec.arg.name)))
        names = [
            n
            for n, leaf in zip(output_names(self.example()), leaves, strict=True)
            if leaf.position is not None
        ]
        outputs = [
            (value, Result("output", name)) for (value, _), name in zip(values, names, strict=True)
        ]
        return leaves, [*outputs, *tokens, *states]

    def _first_name(self, target: str) -> str:
        """Return the first name of what the module holds by that one."""
        held = self.tensors.get(target)
        return target if held is None else self.first[id(held)]

    def _check_size(self, argument: Node, written: Node, name: str) -> None:
        """Refuse an argument that the module leaves with another size, as ``out=`` may.

        Raises:
            IrcError: ``capture-failed``.
        """
        before, after = argument.meta["val"].shape, written.meta["val"].shape
        if len(before) == len(after) and all(
            statically_known_true(a == b) for a, b in zip(before, after, strict=True)
        ):
            return
        raise IrcError(
            "capture-failed",
            f"the argument '{name}' of sizes {tuple(before)} is resized to {tuple(after)}",
            location(written),
            because="a program writes into the memory of its arguments, which has their sizes",
            help="pass a tensor of the result's sizes as out=",
        )

    def example(self) -> Any:
        """Return a value of the structure that the module returns."""
        spec = self.exported.call_spec.out_spec
        assert spec is not None
        # Caches flatten by what is a tensor, so the leaves have to be tensors.
        return pytree.tree_unflatten([torch.empty(0)] * spec.num_leaves, spec)

    def _returned(self) -> list[Any]:
        (output,) = (node for node in self.exported.graph.nodes if node.op == "output")
        return list(output.args[0])

    def _output(
        self, arg: Any, value: Any, leaves: list[Output], values: list[tuple[Any, bool]]
    ) -> None:
        if not isinstance(value, Node):
            leaves.append(Output(None, constant=getattr(arg, "value", value)))
            return
        number = not isinstance(arg, TensorArgument)
        leaves.append(Output(len(values), number=number))
        values.append((value, number))


def named_tensors(walk: Callable[..., Any]) -> list[tuple[str, torch.Tensor]]:
    """Return what a module holds, by all names of each."""
    return list(walk(remove_duplicate=False))


def _written_parameter(name: str, value: Node) -> IrcError:
    return IrcError(
        "capture-failed",
        f"the parameter '{name}' is written to in a call",
        location(value),
        because="a program takes parameters for constants, and prepares others of them once",
        help="register what a call changes as a buffer, or write to it between calls",
    )
