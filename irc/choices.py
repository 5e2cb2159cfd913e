"""What users choose by keyword, checked before anything is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from irc.constraints.layouts import parse_layout
from irc.constraints.pins import Pins
from irc.constraints.steps import pinned_recompute
from irc.dialects.placement import Mesh
from irc.errors import IrcError, did_you_mean
from irc.pipeline import Options, default_pipeline
from irc.plan.parts import PIPE
from irc.runtime.segments import DEVICE_BACKENDS
from irc.sharding.mesh import REST, fit_mesh, parse_mesh
from irc.training.groups import check_groups
from irc.training.optimizers import EAGER
from irc.training.precision import PrecisionOption, precision_of
from irc.training.recipe import OptimizerOption, Recipe, recipe_of

if TYPE_CHECKING:
    import torch
    from torch import nn

DEFAULT_SCHEDULE = "1f1b"
HOST = "host"
OFFLOAD = ("disk", HOST)
"""Where what a step in micro-batches saves may lie until it is read."""

Dynamic: TypeAlias = bool | Mapping[str, Any] | Sequence[Any] | None
"""Which sizes are left open."""

MeshOption: TypeAlias = str | Callable[[int], str]
"""Axes of a mesh, or what gives them for a number of ranks."""


def mesh_option(mesh: object) -> str:
    """Return a mesh, of as many ranks as there are processes where it says so.

    Args:
        mesh: ``data=2,tensor=2``; ``data=auto,tensor=2``, where an axis takes the ranks that are
            left; or a function that gives either for a number of ranks.

    Raises:
        IrcError: ``mesh-syntax``, ``option-value``, ``world-size``.
    """
    text = mesh or ""
    if not isinstance(text, str) or REST in text:
        from irc.runtime.join import num_processes

        ranks = num_processes()
        if callable(text):
            text = cast("Callable[[int], object]", text)(ranks)
        if not isinstance(text, str):
            raise IrcError(
                "option-value",
                f"mesh is text, or a function of the number of ranks that gives it, not {text!r}",
                help=f'write mesh="data=2,tensor=2", or mesh="data={REST}"',
            )
        text = fit_mesh(text, ranks)
    return text


def dynamic_option(dynamic: object, mesh: str) -> Any:
    """Check which sizes are to be left open.

    Raises:
        IrcError: ``option-value``.
    """
    if dynamic is None or dynamic is False:
        return None
    if dynamic is not True and not isinstance(dynamic, Mapping | list | tuple):
        raise IrcError(
            "option-value",
            f"dynamic is True, or says which dims vary, not {dynamic!r}",
            help='write dynamic={"x": {0: "batch"}}',
        )
    if mesh:
        raise IrcError(
            "option-value",
            "sizes on a mesh are fixed: placements are chosen for them",
            help="leave out dynamic or mesh",
        )
    return cast("Any", dynamic)


def layout_option(layout: str, mesh: str) -> str:
    """Check the name of a layout.

    Raises:
        IrcError: ``option-value``.
    """
    if layout and not mesh:
        raise IrcError(
            "option-value",
            f"layout='{layout}' says what the axes of a mesh are for, and there is no mesh",
            help='choose one, as in mesh="data=2"',
        )
    if layout:
        parse_layout(layout, parse_mesh(mesh))
    return layout


def count_option(option: str, count: object) -> int:
    """Check a number of calls, 0 for never.

    Raises:
        IrcError: ``option-value``.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise IrcError("option-value", f"{option}={count!r} is no number of calls")
    return count


def batch_option(batch: object, mesh: str, layout: str) -> Any:
    """Check what ranks are given of a batch.

    Raises:
        IrcError: ``option-value``.
    """
    if batch == "global":
        return batch
    from irc.calls.feeding import feeding_of

    whole = parse_mesh(mesh)
    feeding_of(cast("Any", batch), whole, parse_layout(layout, whole).samples)
    return batch


def mode_option(mode: object, backend: str) -> bool:
    """Return whether a mode of ``torch.compile`` asks for tiles to be timed.

    Raises:
        IrcError: ``option-value`` for a mode that means nothing here.
    """
    if mode is None or mode == "default":
        return False
    if mode == "max-autotune-no-cudagraphs":
        raise IrcError(
            "option-value",
            f"mode={mode!r}: irc records calls on a GPU as CUDA graphs, and has no way without",
            help="choose mode='max-autotune'",
        )
    if not isinstance(mode, str) or mode not in MODES:
        raise IrcError(
            "option-value",
            f"torch.compile has no mode {mode!r}",
            help=did_you_mean(f"{mode}", ("default", *MODES)),
        )
    if backend not in DEVICE_BACKENDS:
        raise IrcError(
            "option-value",
            f"mode='{mode}' means nothing to backend '{backend}': it is about {MODES[mode]}",
            help="leave it out, or choose mode='default'",
        )
    return mode != OVERHEAD


