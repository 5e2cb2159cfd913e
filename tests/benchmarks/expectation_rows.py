"""What people expect of a tool such as irc: one row each, with a command that proves it.

A command runs in a folder that holds `FILES` and what `PREPARED` makes there: ``plan`` (four ranks,
a call), ``tensor`` (weights in parts), ``steps`` (training in two stages), ``model.onnx``,
``onnx`` (the plan of it).
"""

from __future__ import annotations

from dataclasses import dataclass

NET = '''
import torch
from torch import nn


class Net(nn.Module):
    """An MLP of two layers."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def build():
    torch.manual_seed(0)
    return Net(), (torch.randn(16, 64),)


def train():
    torch.manual_seed(0)
    return nn.Sequential(Net(), Net()), (torch.randn(16, 64), torch.randn(16, 64))


def loss(output, target):
    return (output - target).square().mean()
'''

TORCH = """
import dataclasses
import sys
import warnings

import torch
from torch import nn

import irc
from net import Net

x, net = torch.randn(16, 64), Net()


def close(a, b):
    torch.testing.assert_close(a, b)
    print("equal to eager")


def branch(x):
    return x * 2 if x.sum() > 0 else x - 1


def item(x):
    return x * x.sum().item() + x[x > 0].sum()


def cond(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def transforms(x):
    return torch.func.vmap(torch.func.grad(lambda r: r.sin().sum()))(x)


@dataclasses.dataclass
class Out:
    value: torch.Tensor


def dataclass(x):
    return Out(x * 2)


def printing(x):
    print("hello")
    return x + 1


def same(f):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got, want = irc.compile(f)(x), f(x)
    for each in said:
        print(each.message)
    close(getattr(got, "value", got), getattr(want, "value", want))


def exported():
    close(irc.compile(torch.export.export(net, (x,)))(x), net(x))


def explained():
    compiled = irc.compile(net)
    compiled(x)
    print(irc.explain(compiled))


def explained_by_torch():
    compiled = torch.compile(branch, backend="irc")
    compiled(x)
    print(irc.explain(compiled))


def explained_step():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    step = irc.compile_step(model, loss=torch.nn.functional.mse_loss, micro_batches=2)
    step(torch.ones(4, 8), torch.zeros(4, 4))
    print(irc.explain(step))


def fullgraph():
    irc.compile(branch, fullgraph=True)(x)


def strict():
    irc.compile(item, strict=True)(x)


def mode():
    irc.compile(net, mode="no-such-mode")(x)


def notebook():
    print(irc.load("onnx")._repr_html_())


def decorator():
    close(irc.compile(net)(x), net(x))


def backend():
    close(torch.compile(net, backend="irc")(x), net(x))


def call():
    irc.compile(net)(x)


argument = sys.argv[1]
known = globals()[argument]
if argument in ("branch", "item", "cond", "transforms", "dataclass", "printing"):
    same(known)
else:
    known()
"""

ONNX = """
import torch
from net import build

module, args = build()
torch.onnx.export(module, args, "model.onnx", dynamo=True, input_names=["x"],
                  dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=512)},), verbose=False)
"""


SWITCHES = "SwitchName=leaf[1-2] Nodes=n[1-4]\n"

MATRIX = "\n".join(
    [
        "\t".join(["", "GPU0", "GPU1", "CPU Affinity"]),
        "GPU0\t X \tNV18\t0-55",
        "GPU1\tNV18\t X \t0-55",
    ]
)

CRASHES = """
import sys

from xdsl.dialects.builtin import StringAttr

from irc.passes.fuse import FusePass
from irc.reproduce import onnx_failure

fuse = FusePass.apply


def planted(self, ctx, op):
    if any(each.properties.get("fn") == StringAttr("relu") for each in op.walk()):
        raise KeyError("planted")
    fuse(self, ctx, op)


FusePass.apply = planted
onnx_failure.SERVE = (
    "import irc.frontends.onnx.elementwise as e; d = dict(e.UNARY); d['Relu'] = 'abs'; e.UNARY = d;"
    + onnx_failure.SERVE
)

if __name__ == "__main__":
    from irc.cli import main

    sys.exit(main())
"""

FILES = {
    "crashes.py": CRASHES,
    "net.py": NET,
    "uses.py": TORCH,
    "write_onnx.py": ONNX,
    "node.txt": MATRIX,
}

