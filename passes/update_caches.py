"""Pass ``update-caches``: rows of a cache are written where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.dialects.indexing import ScatterOp
from irc.plan.memories import INTO, decide, returned


@dataclass(frozen=True)
class UpdateCachesPass(ModulePass):
    """Let a scatter that gives the new value of a cache write into the caller's memory.

    A static key-value cache is a large tensor of which a call changes a few rows. Where nothing but
    the scatter reads the old value, and what it gives is the new one, the rows are written in
    place (``into``: which argument each result lies in) and nothing is copied.

    Before:

    ```mlir
    func.func @forward(%cache: !flow.tensor<[8, 4], f32> {role = "cache", name = "cache"},
        %at: !flow.tensor<[1, 4], i64> {role = "input", name = "at"},
        %row: !flow.tensor<[1, 4], f32> {role = "input", name = "row"})
        -> (!flow.tensor<[8, 4], f32> {role = "state", name = "cache"}) {
      %0 = flow.scatter(%cache, %at, %row) {fn = "set", dim = 0 : i64, loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[1, 4], i64>, !flow.tensor<[1, 4], f32>)
          -> !flow.tensor<[8, 4], f32>
      func.return %0 : !flow.tensor<[8, 4], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%cache: !flow.tensor<[8, 4], f32> {role = "cache", name = "cache"},
        %at: !flow.tensor<[1, 4], i64> {role = "input", name = "at"},
        %row: !flow.tensor<[1, 4], f32> {role = "input", name = "row"})
        -> (!flow.tensor<[8, 4], f32> {role = "state", name = "cache"}) {
      %0 = flow.scatter(%cache, %at, %row) {fn = "set", dim = 0 : i64, loc = "m.py:3", id = "n0",
          into = array<i64: 0>}
          : (!flow.tensor<[8, 4], f32>, !flow.tensor<[1, 4], i64>, !flow.tensor<[1, 4], f32>)
          -> !flow.tensor<[8, 4], f32>
      func.return %0 : !flow.tensor<[8, 4], f32>
    }
    ```

    A scatter that is a kernel is one of those that ``update-in-place`` looks at.
    """

    name = "update-caches"
    level: ClassVar[str] = "task"
    also_on: ClassVar[tuple[str, ...]] = ("spmd",)
    after: ClassVar[str] = "inline-blocks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = entry(op)
        caches = {value for role, _, value in arguments(func) if role == "cache"}
        for _, value, cache in returned(func):
            scatter = value.owner
            if (
                cache is not None
                and cache in caches
                and isinstance(scatter, ScatterOp)
                and scatter.fn == "set"
                and scatter.x is cache
                and cache.has_one_use()
                and tensor(cache) == tensor(value)
            ):
                decide(scatter, INTO, [cache.index])
