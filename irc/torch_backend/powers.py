"""Powers of negative numbers, as code that means them.

torch.fx writes ``operator.pow(-2, x)`` as ``-2 ** x``, which is ``-(2 ** x)`` in Python.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

from torch.fx import GraphModule

OPERATOR: Any = vars(operator)["pow"]  # it is overloaded, in part without types


def keep_bases(gm: GraphModule) -> None:
    """Write powers of negative numbers as calls, in a graph and in those that it runs."""
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        powers = module.graph.find_nodes(op="call_function", target=OPERATOR, sort=False)
        negative = [node for node in powers if repr(node.args[0]).startswith("-")]
        for node in negative:
            node.target = builtins.pow
        if negative:
            module.recompile()
