"""How long a kernel takes on the GPU at hand: the clock behind tuned tiles and the GPU tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from irc.backends.triton.build import is_interpreted
from irc.backends.triton.file import TORCH, emit_kernel
from irc.backends.triton.segment import launcher
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.kernels.form import header, integer_bound, read
from irc.runtime.device import device_of

FLUSH_BYTES = 256 << 20
"""More than any L2 cache: between two timings, so that inputs come from memory."""
WARM, SAMPLES = 3, 10


def kernel_seconds(kernel: KernelOp) -> float:
    """Return the median seconds of a launch on random inputs; infinity for what cannot run here.

    Raises:
        IrcError: ``device-missing``, also in Triton's interpreter, which is no device.
    """
    import torch

    place = device_of("triton")
    if is_interpreted():
        raise IrcError(
            "device-missing",
            "tiles are timed on a GPU, and kernels run in Triton's interpreter here",
            help="unset TRITON_INTERPRET, or leave out tune=True",
        )
    whole = kernel.template.data in ("attention", "attention_backward")
    form = header(kernel) if whole else read(kernel)
    buffers: list[torch.Tensor] = []
    for index, buffer in enumerate(form.buffers):
        dtype = getattr(torch, TORCH[buffer.dtype])
        if dtype.is_floating_point:
            buffers.append(torch.randn(buffer.size, device=place).to(dtype))
        else:
            high = integer_bound(form, index)
            buffers.append(torch.randint(0, high, (buffer.size,), device=place).to(dtype))
    pointers = [buffer.data_ptr() for buffer in buffers]
    try:
        launch = launcher(emit_kernel(kernel))
        return event_seconds(lambda: launch(pointers), samples=SAMPLES, cold=True)
    except IrcError:
        raise
    except Exception:
        # Too much shared memory or too many registers for this device: no candidate.
        return float("inf")


def event_seconds(
    run: Callable[[], object], *, samples: int = SAMPLES, cold: bool = False
) -> float:
    """Return the median seconds of a call on the device, after three that do not count.

    Args:
        run: enqueues work.
        samples: how many calls.
        cold: clear the cache in front of each.
    """
    import torch

    flush = torch.empty(FLUSH_BYTES if cold else 0, dtype=torch.uint8, device="cuda")
    for _ in range(WARM):
        run()
    pairs: list[tuple[Any, Any]] = []
    for _ in range(samples):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    times_ms: list[float] = sorted(start.elapsed_time(end) for start, end in pairs)
    return times_ms[len(times_ms) // 2] / 1e3
