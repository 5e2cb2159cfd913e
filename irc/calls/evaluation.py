"""Calling a module whose parameters the ranks of a training step hold in parts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from irc.calls.constants import name_constants
from irc.calls.noted import Watch, line_of, note_graph, noted_plan
from irc.calls.recompiles import MAX_VERSIONS
from irc.calls.tracing import TRACING
from irc.calls.version import Version
from irc.constraints.pins import pin
from irc.constraints.steps import pins_on
from irc.dialects.builder import arguments, entry
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.frontends.torch.guards import Guards
from irc.frontends.torch.in_place import in_place
from irc.frontends.torch.structure import argument_names
from irc.pipeline import Options
from irc.runtime.call_agreement import Call
from irc.runtime.module_tensors import shaped
from irc.runtime.parts import Parts
from irc.runtime.ranks import WEIGHTS, Ranks
from irc.runtime.same_program import marks_of


class Evaluation:
    """The forward pass of a module in evaluation mode, on the parts that ranks hold.

    Args:
        module: on the meta device, what of it ranks hold.
        options: of the pipeline, with a mesh.
        parts: returns what this rank holds.
    """

    def __init__(self, module: nn.Module, options: Options, parts: Callable[[], Parts]) -> None:
        # One sample is called as well as many.
        self._module, self._options, self._parts = module, replace(options, samples=()), parts
        self._ranks = Ranks.of(options.mesh)
        self._versions: list[Version] = []

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call, the same on every rank; results are whole on each."""
        version = next((v for v in self._versions if v.mismatch(args, kwargs) is None), None)
        ready = -1 if version is None else self._versions.index(version)
        self._ranks.agree(
            Call("an evaluation", args, kwargs, names=self._names(args, kwargs)), ready
        )
        if version is None:
            if len(self._versions) == MAX_VERSIONS:
                raise IrcError(
                    "input-mismatch",
                    f"this would be version {MAX_VERSIONS + 1} of one module on a mesh",
                    help="pad batches to a few sizes",
                )
            version = self._add(args, kwargs)
            self._versions.append(version)
        return version(args, kwargs)

    def _names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], list[str]]:
        return lambda: argument_names(self._module.forward, args, dict(sorted(kwargs.items())))

    def _add(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Version:
        parts, module = self._parts(), self._module
        with TRACING, shaped(module):
            captured = in_place(capture(module, args, dict(kwargs), hooks=False))
        name_constants(captured.program)
        program = captured.program
        held = [n for n in program.tensors if n in parts.local and parts.roles[n] in WEIGHTS]
        placed = parts.placements()
        names = [name for _, name, _ in arguments(entry(program.module))]
        options = replace(self._options, pins=pins_on(self._options.pins, names))
        pin(program.module, {name: placed[name] for name in held})
        executor = self._ranks.executor(
            lambda: noted_plan(program, options, line_of(module.forward), keep_ir=True),
            program.tensors,
            marks_of(program.module, options),
            parts={name: parts.local[name] for name in held},
        )
        record = self._options.record
        if record is not None and not record.knows_graph:  # another rank has planned it
            note_graph(Watch(), program.source, executor.plan, (), self._options)
        guards = Guards.of(module, args, dict(kwargs))
        return Version(replace(captured, guards=guards), executor)


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """Let a module be in evaluation mode, and each of its layers as it was afterwards."""
    flags = [(layer, layer.training) for layer in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for layer, flag in flags:
            layer.training = flag
