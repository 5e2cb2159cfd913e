"""An op without a kernel of its own is a definition with its record, a reference and its names.

Three files of a copy of irc are added to, four with an operator of ONNX, and the op is captured,
typed, priced, split over ranks, differentiated and run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from irc.dialects.flow_ops import OP_BY_NAME

ROOT = Path(__file__).parents[2]
ADDED = {
    "irc/dialects/searches.py": """
@flow_op
class KthOp(FlowOp):
    \"\"\"The k-th smallest value along ``dim``, which has size 1 then, and its index.\"\"\"

    name = "flow.kth"
    x = operand(0)
    k = integer_field()
    dim = integer_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=lambda attrs, operands: _chosen({**attrs, "k": 1}, operands),
        rule=_top_k_rule,
        flops=_comparisons,
        derivative=_sent_back,
        refusal="the searched dim has to be on one rank: the others split",
    )


SEARCHES = (*SEARCHES, KthOp)
""",
    "irc/runtime/flow_ops/reductions.py": """
def _kth(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    return tuple(torch.kthvalue(inputs[0], attrs["k"], attrs["dim"], True))


KERNELS = {**KERNELS, "flow.kth": _kth}
""",
    "irc/frontends/torch/reductions.py": """
from irc.dialects.searches import KthOp


@lowers("kthvalue")
def kthvalue(
    t: Lowering, self: SSAValue, k: Dim, dim: int = -1, keepdim: bool = False
) -> list[SSAValue]:
    \"\"\"Return the k-th smallest, and where it stands.\"\"\"
    shape, at = tensor(self).shape, dim_of(dim, tensor(self).ndim)
    made = t.b.ops(KthOp, [self], k=number(k), dim=at)
    if keepdim:
        return made
    return [t.b.reshape(value, (*shape[:at], *shape[at + 1 :])) for value in made]
""",
}
PROGRAM = """
import torch

import irc
from irc.dialects.searches import KthOp
from irc.dialects.text import dump, load
from irc.frontends.torch.capture import capture
from irc.ops.refusals import refusal
from irc.ops.rules import rule_of
from irc.ops.work import flops


class Net(torch.nn.Module):
    def forward(self, x):
        values, index = torch.kthvalue(x * 2, 3, 1)
        return values + 1, index


x = torch.randn(6, 8, requires_grad=True)
program = capture(Net(), (x.detach(),)).program
(op,) = [op for op in program.module.walk() if isinstance(op, KthOp)]
assert (op.k, op.dim) == (3, 1)
assert str(rule_of(op)) == "(a b) -> (a 1, a 1) whole(b)", rule_of(op)
assert flops(op) == 48 * 3 and "on one rank" in refusal(op)[0]
text = dump(program.module)
assert "flow.kth" in text and dump(load(text)) == text
wanted, at = Net()(x)
got, found = irc.compile(Net())(x)
torch.testing.assert_close(got, wanted)
assert torch.equal(found, at)
(mine,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (got, wanted))
torch.testing.assert_close(mine, theirs)
irc.export_plan(Net(), (x.detach(),), out="plan", mesh="data=2")
print(irc.__file__)
"""


def test_an_op_is_added_in_three_files(tmp_path: Path) -> None:
    assert "flow.kth" not in OP_BY_NAME, "choose another op"
    assert len(ADDED) <= 3
    shutil.copytree(ROOT / "irc", tmp_path / "irc", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in ADDED.items():
        with (tmp_path / name).open("a") as file:
            file.write(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip().splitlines()[-1]).is_relative_to(tmp_path)
