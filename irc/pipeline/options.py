"""What a user chooses of a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from irc.cluster.load import THIS_HOST
from irc.dialects.placement import Mesh
from irc.pipeline.training import Training
from irc.record import Record

VerifyEach: TypeAlias = Literal["ir", "exec"] | None


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        training: what makes a step of training of the program; None where it is run as it is.
        mesh: named axes; the empty mesh is one device.
        within: the mesh of the whole run, where ``mesh`` is that of one stage in it.
        backend: what writes the kernels: ``cpu``, ``triton``, ``cuda`` or a plug-in's.
        target: what kernels are mapped for (``cpu``, ``sm_90``); by default the backend's first.
        cluster: a preset's name or a TOML file; prices communication and compute.
        sizes: numbers for named sizes.
        passes: plug-in passes to run, each where its ``after`` says: ``name`` or
            ``name{option=1}``; ``no-name`` leaves out one of irc's own that is only faster.
        rules: files of rewrite rules (grammar/rewrite.lark), tried before irc's own.
        pins: constraints, or the name of a file of them (grammar/sharding.lark).
        memory_bytes: what a device may hold at any moment; by default what the cluster's have.
        stored_bytes: what it may hold all the time: parameters, states, buffers, constants.
        stored_price: seconds of a step that a byte of these counts as, without a bound: a search
            over everything weighs memory by it.
        regather: what a training step gathers is not saved for backward but gathered again.
        samples: axes that are to divide the samples of a batch: where none of a batch is divided
            over one, since it does not divide their number, that is an error.
        sums: the dtype that ranks add up gradients of weights in, ``f32``; empty: their own.
        offload: where what a step in micro-batches saves lies until it is read: ``disk``, or
            ``host``, the memory of a GPU's host; empty: on the device.
        layout: what the axes of the mesh are for, by name; empty: what is fastest.
        recompute: of a training step, what is computed again (pass ``recompute``; ``auto``: as much
            as it takes to fit); empty: as the program says.
        dynamic: which sizes of a module's inputs are left open: None, True for all that it does not
            fix, or as torch.export takes them.
        any_rows: kernels are to be those of any number of rows, not the best for one.
        tune: time the tiles of GPU kernels that no table has yet.
        batch: in a loop on a mesh, which arguments each rank is given its own part of: ``local`` or
            ``global``, or by argument.
        check_every: in a loop on a mesh, after so many calls copies of parameters are compared.
        fullgraph: nothing is left to torch or Python: where a graph would break is an error.
        keep_ir: keep the text after each pass of the functions of a pipeline's stages, for
            ``irc check``.
        brief: the plan is priced and thrown away, as a search of the best one does: it has no
            kernels and no other files, and of a budget that nothing fits into no more is said.
        strict: nothing is left to torch, not even a single op: where it would be is an error.
        verify_each: verify the IR after each pass, or run it before and after and compare.
        record: where what is done is noted, for :func:`irc.explain`; no choice of anybody's.
    """

    mesh: Mesh = field(default_factory=lambda: Mesh(()))
    training: Training | None = None
    within: Mesh | None = None
    backend: str = "cpu"
    target: str = ""
    cluster: str = THIS_HOST
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    passes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    pins: str = ""
    memory_bytes: int | None = None
    stored_bytes: int | None = None
    stored_price: float = 0.0
    regather: bool = False
    samples: tuple[str, ...] = ()
    sums: str = ""
    offload: str = ""
    layout: str = ""
    recompute: str = ""
    dynamic: Any = None
    any_rows: bool = False
    tune: bool = False
    fullgraph: bool = False
    strict: bool = False
    batch: Any = "global"
    check_every: int = 0
    keep_ir: bool = False
    brief: bool = False
    verify_each: VerifyEach = None
    record: Record | None = field(default=None, compare=False, repr=False)

    @property
    def num_ranks(self) -> int:
        """The ranks of the whole run: they share hosts."""
        return (self.within or self.mesh).num_ranks