PREPARED = (
    "irc compile net.py:build -o plan --mesh data=2,tensor=2 --cluster 4xH100",
    "irc compile net.py:build -o tensor --mesh tensor=2 --cluster demo-gpus"
    " --pins '\"*.weight\" = [tensor = S(0)]'",
    "irc compile net.py:train -o steps --train --loss net.py:loss --mesh pipe=2 --micro-batches 4",
    "python write_onnx.py",
    "irc compile model.onnx -o onnx",
)


@dataclass(frozen=True)
class Row:
    """Something that people expect.

    Attributes:
        what: in a few words.
        command: a line for the shell that shows it.
        says: a regular expression that its output has; of a file in ``file``, where that is named.
        status: its exit status.
        file: what it writes.
    """

    what: str
    command: str
    says: str
    status: int = 0
    file: str = ""


SEEN = (
    Row(
        "a report of a plan as one offline page",
        "irc report plan -o plan.html",
        r"(?s)<html.*tensor.*</html>",
        file="plan.html",
    ),
    Row(
        "a measured run in the report",
        "irc run steps --steps 2 --trace run.json && irc report steps --run run.json -o run.html",
        r"(?s)measured.*</html>",
        file="run.html",
    ),
    Row(
        "a plan beside another in the report",
        "irc report plan --beside tensor -o two.html",
        r"(?s)tensor=2.*</html>",
        file="two.html",
    ),
    Row(
        "a predicted timeline for Perfetto",
        "irc simulate steps --trace t.json",
        '"traceEvents"',
        file="t.json",
    ),
    Row(
        "a measured timeline for Perfetto",
        "irc run steps --steps 2 --trace m.json",
        '"traceEvents"',
        file="m.json",
    ),
    Row(
        "measured held against predicted",
        "irc simulate steps --trace a.json && irc run steps"
        " --steps 2 --trace b.json && irc compare a.json b.json",
        r"kernels|lost",
    ),
    Row("a schedule drawn", "irc schedule draw steps -o s.svg", r"<svg", file="s.svg"),
    Row("plans shown in notebooks", "python uses.py notebook", r"<(table|div|section)"),
)

EXPLAINED = (
    Row("what was compiled of a module, and what not", "python uses.py explained", r"kernel"),
    Row(
        "the same behind torch.compile",
        "python uses.py explained_by_torch",
        r"(?s)kernel.*break.*uses\.py:\d+",
    ),
    Row(
        "the same of a step in micro-batches",
        "python uses.py explained_step",
        r"(?s)schedule 1f1b.*backward pass.*optimiser",
    ),
    Row("a log of graphs, fall-backs, recompiles", "IRC_LOGS=all python uses.py call", r"graph"),
    Row("why a placement and not another", "irc explain plan plan --op '*' --why-not 'B,B'", r"B"),
    Row(
        "which ops are one kernel, and why",
        "irc explain plan plan --fusion",
        r"one kernel|[Nn]ot fused",
    ),
    Row(
        "which collectives compute hides", "irc explain plan tensor --overlap", r"hid|expos|compute"
    ),
    Row("what differs between two plans", "irc diff plan tensor", r"mesh"),
    Row("the first op that differs from eager", "irc check plan", r"agrees with eager"),
    Row("one graph or an error with the line", "python uses.py fullgraph", r"uses\.py.*\d+", 1),
    Row("nothing left to torch, or an error", "python uses.py strict", r"strict|uses\.py", 1),
    Row("unknown modes refused by name", "python uses.py mode", r"no-such-mode", 1),
)

RUNS = (
    Row("a module compiled in one line", "python uses.py decorator", r"equal to eager"),
    Row("behind torch.compile", "python uses.py backend", r"equal to eager"),
    Row("branches on values", "python uses.py branch", r"(?s)uses\.py.*equal to eager"),
    Row(".item() and masks", "python uses.py item", r"equal to eager"),
    Row("torch.cond", "python uses.py cond", r"equal to eager"),
    Row("vmap of grad", "python uses.py transforms", r"equal to eager"),
    Row("dataclasses as results", "python uses.py dataclass", r"equal to eager"),
    Row("exported programs", "python uses.py exported", r"equal to eager"),
    Row(
        "an ONNX file whose sizes stay open",
        "irc compile model.onnx -o onnx --force && irc run onnx --size batch=6",
        r"OK",
    ),
)

