"""What attention kernels and those of its gradients share: blocks of heads, and where roles lie."""

from __future__ import annotations

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.scalar import times
from irc.dialects.attention import AttentionForm, KernelAttentionOp, Place
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError
from irc.kernels.arithmetic import held
from irc.kernels.form import Buffer, Form, Read, number
from irc.kernels.gpu.attention import with_sizes

WARPS, WARP = 4, 32
SHARED_LIMIT = 160 * 1024
NEVER = "(-INFINITY)"


class AttentionCode:
    """A kernel over heads of attention.

    Code names the batch dims ``i0``.., the key head ``g``, the query head that shares it ``r``, the
    part of the keys ``p`` and its first key ``first``.
    """

    threads = WARPS * WARP

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        self.form, self.attention = form, attention

    def element(self, role: str, s: str = "0", t: str = "first", feature: str = "") -> str:
        """Return the value of an input, halves as float.

        Args:
            role: of the input.
            s: the row.
            t: the key.
            feature: where the role has some.
        """
        place = self.attention.places[role]
        text = f"{self.form.buffer_name(place.buffer)}[{self.address(place, s, t, feature)}]"
        return f"irc_float({text})" if held(place.dtype) != place.dtype else text

    def target(self, role: str, s: str = "0", t: str = "first", feature: str = "") -> str:
        """Return the place of an output."""
        place = self.attention.places[role]
        return f"{self.form.buffer_name(place.buffer)}[{self.address(place, s, t, feature)}]"

    def address(self, place: Place, s: str, t: str, feature: str) -> str:
        """Return the element of a place."""
        count = len(self.attention.lead)
        names = [*(f"i{d}" for d in range(count)), "g", "r", s, "p", f"({t} - first)"]
        terms = [
            times(f"(long long){name}", stride)
            for name, stride in zip(names, place.strides, strict=True)
            if stride
        ]
        if place.feature and feature:
            terms.append(times(feature, place.feature))
        if place.offset or not terms:
            terms.append(str(place.offset))
        return " + ".join(terms)

    def check_shared(self, num_bytes: int, keys: int) -> None:
        """Refuse a kernel whose tiles are too large.

        Raises:
            IrcError: ``op-unsupported``.
        """
        if num_bytes > SHARED_LIMIT:
            raise IrcError(
                "op-unsupported",
                f"the CUDA backend has no attention over {self.attention.depth} features",
                where=f"kernel @{self.form.name}, {self.form.loc}",
                because=f"a tile of {keys} keys takes {num_bytes} bytes of shared memory",
                help="split the features among more heads",
            )


def read_attention(kernel: KernelOp, sizes: Read = number) -> tuple[Form, AttentionForm]:
    """Return a kernel of attention or its gradients: what all kernels have, and its own part.

    Args:
        kernel: the kernel.
        sizes: what its sizes become; those of gradients are numbers.
    """
    (op,) = kernel.body.block.ops
    assert isinstance(op, KernelAttentionOp | KernelAttentionBackwardOp), op
    attention = with_sizes(op.form, sizes)
    buffers = {place.buffer: Buffer(place.size, place.dtype) for place in attention.places.values()}
    sources = () if kernel.sources is None else tuple(s.data for s in kernel.sources)
    loc = kernel.attributes.get("loc")
    form = Form(
        name=kernel.sym_name.data,
        template=kernel.template.data,
        sizes=attention.space,
        num_parallel=kernel.num_parallel,
        tile=(1,) * kernel.num_parallel,
        options=kernel.tile_sizes,
        buffers=tuple(buffers[i] for i in range(len(kernel.args))),
        num_inputs=kernel.num_inputs.value.data,
        steps=(),
        sources=sources,
        mapping=str(kernel.task_mapping),
        loc="unknown" if loc is None else str(getattr(loc, "data", loc)),
        symbols=kernel.symbols,
    )
    missing = [b.dtype for b in form.buffers if b.dtype not in TYPES]
    if missing:
        raise InternalError(f"attention of {missing}")
    return form, attention
