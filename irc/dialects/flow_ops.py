"""All ops of level flow, and the dialect that they are."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Dialect

from irc.dialects.flow import CORE, FlowOp
from irc.dialects.indexing import INDEXING
from irc.dialects.literals import LITERALS
from irc.dialects.packed_products import PACKED
from irc.dialects.scans import SCANS
from irc.dialects.searches import SEARCHES
from irc.dialects.types import OpaqueType, ShapeAttr, SizeAttr, TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import WINDOWS

OPS: tuple[type[FlowOp], ...] = (
    *CORE, *LITERALS, *PACKED, *WINDOWS, *INDEXING, *SCANS, *SEARCHES, AttentionOp,
)  # fmt: skip
OP_BY_NAME: Mapping[str, type[FlowOp]] = {op.name: op for op in OPS}

Flow = Dialect("flow", [*OPS], [TensorType, OpaqueType, ShapeAttr, SizeAttr])
