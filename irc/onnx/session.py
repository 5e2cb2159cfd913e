"""A session: a model that is compiled once for each kind of shapes it meets, and run.

Where every size is a number and every value a tensor, the model goes through the pipeline and its
kernels run; where the values themselves decide a size or a branch, the interpreter of dynamic
programs runs it. `InferenceSession.versions` says which it was.
"""

# pyright: basic
from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from irc.errors import IrcError, did_you_mean
from irc.frontends.onnx.importer import Importer
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source, read_model
from irc.interpret.dynamic import is_static, run_dynamic
from irc.onnx.boundary import shape_of, specialised, to_value, type_text
from irc.onnx.options import (
    NodeArg,
    SessionOptions,
    check_provider,
    get_available_providers,
)
from irc.program import Program
from irc.runtime.onnx_ops.values import as_item, as_tensor

MAX_VERSIONS = 16
"""Kinds of shapes that a session keeps compiled; the one used longest ago is dropped."""


@dataclass(frozen=True)
class Version:
    """The model for one kind of shapes.

    Attributes:
        call: runs it on the inputs in order.
        compiled: whether kernels run; else the interpreter does.
        library_nodes: nodes that run as they are, for want of a flow form.
        sizes: the shapes it is for, by input.
    """

    call: Callable[[Sequence[Any]], list[Any]]
    compiled: bool
    library_nodes: int
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class InferenceSession:
    """Runs one model.

    Args:
        model: a path, the bytes of a file, or a decoded model.
        sess_options: of ONNX Runtime's names; see `SessionOptions`.
        providers: names of execution providers; the CPU is the one there is.

    Raises:
        IrcError: what reading and converting raise; a model whose sizes are all numbers is
            compiled here, others when their first inputs come.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        **_: Any,
    ) -> None:
        self.options = sess_options or SessionOptions()
        self._source = read_model(model)
        graph = self._source.model.graph
        stored = {tensor.name for tensor in graph.initializer}
        self._inputs = [given for given in graph.input if given.name not in stored]
        self._outputs = list(graph.output)
        self._versions: OrderedDict[Any, Version] = OrderedDict()
        self._lock = threading.Lock()
        for name in providers or ():
            check_provider(name[0] if isinstance(name, tuple) else name)
        shapes = [shape_of(given.type) for given in self._inputs]
        if all(s is not None and all(isinstance(d, int) for d in s) for s in shapes):
            key = tuple(tuple(shape or ()) for shape in shapes)
            self._versions[key] = self._build(self._inputs, {})

    def get_inputs(self) -> list[NodeArg]:
        """Return what each call gives, in order."""
        return [_argument(given) for given in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return what each call gives back, in order."""
        return [_argument(given) for given in self._outputs]

    def get_providers(self) -> list[str]:
        """Return where the model runs."""
        return get_available_providers()

    @property
    def versions(self) -> list[Version]:
        """The kinds of shapes that are compiled, the one used last at the end."""
        return list(self._versions.values())

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], _: Any = None
    ) -> list[Any]:
        """Run once.

        Args:
            output_names: which outputs; None for all, in order.
            input_feed: an array, list or None for each input, by name.

        Returns:
            Arrays; lists for sequences; None for optionals that are empty.

        Raises:
            IrcError: ``input-mismatch``.
        """
        names = [given.name for given in self._inputs]
        for name in (*input_feed, *names):
            if name not in names or name not in input_feed:
                what = "missing" if name in names else "not an input of the model"
                raise IrcError(
                    "input-mismatch", f"input '{name}' is {what}", help=did_you_mean(name, names)
                )
        values = [to_value(input_feed[g.name], g.type, g.name) for g in self._inputs]
        results = self._version(values).call(values)
        produced = {given.name: value for given, value in zip(self._outputs, results, strict=True)}
        for name in output_names or ():
            if name not in produced:
                known = did_you_mean(name, produced)
                raise IrcError("input-mismatch", f"'{name}' is not an output", help=known)
        return [produced[name] for name in (output_names or produced)]

    def _version(self, values: Sequence[Any]) -> Version:
        tensors = [v if g.type.HasField("tensor_type") else None
                   for g, v in zip(self._inputs, values, strict=True)]  # fmt: skip
        key = tuple(None if v is None else tuple(v.shape) for v in tensors)
        with self._lock:
            if key not in self._versions:
                named = {g.name: v for g, v in zip(self._inputs, tensors, strict=True)
                         if v is not None}  # fmt: skip
                sizes = {name: tuple(value.shape) for name, value in named.items()}
                self._versions[key] = self._build(specialised(self._inputs, named), sizes)
                if len(self._versions) > MAX_VERSIONS:
                    self._versions.popitem(last=False)
            self._versions.move_to_end(key)
            return self._versions[key]

    def _build(
        self, inputs: Sequence[onnx.ValueInfoProto], sizes: Mapping[str, tuple[int, ...]]
    ) -> Version:
        importer = Importer(prepare(with_inputs(self._source, inputs)), dynamic=True)
        program = importer.run()
        if is_static(program.module):
            return Version(self._compiled(program), True, importer.library_nodes, sizes)
        return Version(interpreted(program), False, importer.library_nodes, sizes)

    def _compiled(self, program: Program) -> Callable[[Sequence[Any]], list[Any]]:
        from irc.pipeline import Options, make_plan
        from irc.runtime.executors import executor_of

        plan = make_plan(program, Options(), keep_ir=False)
        threads = self.options.intra_op_num_threads or None
        executor = executor_of(plan, program.tensors, num_threads=threads)
        return lambda values: [as_item(v) for v in executor(*(as_tensor(v) for v in values))]


def interpreted(program: Program) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that runs a program of sizes that only the run knows."""
    from irc.dialects.builder import arguments, entry
    from irc.dialects.types import TensorType

    places = [
        (role == "input", name, isinstance(value.type, TensorType))
        for role, name, value in arguments(entry(program.module))
    ]

    def call(values: Sequence[Any]) -> list[Any]:
        given = iter(values)
        bound = [
            program.tensors[name] if not fed else as_tensor(next(given)) if flow else next(given)
            for fed, name, flow in places
        ]
        return [as_item(value) for value in run_dynamic(program.module, bound)]

    return call


def with_inputs(source: Source, inputs: Sequence[onnx.ValueInfoProto]) -> Source:
    """Return a model with other types of its inputs; its weights are shared, not copied."""
    stored = {tensor.name for tensor in source.model.graph.initializer}
    given = [value for value in source.model.graph.input if value.name not in stored]
    if all(a is b for a, b in zip(given, inputs, strict=True)):
        return source
    return replace(source, inputs=tuple(inputs))


def _argument(given: onnx.ValueInfoProto) -> NodeArg:
    return NodeArg(given.name, type_text(given.type), shape_of(given.type))
