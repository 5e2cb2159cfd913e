"""What users call from Python: ``irc.compile``, ``irc.explain``, ``irc.load``.

:mod:`irc.step_api` has ``irc.compile_step``, :mod:`irc.exports` what writes plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from irc.choices import (
    Dynamic,
    MeshOption,
    backend_options,
    batch_option,
    checked,
    count_option,
    dynamic_option,
    layout_option,
    mesh_option,
    mode_option,
    names_option,
    strict_option,
)
from irc.cluster.load import THIS_HOST
from irc.constraints.pins import Pins
from irc.constraints.steps import called_pins
from irc.errors import IrcError
from irc.pipeline import Options
from irc.plan.host import is_host, load_host
from irc.plan.load import LoadedPlan, load_plan
from irc.searched import (
    AUTO,
    choice_of_ranks,
    refuse_example,
    refuse_open,
)
from irc.sharding.mesh import parse_mesh

if TYPE_CHECKING:
    from irc.calls.entries import Entries
    from irc.calls.feeding import BatchOption
    from irc.report.any_plan import PlanText
    from irc.report.calls import ModuleReport
    from irc.runtime.executor import Executor
    from irc.runtime.host import HostExecutor
    from irc.runtime.open_executor import OpenExecutor

T = TypeVar("T")


@overload
def compile(
    target: T,
    *,
    mesh: MeshOption = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    pins: Pins = "",
    layout: str = "",
    batch: BatchOption = "global",
    check_every: int = 0,
    dynamic: Dynamic = None,
    tune: bool = False,
    fullgraph: bool = False,
    strict: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    example: Sequence[Any] | None = None,
) -> T: ...
@overload
def compile(
    target: None = None,
    *,
    mesh: MeshOption = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    pins: Pins = "",
    layout: str = "",
    batch: BatchOption = "global",
    check_every: int = 0,
    dynamic: Dynamic = None,
    tune: bool = False,
    fullgraph: bool = False,
    strict: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    example: Sequence[Any] | None = None,
) -> Callable[[T], T]: ...
def compile(
    target: Any = None,
    *,
    mesh: MeshOption = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    pins: Pins = "",
    layout: str = "",
    batch: BatchOption = "global",
    check_every: int = 0,
    dynamic: Dynamic = None,
    tune: bool = False,
    fullgraph: bool = False,
    strict: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    example: Sequence[Any] | None = None,
) -> Any:
    """Compile a module, a class of modules or a function; also a decorator, with options or not.

    What comes back has the same parameters under the same names and takes the same arguments. It
    is compiled on its first call, and again for each other kind of call (shapes, dtypes, training
    flag). Where autograd records, forward and backward go through AOTAutograd.

    What no graph can hold (a branch on the value of a tensor, ``.item()``) breaks it: the parts are
    compiled, Python runs between them, and a warning names the first such line.

    Args:
        target: what to compile; of a ``torch.export.ExportedProgram`` its module. A module of
            ``torch.jit`` comes back as it is, with a warning: torch has compiled it.
        mesh: axes of a mesh, ``data=2,tensor=2``; the program then runs under torchrun with as many
            processes, of which one compiles and the others receive the plan. An axis of size
            ``auto`` takes the processes that the others leave: ``data=auto,tensor=2``; a function
            gives a mesh for a number of processes. ``auto`` alone is the mesh of as many ranks as
            there are processes on which a call with ``example`` is fastest, as ``irc plan``
            searches it.
        backend: what computes: ``cpu``, or on a GPU, where module and arguments lie, ``triton`` or
            ``cuda``.
        cluster: a preset or TOML file that prices the plan.
        passes: names of plug-in passes to run; ``no-order`` leaves out one of irc's own.
        rules: files of rewrite rules (grammar/rewrite.lark), tried before irc's own.
        pins: constraints: text, the name of a file of them (grammar/sharding.lark), or placements
            by globs on the names of parameters: as text, as DTensor's (``[Shard(0), Replicate()]``,
            in the order of the mesh), or as ``parallelize_module`` takes them, ``{"l.*.up":
            ColwiseParallel()}``, by axis where none is called ``tensor`` (``{"tp": {..}}``); or
            what AutoParallel's ``optimize_placement`` returns.
        layout: what the axes of the mesh are for: ``ddp`` divides samples, ``fsdp`` also what is
            stored, ``tp`` matrices over the axis ``tensor`` (or the only one) and samples over the
            others, ``tp+sp`` what is between matrices too; ``fsdp+tp`` and ``fsdp+tp+sp`` are both.
            By default what is fastest.
        batch: of a module that is trained on a mesh, what a rank is given: the whole batch
            (``global``), or its own part of the samples (``local``), for all arguments or by
            argument: ``{"tokens": "local"}``. The axes that the layout divides samples over, or
            that are called ``data`` (``dp``, ``fsdp``), divide them; ``model.feeding()`` says which
            part a rank is to be given, :func:`data_sampler` gives it. A loss that the module
            computes is that of the whole batch; of other results with samples each rank gets its
            own, and the gradient is the mean of what the ranks make of them, as
            ``DistributedDataParallel`` has it.
        check_every: of such a module, after so many calls that record gradients, compare the
            parameters that several ranks hold copies of; one that differs is named, with its rank.
        dynamic: sizes that one compilation serves all numbers of: True for all that the module does
            not fix, or as ``torch.export`` takes them, with names or ``torch.export.Dim``:
            ``{"tokens": {0: "batch", 1: "sequence"}}``. Sizes 0 and 1 are compiled by themselves.
        tune: on a GPU, time the tiles of each kernel on the first call; what is found is kept for
            later compilations on such a device, with or without ``tune``.
        fullgraph: a call is one graph, or an error that says at which line it is not. On a mesh and
            a GPU it always is.
        strict: as ``fullgraph``, and nothing runs by torch or Python in irc's place, not even one
            op of a graph that irc has no form for: an error names its line. Nor is a call timed
            against torch and left to it.
        mode: as ``torch.compile`` has it: ``default``; ``max-autotune`` is ``tune``, and
            ``reduce-overhead`` what irc does on a GPU anyway. On a CPU both are refused: they mean
            nothing there.
        options: as ``torch.compile(backend="irc")`` takes them: ``passes``, ``rules``, ``pins``,
            ``cluster``, ``fullgraph``, ``strict``, ``target``, ``verify_each``.
        disable: give the target back unchanged.
        example: arguments of a call, for which ``mesh="auto"`` is searched.

    Raises:
        IrcError: for options that cannot be; on the first call, what capture and planning raise.
    """
    refuse_example(mesh, example)
    stated = {"passes": passes, "rules": rules, "pins": pins, "fullgraph": fullgraph}
    stated |= {"cluster": "" if cluster == THIS_HOST else cluster, "strict": strict}
    more = backend_options(options, stated)
    passes, rules = more.pop("passes", passes), more.pop("rules", rules)
    pins, cluster = more.pop("pins", pins), more.pop("cluster", cluster)
    strict = strict_option(more.pop("strict", strict))
    fullgraph = more.pop("fullgraph", fullgraph) or strict
    tune = mode_option(mode, backend) or tune
    if mesh == AUTO:
        if target is None or isinstance(target, type):
            raise IrcError(
                "option-value",
                f"mesh='{AUTO}' is searched for a module, and there is none yet to call",
                help=f"model = irc.compile(Model(), mesh='{AUTO}', example=(x,))",
            )
        refuse_open(dynamic, layout)
        mesh = str(
            choice_of_ranks(
                target, example, backend=backend, cluster=cluster, passes=passes, rules=rules,
                pins=pins,
            ).mesh
        )  # fmt: skip
    mesh = mesh_option(mesh)
    chosen = checked(
        Options(
            mesh=parse_mesh(mesh),
            backend=backend,
            cluster=cluster,
            passes=names_option("passes", passes),
            rules=names_option("rules", rules),
            pins=called_pins(pins),
            layout=layout_option(layout, mesh),
            batch=batch_option(batch, mesh, layout),
            check_every=count_option("check_every", check_every),
            dynamic=dynamic_option(dynamic, mesh),
            tune=_tune(backend, tune=tune),
            fullgraph=fullgraph,
            strict=strict,
            **more,
        )
    )
    if target is None:
        return partial(_compile, options=chosen, disable=disable)
    return _compile(target, options=chosen, disable=disable)


def _tune(backend: str, *, tune: bool) -> bool:
    """Check that there are tiles to time.

    Raises:
        IrcError: ``option-value``.
    """
    from irc.tune.tiles import TUNED_BACKENDS

    if tune and backend not in TUNED_BACKENDS:
        raise IrcError(
            "option-value",
            f"tune times the tiles of GPU kernels, and backend '{backend}' has none to choose from",
            help=f"choose backend={' or '.join(map(repr, TUNED_BACKENDS))}, or leave out tune",
        )
    return tune


def _compile(target: object, *, options: Options, disable: bool) -> Any:
    from torch import nn
    from torch.export import ExportedProgram

    from irc.calls.compiled_class import compiled_class, compiled_instance
    from irc.calls.function import CompiledFunction
    from irc.calls.scripted import as_it_is, is_scripted

    if disable:
        return target
    if is_scripted(target):
        return as_it_is(target, options)
    match target:
        case type() if issubclass(target, nn.Module):
            return compiled_class(target, options)
        case nn.Module():
            return compiled_instance(target, options)
        case ExportedProgram():
            return compiled_instance(target.module(), options)
        case Callable():
            return CompiledFunction(cast("Callable[..., Any]", target), options)
        case _:
            pass
    raise IrcError(
        "input-mismatch",
        "irc.compile takes a module class, a module, an exported program or a function, not"
        f" {type(target).__name__}",
    )


def original(compiled: Any) -> Any:
    """Return what ``irc.compile`` was given: the module with its own forward, or the function."""
    from irc.calls.compiled import original as found

    return found(compiled)


@overload
def explain(compiled: str | Path) -> PlanText: ...


@overload
def explain(compiled: Callable[..., Any] | Entries) -> ModuleReport: ...


def explain(compiled: Any) -> ModuleReport | PlanText:
    """Say what irc has made of what it compiled in the calls so far, or of a plan.

    For each kind of call (shapes, dtypes, training flag, whether gradients are recorded): the
    programs that were compiled, their kernels and the ops that each fuses, what was left to torch
    or Python with the line in the model's file and why, which guard made it compile again, how long
    that took, the memory of the arena, and in which file of the cache the machine code is. What
    comes back prints as text, has the same as fields and ``.json()``, and is a table in a
    notebook::

        fast = irc.compile(model)
        fast(x)
        print(irc.explain(fast))

    A step of :func:`compile_step` has a kind of call for each kind of batch and for ``evaluate`` on
    a mesh; one in stages also its schedule, which parameters each stage has, and the functions of
    all stages. Of :func:`compile_entries` each entry is a kind of call. Of what
    ``torch.compile(model, backend="irc")`` has returned each function that Dynamo traces is one,
    and what runs behind a break of its graph is another.

    ``IRC_LOGS=graph,fusion,fallback,recompile,cache`` prints the same facts as they happen
    (:mod:`irc.logs`).

    Of the folder of a plan it is the text of ``irc explain plan``, and in a notebook a picture: the
    mesh, how inputs, weights and outputs lie on it, time, memory, and the schedule of stages. What
    ``irc.load`` and ``irc.export_plan`` return is shown so, too::

        irc.explain("plan")

    Args:
        compiled: what ``irc.compile``, ``irc.compile_step``, ``irc.compile_entries`` or
            ``torch.compile(.., backend="irc")`` has returned; or the folder of a plan, of any
            number of ranks.

    Raises:
        IrcError: ``input-mismatch`` for anything else, saying what is supported; ``plan-missing``,
            ``plan-version`` or ``plan-corrupt`` of a folder.
    """
    if isinstance(compiled, str | Path):
        from irc.report.any_plan import explain_folder

        return explain_folder(compiled)
    from irc.explained import explained

    return explained(compiled)


def compile_entries(
    entries: Mapping[str, Sequence[Any]],
    *,
    mesh: MeshOption = "",
    cluster: str = "this-host",
    pins: Pins = "",
    runs: Mapping[str, int] | None = None,
) -> Entries:
    """Compile several entry points of one model, such as prefill and decode, together.

    They share weights and caches, whose placements are searched for all entries at once. On a mesh
    the program runs under torchrun; each rank keeps its part of a cache between calls.

    Args:
        entries: by name a module or function, its example arguments, and if need be its keyword
            arguments: ``{"prefill": (model, (), {"input_ids": ids, "past_key_values": cache})}``.
        mesh: axes of a mesh, as :func:`compile` takes them.
        cluster: a preset or TOML file that prices the plans.
        pins: constraints of arguments, as :func:`compile` takes them; those of weights and caches
            by their names, those of one entry's inputs as ``ENTRY/NAME``.
        runs: how often each entry runs, relative to the others, as in ``{"decode": 100}``.

    Returns:
        The entries by name: ``found["decode"](ids, cache)`` runs one, on calls like its example.

    Raises:
        IrcError: what capture and planning raise; ``option-value`` for a name that is no entry.
    """
    from irc.calls.entries import compile_entries as compile_all

    whole = parse_mesh(mesh_option(mesh))
    options = Options(mesh=whole, cluster=cluster, pins=called_pins(pins))
    return compile_all(entries, options, runs)


def load(
    folder: str | Path,
    *,
    trust: bool = False,
    verify: bool = False,
    imports: Sequence[str] = (),
) -> Executor | OpenExecutor | HostExecutor:
    """Load a plan for one device; call what comes back with the inputs in order.

    A plan with open sizes takes inputs of all sizes that it was checked for. What comes back of a
    plan that holds loops and branches also takes and gives arrays of strings, and sequences.

    The code of a plan is run as it is only where it is known whose: your irc wrote it on this
    machine, a key that you trust has signed it, or you say ``trust``. Of another plan kernels are
    written again from its IR, which takes some milliseconds for each (``irc explain trust``).

    Args:
        folder: of the plan.
        trust: you trust who made the plan as you trust the programs that you run.
        verify: compare weights with their digests also where that was done here before.
        imports: files and modules to import before, which declare ops that the plan runs.

    Raises:
        IrcError: ``plan-missing``, ``plan-corrupt``, ``plan-untrusted``; ``world-size`` for a plan
            of several ranks; ``model-missing``, ``model-invalid`` for ``imports``.
    """
    from irc.frontends.torch.named import import_all
    from irc.runtime.executors import executor_of
    from irc.runtime.open_executor import OpenExecutor
    from irc.runtime.weights import load_weights

    import_all(names_option("imports", imports))
    if is_host(folder):
        from irc.runtime.host import HostExecutor, load_host_weights

        host = load_host(folder, trust=trust)
        return HostExecutor(host, load_host_weights(host, verify=verify))
    loaded: LoadedPlan = load_plan(folder, trust=trust)
    weights = load_weights(loaded, 0, verify=verify)
    if loaded.sized is not None:
        return OpenExecutor(loaded, weights)
    return executor_of(loaded, weights, owns=True)
