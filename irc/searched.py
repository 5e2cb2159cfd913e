"""Searches of what users call: a module, a step of training, or an ONNX file, on a cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from irc.choices import DEFAULT_SCHEDULE, names_option, recipe_option
from irc.constraints.pins import Pins, pins_option
from irc.constraints.steps import called_pins, pinned_count
from irc.errors import IrcError
from irc.pipeline import Options
from irc.training.precision import Precision, PrecisionOption
from irc.training.recipe import OptimizerOption

if TYPE_CHECKING:
    from irc.calls.plan_search import Asked
    from irc.search.configurations import Configuration, Outline
    from irc.search.everything import Outcome
    from irc.search.judge import Judged

AUTO = "auto"
"""A mesh that is to be searched."""


def searched_module(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    asked: Asked,
    *,
    backend: str = "cpu",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    pins: Pins = "",
    memory_bytes: int | None = None,
    stored_bytes: int | None = None,
    regather: bool = False,
    optimizer: OptimizerOption | None = None,
    loss: str | Callable[..., Any] | None = None,
    frozen: str = "",
    precision: PrecisionOption = None,
) -> tuple[Outcome, Outline]:
    """Search the best configuration of a module's call, or with an optimiser of a step of training.

    Args:
        module: a module or function; one that is trained may be on the meta device.
        args: example arguments: the whole batch.
        kwargs: example keyword arguments.
        asked: how to search.
        backend: what writes the kernels.
        cluster: prices plans.
        passes: plug-in passes to run.
        rules: files of rewrite rules.
        pins: constraints; a mesh without an axis that they name is not planned.
        memory_bytes: the most that a device may hold at any moment.
        stored_bytes: the most that it may hold all the time.
        regather: do not save for backward what was gathered, but gather it again.
        optimizer: of training, as :func:`irc.compile_step` takes it; None: the module is called.
        loss: what is trained on.
        frozen: globs of parameters that stay as they are.
        precision: dtypes that are stored, computed and summed in.

    Returns:
        What was judged, and the outline of the forward pass of the whole batch.

    Raises:
        IrcError: ``plan-infeasible``; what is wrong with the options or the model.
    """
    from irc.calls.plan_search import search_call, search_step
    from irc.frontends.torch.capture import capture
    from irc.frontends.torch.in_precision import store

    options = Options(
        backend=backend,
        cluster=cluster,
        passes=names_option("passes", passes),
        rules=names_option("rules", rules),
        pins=called_pins(pins) if optimizer is None else pins_option(pins),
        memory_bytes=memory_bytes,
        stored_bytes=stored_bytes,
        regather=regather,
    )
    if optimizer is None:
        program = capture(module, args, dict(kwargs or {})).program
        return search_call(program, options, asked)
    recipe = recipe_option(module, loss, optimizer, frozen, 1, "none", precision, pins)
    limits = replace(asked.limits, micro_batches=pinned_count(None, pins))
    asked = replace(asked, limits=limits)
    options = replace(options, sums=recipe.precision.sums)
    store(module, recipe.precision)
    return search_step(module, args, dict(kwargs or {}), recipe, loss, options, asked)


def searched_file(
    path: str,
    asked: Asked,
    *,
    backend: str = "cpu",
    cluster: str = "this-host",
    sizes: Mapping[str, int] | None = None,
    memory_bytes: int | None = None,
) -> tuple[Outcome, Outline]:
    """Search the best mesh of an ONNX file.

    Args:
        path: the model.
        asked: how to search.
        sizes: numbers for the model's named sizes: all of them.
        backend: what writes the kernels.
        cluster: prices plans.
        memory_bytes: the most that a device may hold at any moment.

    Raises:
        IrcError: ``plan-infeasible``; ``size-unbound``; what is wrong with the options or the file.
    """
    from irc.calls.plan_search import search_call
    from irc.frontends.onnx import load_onnx
    from irc.frontends.onnx.read import read_model

    options = Options(backend=backend, cluster=cluster, memory_bytes=memory_bytes)
    return search_call(load_onnx(read_model(path), sizes), options, asked)


def cluster_in_order(cluster: str, best: Judged) -> str:
    """Return the name of a cluster as the ranks of a plan see it, each on its own device."""
    from irc.cluster.load import in_order_of

    order = best.verdict.order if best.verdict else ()
    return in_order_of(cluster, order) if order else cluster


def price_of_stored(cluster: str, chosen: Configuration) -> float:
    """Return the option ``stored_price`` of what a search chose for a cluster."""
    from irc.cluster.load import find_cluster
    from irc.search.fitting import stored_price

    return stored_price(find_cluster(cluster), chosen)


def refuse_beside_auto(micro_batches: object, schedule: str, stages: str, recompute: str) -> None:
    """Refuse what ``mesh="auto"`` chooses itself.

    Raises:
        IrcError: ``option-value``.
    """
    stated = {
        "micro_batches": micro_batches is not None,
        "schedule": schedule != DEFAULT_SCHEDULE,
        "stages": bool(stages),
        "recompute": recompute != "none",
    }
    for option, is_stated in stated.items():
        if is_stated:
            raise IrcError(
                "option-value",
                f"mesh='{AUTO}' chooses {option} as well",
                help=f"leave {option} out, or name a mesh (irc plan shows how they compare)",
            )


def refuse_open(dynamic: object, layout: str) -> None:
    """Refuse what a search does not know of.

    Raises:
        IrcError: ``option-value``.
    """
    for option, is_stated in {"dynamic": bool(dynamic), "layout": bool(layout)}.items():
        if is_stated:
            raise IrcError(
                "option-value",
                f"mesh='{AUTO}' takes no {option}",
                help="leave it out, or name a mesh: irc plan says which is the best",
            )


def refuse_example(mesh: object, example: Sequence[Any] | None) -> None:
    """Refuse an example that nothing reads.

    Raises:
        IrcError: ``option-value``.
    """
    if example is not None and mesh != AUTO:
        raise IrcError(
            "option-value",
            f"example is for mesh='{AUTO}', which is searched for it",
            help=f"leave out example, or choose mesh='{AUTO}'",
        )


def chosen_for(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, devices: int | None,
    *, in_order: bool = False, **options: Any,
) -> Judged:  # fmt: skip
    """Return the best configuration of a module on so many devices, and the verdict.

    Args:
        module: as of :func:`searched_module`.
        args: as of it.
        kwargs: as of it.
        devices: to use; None: all of the cluster's.
        in_order: ranks stay on the devices in order; otherwise a plan is made on the cluster that
            :func:`cluster_in_order` names.
        options: as of :func:`searched_module`.

    Raises:
        IrcError: as :func:`searched_module`.
    """
    from irc.calls.plan_search import Asked

    asked = Asked(devices, in_order=in_order)
    outcome, _ = searched_module(module, args, kwargs, asked, **options)
    return outcome.best


def choice_of_ranks(module: Any, example: Sequence[Any] | None, **options: Any) -> Configuration:
    """Return the best configuration of as many devices as there are processes, on each of them.

    Rank 0 searches, and the others receive what it chose. Ranks are launched already, so they stay
    on the devices in order.

    Args:
        module: as of :func:`searched_module`.
        example: arguments of a call, a whole batch.
        options: as of :func:`searched_module`.

    Raises:
        IrcError: ``option-value`` without an example; as :func:`searched_module`.
    """
    from irc.dialects.placement import Mesh
    from irc.runtime.join import join_processes, num_processes, shared_bytes
    from irc.search.configurations import Configuration

    if not isinstance(example, tuple | list):
        is_said = "none" if example is None else f"not what is given, a {type(example).__name__}"
        raise IrcError(
            "option-value",
            f"mesh='{AUTO}' is searched for a batch, a tuple of arguments, and there is {is_said}",
            help=f"give an example: mesh='{AUTO}', example=(x, y); an axis that takes what "
            f"processes the others leave is mesh='data={AUTO}'",
        )
    if (ranks := num_processes()) == 1:
        return _choice_of_one(module, example, **options)
    rank = join_processes(Mesh((("data", ranks),)))

    def make() -> bytes:
        best = chosen_for(module, example, None, ranks, in_order=True, **options)
        chosen = best.configuration
        words = asdict(replace(chosen, mesh=Mesh(()))) | {"mesh": str(chosen.mesh)}
        return json.dumps(words).encode()

    words: dict[str, Any] = json.loads(shared_bytes(make, rank, _marks(example, options)))
    return Configuration(Mesh.parse(words.pop("mesh")), **words)


def _choice_of_one(module: Any, example: Sequence[Any], **options: Any) -> Configuration:
    """Return what one device does: all at once, where that fits; nothing else is faster."""
    from irc.calls.plan_search import Asked
    from irc.dialects.placement import Mesh
    from irc.search.configurations import Configuration
    from irc.search.limits import Limits

    if "optimizer" not in options:
        return Configuration(Mesh(()))
    first = Asked(1, Limits(most_judged=1))
    try:
        outcome, _ = searched_module(module, example, None, first, **options)
    except IrcError as error:
        if error.code != "plan-infeasible":
            raise
        return chosen_for(module, example, None, 1, **options).configuration
    return outcome.best.configuration


def _marks(example: Sequence[Any], options: Mapping[str, Any]) -> Mapping[str, bytes]:
    """Return digests by which ranks compare for what they search.

    Functions and objects count by what they are called: their addresses differ between processes.
    """
    texts = {
        "the example": [_named(each) for each in example],
        "the options": sorted((name, _named(own)) for name, own in options.items()),
    }
    return {name: hashlib.sha256(repr(text).encode()).digest() for name, text in texts.items()}


def _named(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{tuple(value.shape)}"
    if isinstance(value, Precision):
        return _named((value.parameters, value.compute, value.masters, value.reduce))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return repr(sorted((f"{key}", _named(own)) for key, own in items))
    if isinstance(value, tuple | list):
        return repr([_named(own) for own in cast("Sequence[Any]", value)])
    # What prints its address has none here; a function is called as it was defined.
    name = getattr(value, "__qualname__", "")
    return name or (type(value).__qualname__ if " at 0x" in repr(value) else repr(value))
