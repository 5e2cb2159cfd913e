"""A session: a model that is compiled once for each kind of shapes it meets, and run.

Where every size is a number and every value a tensor, the model goes through the pipeline and its
kernels run. Where the values themselves decide a size, a branch or a trip, it becomes a host
program whose regions are compiled (:mod:`irc.onnx.host_model`), as ``irc compile`` makes one. What
cannot be that either, the interpreter of dynamic programs runs. `InferenceSession.versions` says
which it was, `InferenceSession.report` why.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from irc.errors import IrcError, did_you_mean
from irc.frontends.onnx.importer import Importer
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source, read_model
from irc.interpret.dynamic import is_static
from irc.onnx.arrays import Intake
from irc.onnx.boundary import shape_of, specialised, with_numbers_for
from irc.onnx.deciding import Deciding, candidates, check_model, deciding, with_values
from irc.onnx.described import Described
from irc.onnx.host_model import HostModels
from irc.onnx.open_model import OpenModels, Report, interpreted
from irc.onnx.options import RunOptions, SessionOptions
from irc.program import Program
from irc.runtime.array_call import array_call
from irc.runtime.host import HostExecutor

MAX_VERSIONS = 64
"""Kinds of shapes that a session keeps ready; the one used longest ago is dropped."""
MAX_VALUES = 16
"""Values of inputs that decide what a model is, for which a session keeps it compiled."""


@dataclass(frozen=True)
class Version:
    """The model for one kind of shapes.

    Attributes:
        call: runs it on the inputs in order.
        compiled: whether kernels run, alone or in regions; else the interpreter does.
        library_nodes: nodes that run as they are, for want of a flow form.
        sizes: the shapes it is for, by input.
        opened: whether it shares its import with those of other shapes.
        regions: how many regions a host runs; 0 where kernels run alone.
    """

    call: Callable[[Sequence[Any]], list[Any]]
    compiled: bool
    library_nodes: int
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    opened: bool = False
    regions: int = 0


class InferenceSession(Described):
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
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | Source,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        **_: Any,
    ) -> None:
        source = read_model(model)
        graph, options = source.model.graph, sess_options or SessionOptions()
        stored = {tensor.name for tensor in (*graph.initializer, *source.constants)}
        inputs = [value for value in graph.input if value.name not in stored]
        if options.sizes:
            inputs = with_numbers_for(inputs, options.sizes)
            source = with_inputs(source, inputs)
        super().__init__(source, inputs, options, providers)
        self._intake = Intake(self._inputs)
        self._produced = [value.name for value in self._outputs]
        self._versions: OrderedDict[Any, Version] = OrderedDict()
        self._lock = threading.Lock()
        self._open: OpenModels | None = None
        self._numbers_help = True
        self._hosts = HostModels(self._source, self.options.intra_op_num_threads or None)
        self._deciding: Deciding | None = None if candidates(self._inputs) else Deciding()
        self._by_value: OrderedDict[Any, InferenceSession] = OrderedDict()
        shapes = [shape_of(value.type) for value in self._inputs]
        numbers = all(s is not None and all(isinstance(d, int) for d in s) for s in shapes)
        if numbers and self._deciding is None:
            check_model(self._source, candidates(self._inputs))
        elif numbers:
            key = tuple(tuple(shape or ()) for shape in shapes)
            self._versions[key] = self._build(self._inputs, {}, None)

    @property
    def versions(self) -> list[Version]:
        """The kinds of shapes that are compiled, the one used last at the end."""
        inner = (version for each in self._by_value.values() for version in each.versions)
        return [*self._versions.values(), *inner]

    def report(self) -> Report:
        """Say which sizes any number serves, which are fixed, and why; and what runs op by op."""
        report = Report() if self._open is None else self._open.report()
        inner = [line for each in self._by_value.values() for line in each.report().hosted]
        return replace(report, hosted=tuple(dict.fromkeys([*self._hosts.lines(), *inner])))

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once.

        Args:
            output_names: which outputs; None for all, in order.
            input_feed: an array, list or None for each input, by name.
            run_options: say how to log, and change nothing.

        Returns:
            Arrays; lists for sequences; None for optionals that are empty.

        Raises:
            IrcError: ``input-mismatch``.
        """
        results = self._results(self._intake(input_feed))
        if output_names is None:
            return results
        produced = dict(zip(self._produced, results, strict=True))
        for name in output_names:
            if name not in produced:
                known = did_you_mean(name, produced)
                raise IrcError("input-mismatch", f"'{name}' is not an output", help=known)
        return [produced[name] for name in (output_names or produced)]

    def _results(self, values: Sequence[Any]) -> list[Any]:
        if self._deciding != Deciding():
            inner = self._of_values(values)
            if inner is not None:
                names = self._deciding.names if self._deciding else ()
                rest = [v for g, v in zip(self._inputs, values, strict=True) if g.name not in names]
                return inner._results(rest)
        return self._version(values).call(values)

    def _of_values(self, values: Sequence[Any]) -> InferenceSession | None:
        """Return the session for the values that decide what the model is; None where none do."""
        named = {g.name: v for g, v in zip(self._inputs, values, strict=True)}
        with self._lock:
            if self._deciding is None:
                tensors: dict[str, Any] = {
                    n: v for n, v in named.items() if isinstance(v, np.ndarray)
                }
                typed = with_inputs(self._source, specialised(self._inputs, tensors))
                self._deciding = deciding(typed, self._inputs, named)
            decisive = {name: named[name] for name in self._deciding.names}
            if not decisive:
                return None
            key = tuple(value.tobytes() for value in decisive.values())
            if key not in self._by_value:
                if len(self._by_value) >= MAX_VALUES:
                    if not self._deciding.needed:
                        return None
                    self._by_value.popitem(last=False)
                source = with_values(self._source, decisive)
                self._by_value[key] = InferenceSession(source, self.options)
            self._by_value.move_to_end(key)
            return self._by_value[key]

    def _version(self, values: Sequence[Any]) -> Version:
        tensors = [v if g.type.HasField("tensor_type") else None
                   for g, v in zip(self._inputs, values, strict=True)]  # fmt: skip
        key = tuple(None if v is None else tuple(v.shape) for v in tensors)
        with self._lock:
            if key not in self._versions:
                named = {g.name: v for g, v in zip(self._inputs, tensors, strict=True)
                         if v is not None}  # fmt: skip
                sizes = {name: tuple(value.shape) for name, value in named.items()}
                self._versions[key] = self._opened(sizes, values) or self._build(
                    specialised(self._inputs, named), sizes, values
                )
                if len(self._versions) > MAX_VERSIONS:
                    self._versions.popitem(last=False)
            self._versions.move_to_end(key)
            return self._versions[key]

    def _opened(
        self, sizes: Mapping[str, tuple[int, ...]], values: Sequence[Any]
    ) -> Version | None:
        """Return the model for some sizes from an import for all; None where there is none."""
        if any(0 in shape for shape in sizes.values()):
            return None
        if self._open is None:
            threads = self.options.intra_op_num_threads or None
            self._open = OpenModels(self._source, threads)
        model = self._open.known_for(sizes)
        if model is None and self._open.models:
            # A scan that is unrolled is for one length; as a host program it is for all.
            fewer = max(len(each.traced.places) for each in self._open.models)
            host = self._hosts.open_for(sizes, values, more_than=fewer)
            if host is not None:
                return _hosted(host, self._open.models[0].traced.library_nodes, sizes, opened=True)
        model = model or self._open.model_for(sizes)
        if model is None:
            return None
        nodes = model.traced.library_nodes
        if model.compiles:
            return Version(model.at(sizes), True, nodes, sizes, opened=True)
        if self._numbers_help:
            # With numbers for its sizes, conditions may be decided, and kernels run alone.
            # What is made so is for one kind of shapes: with the second, regions are compiled.
            self._numbers_help = False
            if (alone := self._alone(sizes)) is not None:
                return alone
        host = self._hosts.open_for(sizes, values)
        return self._alone(sizes) if host is None else _hosted(host, nodes, sizes, opened=True)

    def _alone(self, sizes: Mapping[str, tuple[int, ...]]) -> Version | None:
        """Return the model as kernels alone, for the numbers of its sizes; None where it is not."""
        empty = {name: np.empty(shape, np.bool_) for name, shape in sizes.items()}
        program, nodes = self._imported(specialised(self._inputs, empty))
        if not is_static(program.module):
            return None
        return Version(self._compiled(program), True, nodes, sizes)

    def _build(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        sizes: Mapping[str, tuple[int, ...]],
        values: Sequence[Any] | None,
    ) -> Version:
        """Return the model for numbers: compiled; its regions compiled; or interpreted."""
        program, nodes = self._imported(inputs)
        if is_static(program.module):
            return Version(self._compiled(program), True, nodes, sizes)
        host = self._hosts.fixed(with_inputs(self._source, inputs))
        if host is None or (values is not None and host.refused(values) is not None):
            return Version(interpreted(program), False, nodes, sizes)
        return _hosted(host, nodes, sizes)

    def _imported(self, inputs: Sequence[onnx.ValueInfoProto]) -> tuple[Program, int]:
        """Return the model for numbers, and how many of its nodes run as they are."""
        importer = Importer(prepare(with_inputs(self._source, inputs)), dynamic=True)
        program = importer.run()
        return program, importer.library_nodes

    def _compiled(self, program: Program) -> Callable[[Sequence[Any]], list[Any]]:
        from irc.pipeline import Options, make_plan
        from irc.runtime.executors import executor_of

        plan = make_plan(program, Options(), keep_ir=False)
        threads = self.options.intra_op_num_threads or None
        executor = executor_of(plan, program.tensors, num_threads=threads)
        return array_call(executor)


def _hosted(
    host: HostExecutor, nodes: int, sizes: Mapping[str, tuple[int, ...]], *, opened: bool = False
) -> Version:
    regions = len(host.plan.regions)
    return Version(host.run, regions > 0, nodes, sizes, opened=opened, regions=regions)


def with_inputs(source: Source, inputs: Sequence[onnx.ValueInfoProto]) -> Source:
    """Return a model with other types of its inputs; its weights are shared, not copied."""
    stored = {tensor.name for tensor in (*source.model.graph.initializer, *source.constants)}
    current = [value for value in source.model.graph.input if value.name not in stored]
    if all(a is b for a, b in zip(current, inputs, strict=True)):
        return source
    return replace(source, inputs=tuple(inputs))
