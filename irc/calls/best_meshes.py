"""The meshes of a search: those whose searched calls or steps are the shortest."""

from __future__ import annotations

from math import isfinite

from xdsl.dialects.builtin import ModuleOp

from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh
from irc.pipeline import Options
from irc.pipeline.run import run_passes
from irc.plugin import builtin_pass
from irc.program import Program
from irc.search.configurations import Configuration
from irc.search.graph import Inputs, Wishes
from irc.search.meshes import Ranking, search_meshes
from irc.search.objections import objection
from irc.simulate.choice import step_seconds

MESHES = 2
"""So many meshes of one program are planned: those whose searched steps are the shortest."""


def best_meshes(
    program: Program, options: Options, devices: int, *, is_training: bool = False
) -> list[Mesh]:
    """Return the best meshes of a program on so many devices, best first.

    Args:
        program: level flow; changed.
        options: say the cluster and the budgets.
        devices: two or more.
        is_training: a step, of which those come last that an expert would call wrong.

    Raises:
        IrcError: ``sharding-infeasible``.
    """
    ranking = rank_meshes(program.module, options, devices)
    meshes = [each.mesh for each in ranking.tried if isfinite(each.seconds)]
    if is_training:
        cluster = find_cluster(options.cluster)
        meshes.sort(key=lambda mesh: objection(Configuration(mesh), cluster) != "")
    return meshes[:MESHES]


def rank_meshes(
    module: ModuleOp, options: Options, devices: int, inputs: Inputs = "replicated"
) -> Ranking:
    """Rank the meshes of so many devices for a program, near ones by their simulated calls.

    Args:
        module: level flow; changed.
        options: say the cluster and the budgets.
        devices: two or more.
        inputs: how ranks get them: whole, as plans have it, or as is best (``any``).

    Raises:
        IrcError: ``sharding-infeasible``.
    """
    _simplify(module)
    wishes = Wishes(
        inputs,
        memory_bytes=options.memory_bytes,
        stored_bytes=options.stored_bytes,
        regather=options.regather,
    )
    cluster = find_cluster(options.cluster)
    return search_meshes(module, cluster, devices, wishes, step_s=step_seconds)


def canonical(program: Program) -> ModuleOp:
    """Return a simplified copy of a program's module, without what no plan of it reads."""
    module = program.module.clone()
    _simplify(module)
    return module


def _simplify(module: ModuleOp) -> None:
    run_passes(module, [builtin_pass("canonicalize")()])
