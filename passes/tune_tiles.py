"""Pass ``tune-tiles``: GPU kernels take the tiles that were the fastest on the device at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.dialects.task import KernelOp
from irc.errors import IrcError, did_you_mean
from irc.kernels.gpu.limits import GPUS
from irc.kernels.gpu.tiles import with_tile
from irc.kernels.schedule import require_target
from irc.tune.tiles import best_tile, known_tile, load_tiles, timer_of


@dataclass(frozen=True)
class TuneTilesPass(ModulePass):
    """Replace the model's tile of a kernel by the one that took the least time.

    What was timed lies in a table by kernel and device (:mod:`irc.tune.tiles`); a kernel that is
    not in it keeps the model's choice, or, with ``times``, has its candidates timed on the device
    now. A tile is also a user's to choose: ``tiles`` names kernels and sizes.

    Run: tune-tiles{target=sm_90 tiles="k0_fill num_warps=8"}

    Before:

    ```mlir
    task.kernel @k0_fill {template = "rows", space = array<i64: 4096>, parallel = 1, num_inputs = 0,
        mapping = #task.map<spatial(4) * repeat(1024)>, tile = {num_warps = 4}} : {
    ^bb0(%0: !task.buffer<4096, f32>):
      %1 = task.constant() {value = array<f64: 1.0>} : () -> !task.value<f32, row>
      task.store(%1, %0) {offset = 0, strides = array<i64: 1>}
          : (!task.value<f32, row>, !task.buffer<4096, f32>) -> ()
    }
    ```

    After:

    ```mlir
    task.kernel @k0_fill {template = "rows", space = array<i64: 4096>, parallel = 1, num_inputs = 0,
        mapping = #task.map<spatial(4) * repeat(1024)>, tile = {num_warps = 8}} : {
    ^bb0(%0: !task.buffer<4096, f32>):
      %1 = task.constant() {value = array<f64: 1.0>} : () -> !task.value<f32, row>
      task.store(%1, %0) {offset = 0, strides = array<i64: 1>}
          : (!task.value<f32, row>, !task.buffer<4096, f32>) -> ()
    }
    ```

    A tile that is no candidate of the kernel any more is left in the table and not used.
    """

    name = "tune-tiles"
    level: ClassVar[str] = "task"
    after: ClassVar[str] = "split-reduction"

    target: str = "sm_90"
    device: str = ""
    backend: str = "triton"
    times: bool = False
    tiles: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        require_target(self.target, GPUS)
        kernels = {k.sym_name.data: k for k in op.body.block.ops if isinstance(k, KernelOp)}
        chosen = parse_tiles(self.tiles, kernels)
        table = load_tiles() if self.device else {}
        for name, kernel in kernels.items():
            if name in chosen:
                _replace(kernel, with_tile(kernel, {**kernel.tile_sizes, **chosen[name]}))
                continue
            tiled = known_tile(kernel, self.target, self.device, table) if table else None
            if tiled is None and self.times:
                timer = timer_of(self.backend)
                tiled = best_tile(kernel, self.target, self.device, timer).kernel
            if tiled is not None:
                _replace(kernel, tiled)


def _replace(old: KernelOp, new: KernelOp) -> None:
    block = old.parent
    assert block is not None
    block.insert_op_before(new, old)
    old.detach()
    old.erase()


def parse_tiles(text: str, kernels: dict[str, KernelOp]) -> dict[str, dict[str, int]]:
    """Read ``NAME size=number ..; NAME ..``.

    Raises:
        IrcError: ``option-value`` for a kernel or a size that is not there, or no number.
    """
    tiles: dict[str, dict[str, int]] = {}
    for statement in filter(None, map(str.strip, text.split(";"))):
        name, *sizes = statement.split()
        if name not in kernels:
            raise IrcError(
                "option-value",
                f"tiles names kernel '{name}', which the program lacks",
                help=did_you_mean(name, kernels),
            )
        known = kernels[name].tile_sizes
        for size in sizes:
            key, _, number = size.partition("=")
            if key not in known or not number.isdigit() or not int(number):
                raise IrcError(
                    "option-value",
                    f"'{size}' is no size of kernel '{name}'",
                    because=f"it has {', '.join(known) or 'none'}, each a positive number",
                    help=did_you_mean(key, known),
                )
            tiles.setdefault(name, {})[key] = int(number)
    return tiles
