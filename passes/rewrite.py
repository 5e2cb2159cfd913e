"""Pass ``rewrite``: what rules find is replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from irc.passes.canonicalize import simplify
from irc.rewrite.apply import rewrite
from irc.rewrite.library import builtin_rules, keep_texts, own_rules, read_texts


@dataclass(frozen=True)
class RewritePass(ModulePass):
    """Apply rewrite rules (``grammar/rewrite.lark``): those of irc, and of the files in ``rules``.

    irc's own recognise attention in the parts that exporters write, so that one kernel streams it.
    The module keeps the text of the user's (``irc.rules``), for `irc explain plan --rewrites`.

    A rule has a name, a form that is found, perhaps a condition, and what takes the form's place:

        rule sigmoid_by_parts
          let e = exp(-x)
          1 / (1 + e)
          where rank(x) >= 2 and dtype(x) in "f32 f64" and inside(e)
          => sigmoid(x)

    Conditions compare ``rank(x)``, ``size(x, dim)``, ``dtype(x)`` and numbers; ``inside(x)``: only
    ops that were found read x; ``fixed(x)``: a weight, or made of weights. Ops are those of `irc
    list ops`; the texts of a plan show their attributes: ``flow.attention(...) {scale = ...}``.

    Before:

    ```mlir
    func.func @forward(%q: !flow.tensor<[1, 2, 4, 8], f32>, %k: !flow.tensor<[1, 2, 6, 8], f32>,
        %v: !flow.tensor<[1, 2, 6, 8], f32>) -> !flow.tensor<[1, 2, 4, 8], f32> {
      %0 = flow.contract(%q, %k) {spec = "bhsd,bhtd->bhst", loc = "m.py:2", id = "n0"}
          : (!flow.tensor<[1, 2, 4, 8], f32>, !flow.tensor<[1, 2, 6, 8], f32>)
          -> !flow.tensor<[1, 2, 4, 6], f32>
      %1 = flow.reduce(%0) {fn = "max", dims = array<i64: 3>, keep_dims = true, loc = "m.py:3",
          id = "n1"} : (!flow.tensor<[1, 2, 4, 6], f32>) -> !flow.tensor<[1, 2, 4, 1], f32>
      %2 = flow.pointwise(%0, %1) {fn = "sub", loc = "m.py:3", id = "n2"}
          : (!flow.tensor<[1, 2, 4, 6], f32>, !flow.tensor<[1, 2, 4, 1], f32>)
          -> !flow.tensor<[1, 2, 4, 6], f32>
      %3 = flow.pointwise(%2) {fn = "exp", loc = "m.py:3", id = "n3"}
          : (!flow.tensor<[1, 2, 4, 6], f32>) -> !flow.tensor<[1, 2, 4, 6], f32>
      %4 = flow.reduce(%3) {fn = "sum", dims = array<i64: 3>, keep_dims = true, loc = "m.py:3",
          id = "n4"} : (!flow.tensor<[1, 2, 4, 6], f32>) -> !flow.tensor<[1, 2, 4, 1], f32>
      %5 = flow.pointwise(%3, %4) {fn = "div", loc = "m.py:3", id = "n5"}
          : (!flow.tensor<[1, 2, 4, 6], f32>, !flow.tensor<[1, 2, 4, 1], f32>)
          -> !flow.tensor<[1, 2, 4, 6], f32>
      %6 = flow.contract(%5, %v) {spec = "bhst,bhtd->bhsd", loc = "m.py:4", id = "n6"}
          : (!flow.tensor<[1, 2, 4, 6], f32>, !flow.tensor<[1, 2, 6, 8], f32>)
          -> !flow.tensor<[1, 2, 4, 8], f32>
      func.return %6 : !flow.tensor<[1, 2, 4, 8], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%q: !flow.tensor<[1, 2, 4, 8], f32>, %k: !flow.tensor<[1, 2, 6, 8], f32>,
        %v: !flow.tensor<[1, 2, 6, 8], f32>) -> !flow.tensor<[1, 2, 4, 8], f32> {
      %0 = flow.attention(%q, %k, %v) {loc = "m.py:4", id = "n6", scale = 1.000000e+00 : f64,
          is_causal = false}
          : (!flow.tensor<[1, 2, 4, 8], f32>, !flow.tensor<[1, 2, 6, 8], f32>,
             !flow.tensor<[1, 2, 6, 8], f32>) -> !flow.tensor<[1, 2, 4, 8], f32>
      func.return %0 : !flow.tensor<[1, 2, 4, 8], f32>
    }
    ```
    """

    name = "rewrite"
    level: ClassVar[str] = "flow"

    rules: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        texts = read_texts(self.rules)
        places = rewrite(op, (*own_rules(texts), *builtin_rules()))
        keep_texts(op, texts)
        if all(place.reason for place in places):
            return
        for func in op.body.block.ops:
            if isinstance(func, FuncOp) and not func.is_declaration:
                simplify(func.body.block)  # what rules leave behind: a transpose of a transpose
