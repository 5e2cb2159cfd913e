"""What the systems of published runs move beside what irc's kernels would: bytes, from their code.

irc fuses what these systems ran as kernels of their own, and divides over ``tensor`` what they
computed on every rank. The bytes of the difference are counted here, element by element, and priced
at the bandwidth of the device. The first flash attention takes twice the time of the second one,
which irc prices (arXiv:2307.08691, abstract); what waits for what is said in
:mod:`tests.benchmarks.published_waits`. Nothing is fitted to runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.cluster.device import Device
from irc.cost.kernels import shape_work
from irc.cost.roofline import roofline_s
from irc.ops.shapes import Attention, Product
from tests.benchmarks.published_runs import Run

HALF, SINGLE, MASK = 2, 4, 1
"""Bytes of an element in half and in single precision, and of a mask."""
WITH_DROPOUT = ("sc21", "korthikanti22", "bloom")
"""Sources whose models drop elements, as the papers and BLOOM's notes say ("The default Megatron-LM
dropout settings are inherited", train/tr11-176B-ml); masks are stored."""
CUDA_11 = ("bloom",)
"""Sources that ran on CUDA 11.3 to 11.5, as their notes say."""
ALIGNED_BYTES = 16
"""Tensor cores are fed in pieces of so many bytes: where rows begin elsewhere, cuBLAS multiplied
halves on plain units up to version 10.2 (NVIDIA, "Matrix Multiplication Background User's Guide",
table 1), and has kernels ``fp16_sgemm_fp16`` for that in 11 as well. Which of them version 11 took
for batches whose matrices begin elsewhere, as those of heads do, is published nowhere; these are
assumed, as tensor cores would be several times as fast as what BLOOM's notes measured."""
CONVERTED = (64 + 16) / 64
"""Instructions for a multiplication of halves on plain units, whose sums are single: of an 8 x 8
tile, the largest whose sums fit a thread's registers, 64 beside the 16 that widen its operands."""
FIRST_FLASH = ("mpt",)
"""Sources that ran the first flash attention, in Triton."""
FUSED_SUMS = ("vocabpar24",)
"""Sources whose products of weights' gradients add to sums of single precision themselves."""


@dataclass(frozen=True)
class Extra:
    """Seconds of a micro-batch on a rank, forward and backward."""

    forward: float = 0.0
    backward: float = 0.0


NONE = Extra()


def of_layer(run: Run, device: Device) -> Extra:
    """Return what a layer takes more."""
    forward, backward = layer_bytes(run)
    attention = [0.0, 0.0]
    if run.source in FIRST_FLASH:
        s, heads = run.sizes, run.micro_samples * run.sizes.heads / run.tensor
        for number, products in enumerate((4, 10)):
            shape = Attention(
                int(heads), s.seq, s.seq, products * s.width, causal=True, backward=number == 1
            )
            attention[number] = shape_work(device, shape) / device.flops("bf16")
    if not run.sizes.is_flash:
        attention = list(scores_s(run, device))
    return Extra(
        forward / device.bytes_per_s + attention[0], backward / device.bytes_per_s + attention[1]
    )


def scores_s(run: Run, device: Device) -> tuple[float, float]:
    """Return what stored scores take more than irc's, forward and backward: less, where it can be.

    The systems mask, scale and divide scores in one kernel, which reads and writes halves. irc
    keeps scores in single precision between its kernels, and a rounded copy for backward.
    """
    s = run.sizes
    batch = run.micro_samples * s.heads // run.tensor
    count = batch * s.seq**2
    is_plain = run.source in CUDA_11 and s.width * HALF % ALIGNED_BYTES > 0

    def more(product: Product, stored: int, own: int) -> float:
        read = 2 * HALF * batch * s.seq * s.width
        work = shape_work(device, product, "bf16")
        plain = CONVERTED * shape_work(device, product, "f32")
        theirs = roofline_s(
            device,
            flops=plain if is_plain else work,
            num_bytes=read + stored * count,
            dtype="f32" if is_plain else "bf16",
        )
        return theirs - roofline_s(device, flops=work, num_bytes=read + own * count, dtype="bf16")

    # Of the gradients, that of what a score weighs is a product like the scores, and those of
    # values, queries and keys are like the sums of values.
    scores, sums = Product(batch, s.seq, s.seq, s.width), Product(batch, s.seq, s.width, s.seq)
    of_sums = more(sums, HALF, HALF)
    forward = more(scores, HALF, SINGLE + HALF) + of_sums
    backward = more(scores, HALF, SINGLE) + 3 * of_sums
    softmax = (HALF - SINGLE) * count / device.bytes_per_s  # a reading of each pass
    return forward + softmax, backward + softmax


