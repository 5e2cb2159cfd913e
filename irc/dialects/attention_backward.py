"""``task.attention_backward``: gradients of attention, the one op of a kernel of that template.

Its space is that of ``task.attention``, ``[*lead, G, R, S, P, C]``; a task is one head of keys,
``[*lead, G]``, and what is inside of it the backend divides: gradients of keys and values add up
over rows, gradients of queries over keys (FlashAttention-2, arXiv:2307.08691, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.utils.exceptions import VerifyException

from irc.dialects.attention import (
    FLOATS,
    AttentionForm,
    Place,
    read_form,
    verify_places,
    verify_roles,
    verify_space,
)
from irc.dialects.fields import (
    flag_field,
    integer_field,
    integers_field,
    number_field,
    texts_field,
)
from irc.dialects.flow import flow_op
from irc.dialects.task import KernelBodyOp

INPUTS = ("g", "q", "k", "v", "sums", "delta", "mask", "start", "dq0", "dk0", "dv0")
OUTPUTS = ("dq", "dk", "dv")
NEEDED = frozenset({"g", "q", "k", "v", "sums", "delta"})
BEFORE = {"dq": "dq0", "dk": "dk0", "dv": "dv0"}
"""What a result is added to."""


@flow_op
class KernelAttentionBackwardOp(KernelBodyOp):
    """Store the gradients of q, k and v, or some of them, given that of attention's result.

    With scores ``s = q k^T * scale + mask`` in float32, ``p = exp(s - sums)``, zero where masked::

        dv = p^T g      ds = p * (g v^T - delta) * scale      dq = ds k      dk = ds^T q

    ``sums`` are the log-sums of forward, and ``delta`` is ``sum(g * y)`` of each row: both of all
    keys, also where k and v are a part of them. Rows whose log-sum is minus infinity give zeros.
    Masks, ``start`` and ``causal`` are those of ``task.attention``. ``dq0``, ``dk0`` and ``dv0``
    are added. Where the keys have several parts, dq is float32, and that of each part.
    """

    name = "task.attention_backward"
    roles = texts_field()
    offsets = integers_field()
    strides = integers_field()
    keys = integer_field()
    features = integers_field()
    scale = number_field()
    causal = flag_field()

    @property
    def form(self) -> AttentionForm:
        """The kernel as plain data."""
        return read_form(self)

    def verify_(self) -> None:
        kernel, roles = self.kernel, self.roles
        if kernel.num_parallel != len(kernel.space_extents) - 4:
            raise VerifyException("the tasks of task.attention_backward are [*lead, G]")
        verify_roles(self, (*INPUTS, *OUTPUTS), NEEDED)
        if not set(roles) & set(OUTPUTS):
            raise VerifyException("task.attention_backward gives no gradient")
        form = self.form
        verify_space(form)
        if form.parts > 1 and "dq0" in roles:
            raise VerifyException("several parts give the dq of each, and continue nothing")
        for role, place in form.places.items():
            _verify_dtype(role, place, form)
            if role in BEFORE.values() and role[:2] not in roles:
                raise VerifyException(f"{role} is added to {role[:2]}, which is not there")
        verify_places(form, kernel, OUTPUTS)


def _verify_dtype(role: str, place: Place, form: AttentionForm) -> None:
    own = form.places["q"].dtype
    allowed: Sequence[str] = (own,)
    match role:
        case "mask":
            allowed = ("i1", *FLOATS)
        case "start":
            allowed = ("i64", "i32")
        case "sums" | "delta":
            allowed = ("f32",)
        case "dq" if form.parts > 1:
            allowed = ("f32",)
        case "dq" | "dk" | "dv" | "dq0" | "dk0" | "dv0":
            allowed = (own, "f32")
        case _:
            if own not in FLOATS:
                raise VerifyException(f"task.attention_backward of {own}")
    if place.dtype not in allowed:
        raise VerifyException(f"{role} is {place.dtype}, not {' or '.join(allowed)}")
