"""Names of ops, for what runs without the IR: there xDSL need not be installed.

A plan's text names ops, and what reads it there compares with these. What has the IR at hand reads
the name of a flow op off its class. A test holds these names against the classes. The last are what
irc itself calls by ``flow.extern``.
"""

from __future__ import annotations

from typing import Final

ARG_REDUCE: Final = "flow.arg_reduce"
ATTENTION: Final = "flow.attention"
BROADCAST: Final = "flow.broadcast"
CONCAT: Final = "flow.concat"
CONSTANT: Final = "flow.constant"
CONTRACT: Final = "flow.contract"
CONVOLUTION: Final = "flow.convolution"
CUMULATIVE: Final = "flow.cumulative"
EXTERN: Final = "flow.extern"
GATHER: Final = "flow.gather"
GROUPED_CONTRACT: Final = "flow.grouped_contract"
GROUPED_OUTER: Final = "flow.grouped_outer"
IOTA: Final = "flow.iota"
PACKED_CONTRACT: Final = "flow.packed_contract"
PAD: Final = "flow.pad"
POINTWISE: Final = "flow.pointwise"
POOL: Final = "flow.pool"
RANDOM: Final = "flow.random"
REDUCE: Final = "flow.reduce"
RESHAPE: Final = "flow.reshape"
SCATTER: Final = "flow.scatter"
SLICE: Final = "flow.slice"
SORT: Final = "flow.sort"
TAKE: Final = "flow.take"
TOP_K: Final = "flow.top_k"
TRANSPOSE: Final = "flow.transpose"

OWN: Final = "irc::"
"""How the names of irc's own calls begin."""
EFFECT: Final = "irc::effect"
PLACE: Final = "irc::place"
RECURRENT: Final = "irc::recurrent"
VIEW: Final = "irc::View"
VJP: Final = "irc::vjp"