LAUNCHED = (
    Row("torchrun", "irc launch plan | sh -n && irc launch plan", r"exec torchrun"),
    Row(
        "Slurm",
        "irc launch plan --format slurm --partition gpu --time 2:00:00 | tee s.sh | bash -n"
        " && cat s.sh",
        r"#SBATCH --partition=gpu",
    ),
    Row("Kubeflow", "irc launch plan --format kubeflow --image lab/irc:1", r"kind: TrainJob"),
    Row("SkyPilot", "irc launch plan --format skypilot", r"num_nodes"),
    Row("TorchX", "irc launch plan --format torchx", r"torchx run"),
    Row("plain ssh", "irc launch plan --format ssh --hosts a", r"BatchMode"),
    Row("processes on this machine", "irc run plan", r"OK"),
    Row(
        "machines described by their own tools",
        "irc cluster import node.txt --kind H100 --nodes 2",
        r"devices = 4",
    ),
)

TERMINAL = (
    Row("did you mean", "irc complie", r"did you mean 'compile'", 2),
    Row("exit codes in --help", "irc --help", r"Exit codes"),
    Row("results as JSON", "irc explain plan plan --json | python -m json.tool", r"\{"),
    Row("a check, a run and times as JSON", "for c in check run 'tune --rounds 1 --anyway'; do"
        " irc $c plan --json | python -m json.tool || exit; done",
        r'(?s)"agrees".*"ok": true.*"rows"'),
    Row("clusters and schedules as JSON", "irc cluster show 8xH100 --json | python -m json.tool &&"
        " irc schedule show 1f1b --ranks 4 --micro-batches 8 --json | python -m json.tool",
        r'(?s)"device".*"makespan"'),
    Row("a mesh that divides nothing is said, and a pin",
        "irc compile net.py:build -o idle --force --mesh tensor=2 --cluster 8xH100",
        r"tensor divides nothing over its 2 ranks; --pins '.*' divides that"),
    Row("an empty axis of a mesh refused", "irc compile net.py:build -o x --mesh 'data=2,,'",
        r"mesh-syntax(?s:.*)an axis is missing", 2),
    Row("placements as DTensor writes them", "irc explain plan tensor --placements dtensor",
        r"\[Shard\(0\)\]"),
    Row("completion in a shell", "irc completion bash | bash -n && irc completion bash", r"launch"),
    Row("a reference of the Python names", "irc docs -o site --force && cat site/irc.html",
        r'id="compile_step"|irc-compiler\[docs\]'),
    Row("an error explained", "irc explain error sharding-infeasible", r"(?i)memory|budget"),
    Row("too little memory said before a search", "irc plan net.py:train --train --loss net.py:loss"
        " --cluster 4xL4 --memory 1kB", r"--memory|smallest|budget", 4),
    Row("stopped at a phase, changed by a pass, gone on with",
        "irc compile net.py:build --to flow -o stopped.mlir --force"
        " && irc opt stopped.mlir -p canonicalize -o stopped.mlir"
        " && irc compile stopped.mlir --from flow -o went --force && irc run went", r"OK"),
    Row("a difference of plans as DTensor writes it", "irc diff plan tensor --placements dtensor",
        r"-> \[(Shard|Replicate)"),
    Row("steps of a long run on a terminal, and the time left",
        "python -c \"import pty; pty.spawn(['irc', 'run', 'steps', '--steps', '400'])\"",
        r"step \d+ of 400, about \d+ s"),
    Row("passes run on text", "irc opt plan/ir/00-capture.mlir -p canonicalize", r"flow"),
)  # fmt: skip

BROKEN = (
    Row(
        "a crash that can be run again",
        "rm -rf left; IRC_REPRODUCERS=left python crashes.py opt plan/ir/00-capture.mlir -p fuse"
        " ; python crashes.py replay left/*",
        r"in the same way",
        1,
    ),
    Row(
        "a failing program made small",
        "python crashes.py reduce plan/ir/00-capture.mlir -p fuse -o small.mlir",
        r"ops +5 -> 1 ",
    ),
    Row(
        "an ONNX file that fails made small",
        "python crashes.py reduce model.onnx -o small.onnx",
        r"ops +\d+ -> 1 ",
    ),
    Row(
        "a report of a bug without names",
        "rm -f bug.zip && irc bug-report -o bug.zip && python -m zipfile -l bug.zip",
        r"environment\.json",
    ),
    Row("a plug-in that breaks harms no other", "irc list passes", r"fuse"),
)

ROWS = (*SEEN, *EXPLAINED, *RUNS, *LAUNCHED, *TERMINAL, *BROKEN)
