"""The collectives of a program of level spmd, checked before anything runs.

All ranks run one text, so the ranks of a group issue the same collectives in the same order unless
the text itself is wrong: a start that nobody waits for, an axis that the mesh lacks, sizes that
differ from what the group makes of them. Then ranks would wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from irc.dialects.builder import functions
from irc.dialects.comm import CollectiveOp, LocalChunkOp, MarkedRowsOp, WaitOp
from irc.dialects.flow import id_of, loc_of, tensor
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.sharding.bucketed import kind_of


def check_collectives(module: ModuleOp, mesh: Mesh) -> None:
    """Check every collective of a module.

    Raises:
        IrcError: ``collective-invalid`` naming the op and what does not fit.
    """
    for op in module.walk():
        if not isinstance(op, CollectiveOp | LocalChunkOp):
            continue
        problem = _axis_problem(op, mesh) or _size_problem(op, mesh)
        if problem is None and isinstance(op, CollectiveOp):
            problem = _wait_problem(op) or _bucket_problem(op)
        if problem is not None:
            raise IrcError(
                "collective-invalid",
                f"{op.name} ({id_of(op)}) {problem}",
                where=loc_of(op),
                because="the ranks of its group would wait for each other for ever",
            )


def collective_order(module: ModuleOp, name: str = "forward") -> Iterator[tuple[str, str, str]]:
    """Yield (axis, op, path-qualified id) of each start, in the order of every rank."""
    yield from _order(module, name, "")


def _order(module: ModuleOp, name: str, path: str) -> Iterator[tuple[str, str, str]]:
    for op in functions(module)[name].body.block.ops:
        if isinstance(op, CallOp):
            yield from _order(module, op.callee.string_value(), f"{path}{id_of(op)}/")
        elif isinstance(op, CollectiveOp):
            yield op.axis, op.name, path + id_of(op)


def _axis_problem(op: CollectiveOp | LocalChunkOp, mesh: Mesh) -> str | None:
    axis = op.axis
    return None if axis in mesh.names else f"runs over axis '{axis}', which mesh {mesh} lacks"


def _wait_problem(op: CollectiveOp) -> str | None:
    waits = [use.operation for use in op.outputs[0].uses]
    if len(waits) != 1 or not isinstance(waits[0], WaitOp):
        return f"is waited for {len(waits)} times"
    return None if waits[0].parent is op.parent else "is waited for in another function"


def _bucket_problem(op: CollectiveOp) -> str | None:
    """Say what keeps a bucket from beginning; asked of the first that is in it."""
    block = op.parent
    if op.bucket is None or block is None:
        return None
    started = [each for each in block.ops if isinstance(each, CollectiveOp)]
    started = [each for each in started if each.bucket == op.bucket]
    if started[0] is not op:
        return None
    if len(started) != op.bucket_size:
        return f"is in a bucket of {op.bucket_size}, of which {len(started)} start"
    if len({kind_of(each) for each in started}) > 1:
        return "is in a bucket with others of another kind"
    waits = {use.operation for each in started for use in each.outputs[0].uses}
    order = [each for each in block.ops if each in waits or each is started[-1]]
    return None if order[0] is started[-1] else "is waited for before all of its bucket start"


def _size_problem(op: CollectiveOp | LocalChunkOp, mesh: Mesh) -> str | None:
    source_shape = tensor(op.x).static_shape()
    result = op.result_tensor if isinstance(op, CollectiveOp) else tensor(op.outputs[0])
    result_shape, size, attrs = result.static_shape(), mesh.size(op.axis), op.plain
    if op.name == "comm.permute" and len(attrs["targets"]) != size:
        return f"has targets for {len(attrs['targets'])} ranks, and its groups have {size}"
    if isinstance(op, MarkedRowsOp):
        ranks = op.chunks.static_shape()[0]
        return None if ranks == size else f"has rows for {ranks} ranks, and its groups have {size}"
    split = attrs.get("split_dim", None if op.name == "comm.all_gather" else attrs.get("dim"))
    joined = attrs.get("concat_dim", attrs.get("dim") if op.name == "comm.all_gather" else None)
    expected = _scaled(source_shape, split, joined, size)
    if expected is None:
        return f"splits dim {split} of {list(source_shape)} among {size} ranks"
    if expected != result_shape:
        return (
            f"makes {list(expected)} of {list(source_shape)} on {size} ranks; "
            f"its type says {list(result_shape)}"
        )
    return None


def _scaled(
    shape: Sequence[int], split: int | None, joined: int | None, size: int
) -> tuple[int, ...] | None:
    scaled = list(shape)
    if joined is not None:
        scaled[joined] *= size
    if split is not None:
        if scaled[split] % size:
            return None
        scaled[split] //= size
    return tuple(scaled)