OVERHEAD = "reduce-overhead"
MODES = {
    OVERHEAD: "CUDA graphs, which irc records on a GPU by itself",
    "max-autotune": "the tiles of GPU kernels",
}
"""What modes of ``torch.compile`` are about; ``default`` is what irc does by itself."""

BACKEND_OPTIONS = (
    "target", "verify_each", "passes", "rules", "pins", "cluster", "fullgraph", "strict",
)  # fmt: skip
"""What ``options=`` takes, as :class:`~irc.pipeline.Options` and :func:`irc.compile` have it."""


def backend_options(options: object, stated: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return what ``options=`` says.

    Args:
        options: of the user; None says nothing.
        stated: what the user says by keyword, too.

    Raises:
        IrcError: ``option-unknown`` for a name that irc does not know, such as one of inductor's;
            ``option-value`` for what is no mapping, and for what is said twice.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise IrcError(
            "option-value",
            f"options= has values by name, not {options!r}",
            help='as in options={"fullgraph": True}',
        )
    chosen = {f"{name}": value for name, value in cast("Mapping[object, Any]", options).items()}
    for name in chosen:
        if name not in BACKEND_OPTIONS:
            raise IrcError(
                "option-unknown",
                f"backend 'irc' has no option '{name}'",
                help=did_you_mean(name, BACKEND_OPTIONS),
            )
        if (stated or {}).get(name):
            raise IrcError("option-value", f"{name} is given twice, by itself and in options=")
    if not isinstance(chosen.get("fullgraph", False), bool):
        raise IrcError("option-value", f"fullgraph is True or False, not {chosen['fullgraph']!r}")
    if (each := chosen.get("verify_each")) not in VERIFY:
        raise IrcError(
            "option-value",
            f"verify_each is 'ir', 'exec' or None, not {each!r}",
            help=did_you_mean(f"{each}", ("ir", "exec")),
        )
    return chosen


VERIFY = (None, "ir", "exec")


def strict_option(strict: object) -> bool:
    """Check whether anything may be left to torch.

    Raises:
        IrcError: ``option-value``.
    """
    if not isinstance(strict, bool):
        raise IrcError("option-value", f"strict is True or False, not {strict!r}")
    return strict


def names_option(option: str, names: object) -> tuple[str, ...]:
    """Return names of passes, or of files.

    Raises:
        IrcError: ``option-value`` for one name that is in no list, and for what is no name.
    """
    if isinstance(names, str):
        raise IrcError(
            "option-value",
            f"{option} is a list of names, not {names!r}",
            help=f'write {option}=["{names}"]',
        )
    if not isinstance(names, Iterable):
        raise IrcError(
            "option-value",
            f"{option} is a list of names, not {names!r}",
            help=NAMES.get(option, ""),
        )
    named: list[str] = []
    for each in cast("Iterable[object]", names):
        # A file may be given as a Path; a pass has a name only.
        text = str(each) if isinstance(each, Path) and option != "passes" else each
        if not isinstance(text, str) or not text.strip():
            raise IrcError(
                "option-value",
                f"{option} is a list of names, and {each!r} is none",
                help=NAMES.get(option, ""),
            )
        named.append(text)
    return tuple(named)


NAMES = {
    "passes": 'write the name that a package registers under irc.passes: passes=["my-pass"], or '
    'passes=["my-pass{option=1}"]',
    "rules": 'write the names of files: rules=["my.rules"]',
}
"""What to write in the lists that users give."""


def checked(options: Options) -> Options:
    """Refuse what no call could use, now and not on the first call.

    What is left at its default is not looked at: it costs nothing.

    Raises:
        IrcError: ``backend-unknown``, ``cluster-unknown``, ``pass-unknown``; what files of rules
            and constraints raise.
    """
    from irc.cluster.load import find_cluster
    from irc.plugin import find_backend
    from irc.rewrite.library import rules_of

    usual = Options()
    if options.backend != usual.backend:
        find_backend(options.backend)
    if options.cluster != usual.cluster:
        find_cluster(options.cluster)
    if options.rules:
        rules_of(options.rules)
    if options.passes or options.pins:
        default_pipeline(options)
    return options


def recipe_option(
    model: object,
    loss: object,
    optimizer: OptimizerOption | torch.optim.Optimizer,
    frozen: str,
    micro_batches: int,
    recompute: str,
    precision: PrecisionOption = None,
    pins: Pins = "",
) -> Recipe:
    """Return how a model is to be trained; constraints may say what layers recompute.

    Raises:
        IrcError: ``input-mismatch`` for what is no module or no loss; what the recipe refuses.
    """
    from torch import nn

    from irc.runtime.loss_scale import numbers_of

    if not isinstance(model, nn.Module):
        raise IrcError(
            "input-mismatch", f"a training step is of a module, not of {type(model).__name__}"
        )
    if not (loss is None or isinstance(loss, str) or callable(loss)):
        raise IrcError(
            "input-mismatch", f"a loss is a name or a function, not {type(loss).__name__}"
        )
    recompute = pinned_recompute(recompute, pins, (own for own, _ in model.named_parameters()))
    name = loss if isinstance(loss, str) else ""
    if isinstance(optimizer, str | Mapping):
        told: OptimizerOption | None = optimizer
    else:
        from irc.runtime.given_optimizer import options_of

        told, still = options_of(optimizer, model)
        frozen = ",".join([*filter(None, [frozen]), *still])
    if told is None:
        recipe = Recipe(EAGER, loss=name, frozen=frozen, micro_batches=micro_batches,
                        recompute=recompute)  # fmt: skip
    else:
        recipe = recipe_of(
            told, loss=name, frozen=frozen, micro_batches=micro_batches, recompute=recompute
        )
    check_groups(recipe.groups, [name for name, _ in model.named_parameters()])
    chosen = precision_of(precision)
    chosen = replace(chosen, scaler=numbers_of(chosen.scaler))
    if chosen.masters and recipe.kind == EAGER:
        raise IrcError(
            "option-value",
            "precision: masters are kept by the optimisers that a step compiles",
            because="this one runs eagerly, on parameters as they are stored",
            help="store float32 parameters: precision='bfloat16' computes in bfloat16 from them",
        )
    if chosen.masters and not chosen.parameters and not _has_halves(model):
        raise IrcError(
            "option-value",
            "precision: masters are of parameters that are bfloat16 or float16, and none is",
            help="irc.Precision(parameters='bfloat16', masters='float32'); float32 parameters are "
            "their own masters",
        )
    return replace(recipe, precision=chosen)


def _has_halves(model: nn.Module) -> bool:
    return any(p.is_floating_point() and p.itemsize == 2 for p in model.parameters())


def micro_batches_option(micro_batches: int | None, accumulate: int | None) -> int | None:
    """Return the micro-batches of a step that a user asks for, by either name.

    Raises:
        IrcError: ``option-value``.
    """
    if micro_batches is not None and accumulate is not None:
        raise IrcError(
            "option-value",
            f"micro_batches={micro_batches!r} and accumulate={accumulate!r} are two names of one "
            "number",
            help="leave out accumulate",
        )
    count = accumulate if micro_batches is None else micro_batches
    if count is not None and (type(count) is not int or count < 1):
        raise IrcError("option-value", f"micro_batches={count!r}: a step has 1 or more")
    return count


def programs_option(
    mesh: Mesh, micro_batches: int | None, schedule: str, stages: str
) -> int | None:
    """Return the micro-batches of a step of several programs; None for a step of one.

    Raises:
        IrcError: ``option-value`` where a schedule is named and there is nothing to order.
    """
    if PIPE in mesh.names:
        return mesh.size(PIPE) if micro_batches is None else micro_batches
    is_ordered = bool(stages) or schedule != DEFAULT_SCHEDULE
    if micro_batches is None and is_ordered:
        what = "stages" if stages else "schedule"
        raise IrcError(
            "option-value",
            f"{what} is of a pipeline, and the mesh '{mesh}' has no axis '{PIPE}'",
            help='choose a mesh such as mesh="pipe=2,data=2"',
        )
    return None if micro_batches == 1 and not is_ordered else micro_batches


def offload_option(offload: str, micro_batches: int | None, backend: str) -> str:
    """Check where what a step saves is to lie until it is read.

    Args:
        offload: as a user says; empty: on the device.
        micro_batches: of a step of several programs; None for a step of one.
        backend: what writes the kernels.

    Raises:
        IrcError: ``option-value``, ``offload-unsupported``.
    """
    if offload not in ("", *OFFLOAD):
        raise IrcError(
            "option-value",
            f"offload is {' or '.join(map(repr, OFFLOAD))}, not {offload!r}",
            help=did_you_mean(str(offload), OFFLOAD),
        )
    if offload and micro_batches is None:
        raise IrcError(
            "offload-unsupported",
            f"offload='{offload}' moves what waits while other micro-batches are computed, and the "
            "step has one",
            help="give it micro_batches=8 and a schedule that keeps several of them (gpipe), or a "
            "mesh with an axis 'pipe'; recompute='full' saves memory in a step of one",
        )
    if offload == HOST and backend not in DEVICE_BACKENDS:
        raise IrcError(
            "offload-unsupported",
            f"with backend '{backend}' registers are in the memory of the host already",
            help="choose offload='disk'",
        )
    return offload


def refuse_pipeline(
    mesh: Mesh, micro_batches: int | None, schedule: str, stages: str, offload: str = ""
) -> None:
    """Refuse options of pipelines for a plan that is not of training.

    Raises:
        IrcError: ``option-value``.
    """
    stated = {
        "micro_batches": micro_batches is not None,
        "schedule": schedule != DEFAULT_SCHEDULE,
        "stages": bool(stages),
        "offload": bool(offload),
        f"the axis '{PIPE}'": PIPE in mesh.names,
    }
    for what, is_given in stated.items():
        if is_given:
            raise IrcError(
                "option-value",
                f"{what} is of a plan of training, whose stages a schedule runs",
                help='name an optimiser: optimizer="adamw", or --train adamw',
            )
