"""What an expert would call wrong with a configuration, whatever a simulator says of it.

Matrices and sequences are divided inside a node: over the links between nodes go stages, samples
and parts of parameters, which wait less for them (Narayanan et al., arXiv:2104.04473, section 3.2).
And a batch has a whole number of samples on every rank, in every micro-batch.
"""

from __future__ import annotations

from math import prod

from irc.cluster.topology import Cluster
from irc.constraints.layouts import TENSOR
from irc.errors import IrcError
from irc.search.configurations import Configuration, Outline
from irc.sharding.mesh import equal_shares

SAMPLES = "data"
"""The axis over which a search divides samples."""

SEQUENCES = "context"
"""The axis that a search of meshes puts between samples and matrices."""


def objection(configuration: Configuration, cluster: Cluster, *, is_pinned: bool = False) -> str:
    """Return what is wrong with a step of training where stages could be had instead; or nothing.

    >>> from irc.cluster.presets import PRESETS
    >>> from irc.dialects.placement import Mesh
    >>> two_nodes = PRESETS["2x8xH100"]
    >>> objection(Configuration(Mesh.parse("tensor=16")), two_nodes)
    'tensor=16 divides matrices across nodes'
    >>> objection(Configuration(Mesh.parse("data=2,tensor=8")), two_nodes)
    ''

    Args:
        configuration: of the step.
        cluster: the machines.
        is_pinned: the user states what each axis is for: long sequences may go across nodes.
    """
    fitted = cluster.fit(configuration.mesh)
    for axis, size in configuration.mesh.axes:
        what = "matrices" if axis in TENSOR else "sequences" if axis == SEQUENCES else ""
        if not what or (axis == SEQUENCES and is_pinned):
            continue
        if size > 1 and fitted.crosses_nodes(configuration.mesh, axis):
            return f"{axis}={size} divides {what} across nodes"
    return ""


def absent_batch(configuration: Configuration, outline: Outline) -> None:
    """Refuse a batch whose samples do not fill every rank of every micro-batch alike.

    Raises:
        IrcError: ``mesh-axis-indivisible``.
    """
    ranks = prod(size for axis, size in configuration.mesh.axes if axis == SAMPLES)
    shares = ranks * configuration.micro_batches
    if outline.samples % shares == 0:
        return
    of = f"{configuration.micro_batches} micro-batches on " if configuration.is_staged else ""
    raise IrcError(
        "mesh-axis-indivisible",
        f"{outline.samples} samples are not {of}{ranks} ranks of {SAMPLES}, each with as many",
        help=equal_shares(outline.samples, shares),
    )