def layer_bytes(run: Run) -> tuple[float, float]:
    """Return the bytes that a layer moves more, forward and backward."""
    s, parts = run.sizes, run.tensor
    tokens = run.micro_samples * s.seq
    forward = backward = 0.0
    # The activation is a kernel: it reads and writes, and backward reads the gradient as well. irc
    # has it in the products beside.
    units = tokens * s.ffn / parts
    forward += units * (5 * HALF if s.is_llama else 2 * HALF)
    backward += units * (5 * HALF if s.is_llama else 2 * HALF)
    if parts > 1 and not run.divides_sequences:
        # Two norms (read, write) and two residual sums (read twice, write), whole on each rank; of
        # their gradients three passes each.
        whole = tokens * s.hidden * HALF * (1 - 1 / parts)
        forward += 10 * whole
        backward += 12 * whole
    # Both sums with the residual are kernels. Where nothing is summed over ranks before, irc has
    # them in the products, whose results are not written and read again.
    sums = 2 * tokens * s.hidden / (parts if run.divides_sequences else 1)
    if parts == 1:
        forward += sums * 2 * HALF
    if run.source in WITH_DROPOUT:
        scores = run.micro_samples * s.heads / parts * s.seq**2
        forward += scores * (2 * HALF + MASK) + sums * MASK
        backward += (scores + sums) * (2 * HALF + MASK)
    if run.micro_batches > 1 and not run.is_stored_split:
        backward += layer_weights(run) * _sum_bytes(run)
    return forward, backward


def layer_weights(run: Run) -> float:
    """Return how many weights of a layer a rank of ``tensor`` has."""
    s = run.sizes
    return (4 * s.hidden**2 + (3 if s.is_llama else 2) * s.hidden * s.ffn) / run.tensor


def _sum_bytes(run: Run) -> int:
    """Return what a gradient's sum over micro-batches moves beside irc's, which is half."""
    if run.source in FUSED_SUMS:
        return 2 * SINGLE - 2 * HALF
    if "reduce=float32" in run.precision:
        return 2 * HALF + 2 * SINGLE - 2 * HALF
    return 2 * HALF  # the gradient is written, and read again


def of_head(run: Run, device: Device) -> Extra:
    """Return what the loss takes more."""
    forward, backward = head_bytes(run)
    return Extra(forward / device.bytes_per_s, backward / device.bytes_per_s)


def head_bytes(run: Run) -> tuple[float, float]:
    """Return the bytes that the loss moves more, of logits that are kept in single precision.

    Megatron-LM (``vocab_parallel_cross_entropy``): a copy in single precision, the maximum, the
    difference, its exponential, their sum, the quotient; backward scales it and rounds it. torch: a
    copy, log-softmax in two readings; backward fills zeros, multiplies, rounds. irc reads half
    logits once, and backward reads and writes them.
    """
    logits = run.micro_samples * run.sizes.seq * run.sizes.vocab / run.tensor
    if run.source == "mpt":
        forward, backward = HALF + SINGLE + 3 * SINGLE, SINGLE + 3 * SINGLE + SINGLE + HALF
    else:
        forward = HALF + SINGLE + SINGLE + 2 * SINGLE + 2 * SINGLE + SINGLE + 2 * SINGLE
        backward = 2 * SINGLE + SINGLE + HALF
    return logits * (forward - HALF), logits * (backward - 2 * HALF)
