"""From a model, a batch and a cluster to the best configuration: what `irc plan` and `auto` search.

:mod:`irc.search.everything` decides; here it is told what to plan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

from irc.calls.call_judge import CallJudge
from irc.calls.forward_passes import ForwardPasses
from irc.calls.step_judge import StepJudge
from irc.cluster.load import find_cluster
from irc.cluster.topology import Cluster
from irc.collection import collection_held
from irc.dialects.builder import arguments, entry
from irc.dialects.types import TensorType
from irc.errors import IrcError, did_you_mean
from irc.pipeline import Options
from irc.program import Program
from irc.search.ahead import Ahead
from irc.search.configurations import Configuration, Outline
from irc.search.everything import Outcome, Search
from irc.search.limits import OBJECTIVES, Limits
from irc.search.status import Progress
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from irc.calls.step_plan import Loss


@dataclass(frozen=True)
class Asked:
    """How to search.

    Attributes:
        devices: to use; None: all that the cluster has.
        limits: how far.
        pinned: configurations to hold the best one against.
        progress: is told how far the search is.
        in_order: ranks stay on the devices in order: what runs a plan where it is launched does not
            choose the devices, whichever order of them were better.
    """

    devices: int | None = None
    limits: Limits = field(default_factory=Limits)
    pinned: tuple[Configuration, ...] = ()
    progress: Progress | None = None
    in_order: bool = False


def search_step(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    recipe: Recipe,
    loss: object,
    options: Options,
    asked: Asked,
    stages: str = "",
) -> tuple[Outcome, Outline]:
    """Search the best configuration of a step of training, of the whole batch.

    Args:
        module: what is trained; on the meta device, or with values.
        args: the whole batch.
        kwargs: keyword arguments.
        recipe: how it is trained; its micro-batches and recompute do not count.
        loss: a function of the module's output, or what names a result.
        options: of the pipeline; the mesh does not count.
        asked: how to search.
        stages: where stages begin; empty: the best cut.

    Returns:
        What was judged, and the outline of the forward pass.

    Raises:
        IrcError: ``plan-infeasible``; what is wrong with the options or the model.
    """
    from irc.calls.step_plan import check_device

    check_device(module, planned=True)
    called = None if loss is None or isinstance(loss, str) else cast("Loss", loss)
    forwards, ahead = ForwardPasses(module, args, kwargs, recipe, called), _ahead(asked.limits)
    judge = StepJudge(forwards, stages, options=options, in_order=asked.in_order, ahead=ahead)
    return _search(judge, options, asked, is_training=True)


def search_call(program: Program, options: Options, asked: Asked) -> tuple[Outcome, Outline]:
    """Search the best mesh of a program that is called as it is.

    Args:
        program: as a frontend gives it, of fixed sizes; it stays as it is.
        options: of the pipeline; the mesh does not count.
        asked: how to search.

    Returns:
        What was judged, and the outline of the program.

    Raises:
        IrcError: ``plan-infeasible``; ``size-unbound`` where a size is a name; what is wrong with
            the options or the model.
    """
    _check_sizes(program)
    ahead = _ahead(asked.limits)
    judge = CallJudge(program, options=options, in_order=asked.in_order, ahead=ahead)
    return _search(judge, options, asked, is_training=False)


def _check_sizes(program: Program) -> None:
    """Refuse sizes that are names.

    Raises:
        IrcError: ``size-unbound``.
    """
    for role, name, value in arguments(entry(program.module)):
        kind = value.type
        if role != "input" or not isinstance(kind, TensorType):
            continue
        names = [f"{size}" for size in kind.shape if not isinstance(size, int)]
        if names:
            raise IrcError(
                "size-unbound",
                f"input '{name}' has the size '{names[0]}', and plans are searched for numbers",
                help=f"give each size a number: --size {names[0]}=8",
            )


def _ahead(limits: Limits) -> Ahead:
    """Return what computes ahead until a search is out of time."""
    limit = limits.time_limit_s
    return Ahead() if limit is None else Ahead(until=time.monotonic() + limit)


def _search(
    judge: CallJudge | StepJudge, options: Options, asked: Asked, *, is_training: bool
) -> tuple[Outcome, Outline]:
    cluster = find_cluster(options.cluster)
    devices = devices_of(cluster, asked.devices)
    for each in asked.pinned:
        _check_pinned(each, devices)
    search = Search(judge, cluster, asked.limits, is_training=is_training, progress=asked.progress)
    with collection_held():
        return search.run(devices, asked.pinned), judge.outline()


def devices_of(cluster: Cluster, devices: int | None) -> int:
    """Return how many devices of a cluster to use, checked.

    Raises:
        IrcError: ``mesh-mismatch`` for more than there are, ``option-value`` for numbers that do
            not fill whole nodes.
    """
    most = cluster.num_devices
    if devices is None:
        return most
    if devices < 1:
        raise IrcError("option-value", f"devices={devices}: a plan is for 1 or more")
    if cluster.device.cores:
        return devices  # ranks are processes, of which a host runs any number
    if devices > most:
        raise IrcError(
            "mesh-mismatch",
            f"{devices} devices are asked for, and cluster '{cluster.name}' has {most}",
            help=f"choose {most} or fewer, or a larger cluster",
        )
    node = max((link.devices for link in cluster.links if not link.tree), default=1)
    if devices > node and devices % node:
        below = devices // node * node
        raise IrcError(
            "option-value",
            f"{devices} devices are not whole nodes of {node}",
            because="ranks on parts of nodes would wait for the slowest links",
            help=f"choose {below} or {below + node}",
        )
    return devices


def limits_of(
    objective: str,
    time_limit_s: float | None = None,
    most_judged: int | None = None,
    price_per_hour: float | None = None,
) -> Limits:
    """Return how far a search goes, checked.

    Raises:
        IrcError: ``option-value``.
    """
    if objective not in OBJECTIVES:
        raise IrcError(
            "option-value",
            f"no objective '{objective}'",
            help=did_you_mean(objective, OBJECTIVES) or f"choose {', '.join(OBJECTIVES)}",
        )
    if time_limit_s is not None and not time_limit_s > 0:
        raise IrcError("option-value", f"a time limit of {time_limit_s:g} s: it is above 0")
    if price_per_hour is not None and not 0 < price_per_hour < inf:
        raise IrcError(
            "option-value",
            f"a price of {price_per_hour:g} for an hour of a device: it is above 0",
        )
    limits = Limits(objective, time_limit_s, price_per_hour=price_per_hour)
    return limits if most_judged is None else replace(limits, most_judged=most_judged)


def _check_pinned(pinned: Configuration, devices: int) -> None:
    if (ranks := pinned.mesh.num_ranks) != devices:
        raise IrcError(
            "mesh-mismatch",
            f"the configuration that is pinned, {pinned}, is of {ranks} devices, not {devices}",
            help=f"choose --devices {ranks}, or a cluster of as many",
        )
