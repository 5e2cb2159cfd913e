"""Where what is compiled is written: the folder of a plan, or at a phase the file of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.dialects.text import dump
from irc.errors import IrcError, printable
from irc.logs import PROGRESS
from irc.pipeline import Options
from irc.pipeline.make import Compilation
from irc.pipeline.phases import check_phase, position
from irc.plan.load import LoadedPlan
from irc.plan.save import check_target, save_plan
from irc.program import Program
from irc.report.any_plan import PlanText
from irc.report.summary import summary
from irc.stopped import check_place, write_stopped

if TYPE_CHECKING:
    from irc.calls.open_export import OpenExport

PRINTED = "-"
"""The name of no file: a program that is not written but given back, as text."""


@dataclass(frozen=True)
class Output:
    """What is to be written of a compilation, and where.

    Attributes:
        place: the folder of the plan; at a phase the file of the program, or ``-``.
        native: kinds of processors that the plan holds machine code for.
        force: replace what is there.
        to: the phase to stop at; empty: go on to the plan.
    """

    place: str | Path
    native: str = ""
    force: bool = False
    to: str = ""

    def check(self, options: Options) -> None:
        """Refuse, before the long work, what cannot be written.

        Raises:
            IrcError: ``output-exists``, ``phase-unknown``, ``option-value``.
        """
        if not self.to:
            check_target(Path(self.place), force=self.force)
            return
        check_phase(self.to, options.passes)
        if self.native:
            raise IrcError(
                "option-value",
                f"'{self.native}' names processors for a plan, and '{self.to}' is before there is"
                " one",
                help="leave --native out here, and give it where you go on --from the phase",
            )
        if self.place != PRINTED:
            check_place(Path(self.place), force=self.force)

    def refuse_phase(self, what: str, instead: str) -> None:
        """Refuse to stop at a phase of what is no single program.

        Raises:
            IrcError: ``option-value``.
        """
        if self.to:
            raise IrcError(
                "option-value",
                f"'{self.to}' is a phase of one program, and {what}",
                help=instead,
            )


def finish(compilation: Compilation, output: Output) -> str:
    """Go on as far as is asked, and write what there is then.

    Returns:
        A summary; of a program that is not written its text.

    Raises:
        IrcError: what the passes raise; ``phase-unknown``; ``option-value`` for a phase that has
            passed; what writing raises.
    """
    program, options = compilation.program, compilation.options
    if output.to:
        return _stop(compilation, output)
    plan = compilation.plan()
    if options.training is None:
        return save(plan, program, options, output)
    PROGRESS.info("files")
    save_plan(output.place, plan, tensors=program.tensors, force=output.force)
    return PlanText(summary(plan, options.cluster, program), output.place)


def _stop(compilation: Compilation, output: Output) -> str:
    lowering, program = compilation.lowering, compilation.program
    _refuse_open(program, output)
    until = position(output.to, lowering.passes)
    if until < lowering.done:
        raise IrcError(
            "option-value",
            f"the program is behind '{output.to}' already",
            because=f"{lowering.done} passes have run, and '{output.to}' is behind {until}",
            help="name a later phase: irc list passes has them in order",
        )
    compilation.run(until)
    if output.place == PRINTED:
        return dump(program.module).rstrip("\n")
    PROGRESS.info("files")
    paths = write_stopped(compilation, Path(output.place), force=output.force)
    passes = lowering.passes
    names = [each.name for each in (*passes.training, *passes.stage, *passes.function)]
    rows = [
        ("program", program.source),
        ("phase", f"{output.to}: {until} of {len(names)} passes have run"),
        ("left", ", ".join(names[until:]) or "none"),
        ("files", ", ".join(map(str, paths))),
        ("go on", f"irc compile {output.place} --from {output.to} -o PLAN"),
    ]
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _refuse_open(program: Program, output: Output) -> None:
    sizes = [
        printable(f"{size}")
        for _, _, value in arguments(entry(program.module))
        for size in tensor(value).shape
        if not isinstance(size, int)
    ]
    if sizes:
        output.refuse_phase(
            f"with open sizes ({', '.join(dict.fromkeys(sizes))}) there is one for each of several"
            " examples",
            "give each a number: --size NAME=N",
        )


def write(program: Program, options: Options, output: Output) -> str:
    """Compile a program, and write it."""
    return finish(Compilation(program, options), output)


def save(
    compiled: LoadedPlan | OpenExport, program: Program, options: Options, output: Output
) -> PlanText:
    """Write a plan of inference into its folder, with its native program."""
    from irc.calls.open_export import OpenExport
    from irc.dialects.task import KernelOp
    from irc.native import Native

    native = Native.parse(output.native)
    PROGRESS.info("machine code and files")
    if isinstance(compiled, OpenExport):
        plan = compiled.plan
        native.compile(plan, compiled.kernels, program.tensors, compiled.low)
    else:
        plan = compiled
        kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
        native.compile(plan, kernels, program.tensors)
    place = output.place
    save_plan(place, plan, tensors=program.tensors, force=output.force, also=native.write)
    return PlanText(f"{summary(plan, options.cluster, program)}\n{native.summary()}", place)


def write_step(program: Program, options: Options, files: Mapping[str, str], output: Output) -> str:
    """Compile a step of training of one program, and write it with its recipe and model."""
    return finish(Compilation(program, options, files), output)
