"""What writes plans from files: an ONNX model, or a program in text form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from irc.choices import DEFAULT_SCHEDULE, names_option, refuse_pipeline
from irc.collection import collection_held
from irc.constraints.pins import Pins
from irc.constraints.steps import called_pins
from irc.errors import IrcError
from irc.pipeline import Options, make_plan
from irc.pipeline.make import Compilation
from irc.pipeline.phases import position
from irc.report.any_plan import PlanText
from irc.sharding.mesh import parse_mesh
from irc.stopped import has_facts, read_program, read_stopped
from irc.written import Output, finish, save, write

if TYPE_CHECKING:
    from irc.frontends.onnx.read import Source


@collection_held()
def compile_file(
    path: str,
    out: str,
    *,
    mesh: str | None = None,
    backend: str = "cpu",
    cluster: str | None = None,
    sizes: Mapping[str, int] | None = None,
    values: Mapping[str, float] | None = None,
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    pins: Pins = "",
    memory_bytes: int | None = None,
    force: bool = False,
    native: str = "",
    to: str = "",
) -> str:
    """Compile an ONNX file to a plan folder; see :func:`irc.export_plan`.

    Args:
        path: the model.
        out: the folder.
        mesh: axes of the mesh.
        backend: what writes the kernels.
        cluster: prices the plan.
        sizes: numbers for the model's named sizes. On one device with the backend cpu, others stay
            open: the plan serves all numbers that it was checked for.
        values: of inputs of one element that are the same in every call; the plan has no such
            inputs.
        passes: plug-in passes to run; ``no-order`` and its like leave out one of irc's own.
        rules: files of rewrite rules.
        pins: constraints, as :func:`compile` takes them.
        memory_bytes: the most that a device may hold at any moment.
        force: replace a plan in the folder.
        native: kinds of processors to hold machine code for, as :func:`irc.export_plan` takes them.
        to: where to stop, as :func:`irc.export_plan` takes it.
    """
    output = Output(out, native, force, to)
    options = Options(
        mesh=parse_mesh(mesh or ""),
        backend=backend,
        cluster=cluster or "this-host",
        passes=names_option("passes", passes),
        rules=names_option("rules", rules),
        pins=called_pins(pins),
        memory_bytes=memory_bytes,
    )
    refuse_pipeline(options.mesh, None, DEFAULT_SCHEDULE, "")
    output.check(options)
    from irc.frontends.onnx.misuse import judging
    from irc.frontends.onnx.read import read_model
    from irc.onnx.given_values import with_numbers

    source = with_numbers(read_model(path), dict(values or {}))
    with judging(source):
        return _compile_source(source, dict(sizes or {}), options, output)


def _compile_source(
    source: Source, sizes: Mapping[str, int], options: Options, output: Output
) -> str:
    from irc.frontends.onnx import load_onnx
    from irc.onnx.advice import advised

    if options.mesh.num_ranks > 1 or options.backend != "cpu" or output.to:
        try:
            program = load_onnx(source, sizes=sizes)
        except IrcError as error:
            raise advised(error, source, sizes, options, is_whole=True) from None
        return write(program, options, output)
    from irc.onnx.open_file import open_file

    try:
        opened = open_file(source, sizes, options)
        program = load_onnx(source, sizes=sizes) if opened is None else opened[1]
        plan = make_plan(program, options) if opened is None else opened[0]
    except IrcError as error:
        if not {"op-unsupported", "size-unbound"} & set(error.codes):
            raise
        try:
            text = _write_host(source, sizes, options, output)
        except IrcError as other:
            raise advised(other, source, sizes, options) from None
        if text is None:
            raise advised(error, source, sizes, options) from None
        return text
    return save(plan, program, options, output)


def _write_host(
    source: Source, sizes: Mapping[str, int], options: Options, output: Output
) -> str | None:
    """Write a file as a host program with regions; None where nothing of it is the host's.

    Raises:
        IrcError: what is refused there too.
    """
    from irc.native import NativeHostProgram
    from irc.onnx.host_file import host_file
    from irc.plan.host import save_host
    from irc.report.host import host_summary

    native = NativeHostProgram.parse(output.native)
    if (host := host_file(source, sizes, options)) is None:
        return None
    native.compile(host.plan, host.exports)
    save_host(output.place, host.plan, force=output.force, also=native.write)
    described = host_summary(host.plan, options.cluster, host.program.source)
    return PlanText(f"{described}\n{native.summary()}", output.place)


@collection_held()
def compile_text(
    path: str,
    out: str,
    *,
    phase: str = "",
    options: Options | None = None,
    force: bool = False,
    native: str = "",
    to: str = "",
) -> str:
    """Go on from a program in text form, such as ``to`` of :func:`irc.export_plan` has written.

    Args:
        path: a file that ends in ``.mlir``; its weights lie beside it.
        out: the folder of the plan, or as :func:`irc.export_plan` takes it with ``to``.
        phase: where to go on from; by default where it has stopped.
        options: for a program that ``to`` has not written, such as one of ``ir/`` of a plan.
        force: replace what is there.
        native: kinds of processors to hold machine code for.
        to: where to stop.

    Raises:
        IrcError: ``file-missing``; ``phase-invalid``, ``phase-unknown``; ``option-value`` for
            options of a program
            that has its own, and where nothing says from where to go on.
    """
    output, place = Output(out, native, force, to), Path(path)
    if has_facts(place):
        if options is not None:
            raise IrcError(
                "option-value",
                f"'{path}.json' says how '{path}' is compiled",
                help="leave out all options but -o, --from, --to, --native, --force, --sign-key"
                " and --json, or compile the model again",
            )
        compilation = read_stopped(place, phase)
        output.check(compilation.options)
        return finish(compilation, output)
    if not place.is_file():
        raise IrcError("file-missing", f"no file '{path}'")
    if not phase:
        raise IrcError(
            "option-value",
            f"'{path}' is a program in text form: which passes it is behind is not said",
            help="say it: --from capture, or --from flow, fuse, ... (irc list passes)",
        )
    options = options or Options()
    output.check(options)
    compilation = Compilation(read_program(place), options)
    compilation.lowering.done = position(phase, compilation.lowering.passes)
    return finish(compilation, output)
