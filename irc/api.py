"""What users call from Python: ``irc.compile``, ``irc.export_plan``, ``irc.load``.

``compile_file`` is what the command line calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from irc.constraints.pins import Pins, pins_option
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.save import check_target, save_plan
from irc.program import Program
from irc.report.summary import summary

if TYPE_CHECKING:
    from irc.runtime.executor import Executor

T = TypeVar("T")


@overload
def compile(
    target: T,
    *,
    mesh: str = "",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    pins: Pins = "",
    disable: bool = False,
) -> T: ...
@overload
def compile(
    target: None = None,
    *,
    mesh: str = "",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    pins: Pins = "",
    disable: bool = False,
) -> Callable[[T], T]: ...
def compile(
    target: Any = None,
    *,
    mesh: str = "",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    pins: Pins = "",
    disable: bool = False,
) -> Any:
    """Compile a module class, a module or a function; also a decorator, with or without options.

    What comes back has the same parameters under the same names and takes the same arguments. It
    is compiled on its first call, and again for each other kind of call (shapes, dtypes, training
    flag). Where autograd records, forward and backward go through AOTAutograd.

    Args:
        target: what to compile.
        mesh: axes of a mesh, ``data=2,tensor=2``; the program then runs under torchrun with as many
            processes, of which one compiles and the others receive the plan.
        cluster: a preset or TOML file that prices the plan.
        passes: names of plug-in passes to run.
        pins: constraints: text, the name of a file of them (grammar/sharding.lark), or placements
            by globs on the names of parameters.
        disable: give the target back unchanged.

    Raises:
        IrcError: for options that cannot be; on the first call, what capture and planning raise.
    """
    options = Options(
        mesh=parse_mesh(mesh), cluster=cluster, passes=tuple(passes), pins=pins_option(pins)
    )
    if target is None:
        return partial(_compile, options=options, disable=disable)
    return _compile(target, options=options, disable=disable)


def _compile(target: object, *, options: Options, disable: bool) -> Any:
    from torch import nn

    from irc import compiled

    if disable:
        return target
    match target:
        case type() if issubclass(target, nn.Module):
            return compiled.compiled_class(target, options)
        case nn.Module():
            return compiled.compiled_instance(target, options)
        case Callable():
            return compiled.compiled_function(cast("Callable[..., Any]", target), options)
        case _:
            pass
    raise IrcError(
        "input-mismatch",
        f"irc.compile takes a module class, a module or a function, not {type(target).__name__}",
    )


def original(compiled: Any) -> Any:
    """Return what ``irc.compile`` was given: the module with its own forward, or the function."""
    from irc.compiled import original as found

    return found(compiled)


def parse_mesh(text: str) -> Mesh:
    """Read ``data=2,tensor=2``.

    Raises:
        IrcError: ``mesh-syntax``.
    """
    try:
        return Mesh.parse(text or "")
    except ValueError as error:
        raise IrcError(
            "mesh-syntax",
            f"cannot read mesh '{text}': {error}",
            help="write it as axis=size,axis=size, such as data=2,tensor=2",
        ) from None


def export_plan(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    mesh: str = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    pins: Pins = "",
    force: bool = False,
) -> str:
    """Compile a PyTorch module to a plan folder that ``irc run`` and torchrun start.

    Args:
        module: a module or function.
        args: example arguments: their shapes are compiled for.
        kwargs: example keyword arguments.
        out: the folder; it must not hold anything yet, unless ``force``.
        mesh: axes of the mesh.
        backend: what writes the kernels.
        cluster: prices the plan.
        passes: plug-in passes to run.
        pins: constraints, as :func:`compile` takes them.
        force: replace a plan in the folder.

    Returns:
        A summary of the plan.
    """
    from irc.frontends.torch.capture import capture

    options = Options(
        mesh=parse_mesh(mesh),
        backend=backend,
        cluster=cluster,
        passes=tuple(passes),
        pins=pins_option(pins),
    )
    check_target(Path(out), force=force)
    program = capture(module, tuple(args), dict(kwargs or {})).program
    return _write(program, options, out, force=force)


def compile_file(
    path: str,
    out: str,
    *,
    mesh: str | None = None,
    backend: str = "cpu",
    cluster: str | None = None,
    sizes: Mapping[str, int] | None = None,
    passes: Sequence[str] = (),
    pins: Pins = "",
    force: bool = False,
) -> str:
    """Compile an ONNX file to a plan folder; see :func:`export_plan`.

    Args:
        path: the model.
        out: the folder.
        mesh: axes of the mesh.
        backend: what writes the kernels.
        cluster: prices the plan.
        sizes: numbers for the model's named sizes.
        passes: plug-in passes to run.
        pins: constraints, as :func:`compile` takes them.
        force: replace a plan in the folder.
    """
    options = Options(
        mesh=parse_mesh(mesh or ""),
        backend=backend,
        cluster=cluster or "this-host",
        passes=tuple(passes),
        pins=pins_option(pins),
    )
    check_target(Path(out), force=force)
    from irc.frontends.onnx import load_onnx

    return _write(load_onnx(path, sizes=dict(sizes or {})), options, out, force=force)


def _write(program: Program, options: Options, out: str | Path, *, force: bool) -> str:
    plan = make_plan(program, options)
    save_plan(out, plan, tensors=program.tensors, force=force)
    return summary(plan, options.cluster, program)


def load(folder: str | Path) -> Executor:
    """Load a plan for one device; call what comes back with the inputs in order.

    Raises:
        IrcError: ``plan-missing``, ``plan-corrupt``; ``world-size`` for a plan of several ranks.
    """
    from irc.runtime.executor import Executor
    from irc.runtime.weights import load_weights

    loaded: LoadedPlan = load_plan(folder)
    return Executor(loaded, load_weights(loaded, 0))
