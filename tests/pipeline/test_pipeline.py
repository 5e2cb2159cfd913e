"""The pipeline: what runs in which order, where plug-ins go, and what checks each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

import irc.plugin
from irc.cli import main
from irc.dialects.flow import PointwiseOp
from irc.dialects.placement import Mesh
from irc.dialects.task import KernelPointwiseOp
from irc.dialects.text import dump, load
from irc.errors import InternalError, IrcError
from irc.frontends.torch.capture import capture
from irc.passes import BUILTIN
from irc.pipeline import Options, default_pipeline, lower, make_plan, run_passes
from irc.pipeline.default import passes_by_part
from irc.pipeline.memory import MEMORY
from irc.pipeline.order import ORDER
from irc.pipeline.training import Training
from irc.program import Program
from irc.train import training_of, training_program
from tests.models.gpt import GPT, GPTConfig

TWO_BY_TWO = Mesh.parse("data=2,tensor=2")
FLOW = ["canonicalize", "rewrite", "stream-cross-entropy"]
RANKS = ["lower-externs", "pack-quantized", "merge-matmuls", "fuse"]
EXCHANGES = ["hoist-collectives", "slice-batch", "chunk-collectives", "bucket-collectives"]
LINKED = ["chunk-experts", "lower-externs", *EXCHANGES, *RANKS[1:]]
KERNELS = ["map-tasks", "merge-launches"]
ONE_DEVICE = [*FLOW, *RANKS, *KERNELS]
PLACED = [*FLOW, "auto-shard", "plan-rings"]
DISTRIBUTED = [*PLACED, "lower-boxing", *LINKED, *KERNELS, "order"]


@dataclass(frozen=True)
class Quiet(ModulePass):
    """A plug-in's pass that does nothing."""

    name = "quiet"
    level: ClassVar[str] = "flow"

    def apply(self, ctx: Context, op: ModuleOp) -> None: ...


class AfterFuse(Quiet):
    """The same, behind a pass that it names."""

    name = "after-fuse"
    level: ClassVar[str] = "spmd"
    after: ClassVar[str] = "fuse"


class AfterDifferentiate(Quiet):
    """Goes after a pass that training alone runs."""

    name = "after-differentiate"
    after: ClassVar[str] = "differentiate"


class AfterOrder(Quiet):
    """Goes after a pass that one device does not run."""

    name = "after-order"
    level: ClassVar[str] = "task"
    after: ClassVar[str] = "order"


class OnKernels(Quiet):
    """Goes where its level ends."""

    name = "on-kernels"
    level: ClassVar[str] = "task"


class OnPlacements(Quiet):
    """Needs a mesh."""

    name = "on-placements"
    level: ClassVar[str] = "flow+sbp"


class OnRanks(Quiet):
    """Goes before kernels are made."""

    name = "on-ranks"
    level: ClassVar[str] = "spmd"


class GeluToTanh(Quiet):
    """A wrong pass: it takes one function for another."""

    name = "gelu-to-tanh"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in op.walk():
            if isinstance(each, PointwiseOp | KernelPointwiseOp) and each.fn == "gelu":
                each.properties["fn"] = StringAttr("tanh")


class DropReturn(Quiet):
    """A broken pass: it leaves a function without an end."""

    name = "drop-return"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        last = next(iter(op.body.block.ops)).regions[0].block.last_op
        assert last is not None
        last.detach()
        last.erase()


PLUGINS: dict[str, type[ModulePass]] = {
    each.name: each
    for each in (
        AfterDifferentiate,
        AfterFuse,
        AfterOrder,
        DropReturn,
        GeluToTanh,
        OnKernels,
        OnPlacements,
        OnRanks,
        Quiet,
    )
}


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    find = irc.plugin.find_pass

    def find_with_plugins(name: str) -> type[ModulePass]:
        return PLUGINS.get(name) or find(name)

    monkeypatch.setattr(irc.plugin, "find_pass", find_with_plugins)


def names(options: Options) -> list[str]:
    return [each.name for each in default_pipeline(options)]


def small_gpt() -> Program:
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, hidden=24, heads=2, block=10, vocab=17)).eval()
    return capture(model, (torch.randint(0, 17, (4, 10)),)).program


def test_the_order_of_passes() -> None:
    on_ranks = [*DISTRIBUTED, *MEMORY]
    assert names(Options()) == [*ONE_DEVICE, *MEMORY]
    assert names(Options(mesh=Mesh.parse("data=1"))) == [*ONE_DEVICE, *MEMORY]
    assert names(Options(mesh=TWO_BY_TWO)) == on_ranks
    assert names(Options(mesh=TWO_BY_TWO, sizes={"B": 4})) == ["bind-sizes", *on_ranks]


def test_choices_reach_their_pass() -> None:
    chosen = Options(
        mesh=TWO_BY_TWO, cluster="8xH100", pins="w = [data = B]", sizes={"B": 4, "S": 7}
    )
    specs = {each.name: each for each in default_pipeline(chosen)}
    assert vars(specs["bind-sizes"])["sizes"] == "B=4,S=7"
    shard = vars(specs["auto-shard"])
    assert (shard["mesh"], shard["cluster"], shard["pins"]) == (
        "data=2,tensor=2",
        "8xH100",
        "w = [data = B]",
    )
    assert vars(specs["map-tasks"])["target"] == "cpu"
    on_cuda = {each.name: each for each in default_pipeline(Options(backend="cuda"))}
    assert vars(on_cuda["split-reduction"])["target"].startswith("sm_")
    on_cuda = {e.name: e for e in default_pipeline(Options(backend="cuda", target="sm_80"))}
    assert vars(on_cuda["split-reduction"])["target"] == "sm_80"


TRAINING = Training(stream={}, differentiate={"trainable": "*"}, optimizer={"kind": "adamw"})


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(any_rows=True),
        Options(training=TRAINING),
        Options(training=TRAINING, mesh=TWO_BY_TWO, sizes={"B": 4}, recompute="auto"),
        Options(training=Training(cut={"count": 2}), mesh=Mesh.parse("data=2")),
        Options(backend="cuda", target="sm_90"),
        Options(backend="triton", target="sm_80", mesh=TWO_BY_TWO),
    ],
)
def test_pipelines_follow_the_one_list(options: Options) -> None:
    """Every pass stands in it behind the one before, and runs on what the list says."""
    parts = passes_by_part(options)
    rest = iter(ORDER)
    for part, scopes in zip(parts, (("model", "stage"), ("stage",), ("function",)), strict=True):
        for each in part:
            rows = (row for row in rest if row.name == each.name and row.scope in scopes)
            assert next(rows, None), f"{each.name} is out of order"
    assert [each.name for each in default_pipeline(options)][-1] == "plan-memory"


def test_the_one_list_has_every_pass() -> None:
    assert {row.name for row in ORDER} == set(BUILTIN)
    assert tuple(row.name for row in ORDER[-len(MEMORY) :]) == MEMORY


def test_training_is_a_part_of_the_list() -> None:
    """A plan is the same whether a step is made first or by the pipeline."""

    def captured() -> Program:
        torch.manual_seed(0)
        model = GPT(GPTConfig(layers=2, hidden=24, heads=2, block=10, vocab=17))
        tokens = torch.randint(0, 17, (4, 10))
        return capture(model, (tokens, tokens)).program

    program = captured()
    training = training_of(program, stream=True)
    names = [each.name for each in default_pipeline(Options(training=training))]
    head = ["canonicalize", "stream-cross-entropy", "differentiate", "recompute", "add-optimizer"]
    assert names[: len(head)] == head
    at_once = make_plan(program, Options(training=training))
    step = training_program(captured(), stream=True)
    assert at_once.hash == make_plan(step, Options()).hash
    assert at_once.plan.ranges


@pytest.mark.usefixtures("plugins")
def test_a_plugin_may_go_behind_a_pass_of_training() -> None:
    options = Options(training=TRAINING, passes=("after-differentiate",))
    at = names(options).index("after-differentiate")
    assert names(options)[at - 1] == "differentiate"
    assert "after-differentiate" in [each.name for each in passes_by_part(options).training]
    with pytest.raises(IrcError, match="after 'differentiate'"):
        names(Options(passes=("after-differentiate",)))


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("mesh", "passes", "expected"),
    [
        ("", ["quiet"], [*FLOW, "quiet", *RANKS, *KERNELS]),
        ("", ["after-fuse"], [*FLOW, *RANKS, "after-fuse", *KERNELS]),
        ("", ["on-kernels"], [*ONE_DEVICE, "on-kernels"]),
        ("data=2", ["after-order"], [*DISTRIBUTED, "after-order"]),
        ("data=2", ["on-kernels"], [*DISTRIBUTED, "on-kernels"]),
        ("data=2", ["quiet"], [*FLOW, "quiet", *DISTRIBUTED[len(FLOW) :]]),
        ("data=2", ["on-placements"], [*PLACED, "on-placements", *DISTRIBUTED[len(PLACED) :]]),
        ("data=2", ["on-ranks"], [*DISTRIBUTED[:-3], "on-ranks", *DISTRIBUTED[-3:]]),
        ("", ["on-ranks"], [*FLOW, *RANKS, "on-ranks", *KERNELS]),
    ],
)
def test_plugins_go_where_they_say(mesh: str, passes: Sequence[str], expected: list[str]) -> None:
    assert names(Options(mesh=Mesh.parse(mesh), passes=tuple(passes))) == [*expected, *MEMORY]


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "says"), [("after-order", "after 'order'"), ("on-placements", "one device has none")]
)
def test_a_place_that_does_not_exist_is_refused(name: str, says: str) -> None:
    with pytest.raises(IrcError, match=says) as caught:
        names(Options(passes=(name,)))
    assert caught.value.code == "pass-unknown"


@pytest.mark.parametrize("mesh", ["", "data=2,tensor=2"])
def test_every_pass_keeps_the_numbers_of_a_gpt(mesh: str) -> None:
    seen: list[str] = []
    options = Options(mesh=Mesh.parse(mesh), verify_each="exec")
    lower(small_gpt(), options, lambda name, _: seen.append(name))
    assert seen == ["capture", *(DISTRIBUTED if mesh else ONE_DEVICE), *MEMORY]


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("mesh", ["", "data=2,tensor=2"])
def test_a_wrong_pass_is_named(mesh: str) -> None:
    options = Options(mesh=Mesh.parse(mesh), passes=("gelu-to-tanh",), verify_each="exec")
    with pytest.raises(IrcError, match="pass gelu-to-tanh changed output 0") as caught:
        lower(small_gpt(), options)
    assert caught.value.code == "check-failed"


def test_a_pass_of_irc_that_breaks_the_program_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DropReturn, "__module__", "irc.passes.drop_return")
    with pytest.raises(InternalError, match="pass drop-return broke the program"):
        run_passes(load(FUSABLE), [DropReturn()], verify_each="ir")


def test_the_plan_keeps_the_text_after_each_pass_whose_result_it_is_not() -> None:
    plan = make_plan(small_gpt(), Options(mesh=TWO_BY_TWO))
    texts = plan.ir()
    assert [*texts] == [f"ir/{i:02}-{n}.mlir" for i, n in enumerate(["capture", *DISTRIBUTED])]
    for text in texts.values():
        assert dump(load(text)) == text
    again = make_plan(small_gpt(), Options(mesh=TWO_BY_TWO))
    assert again.hash == plan.hash


FUSABLE = """
builtin.module {
  func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"})
      -> !flow.tensor<[3, 5], f32> {
    %y = flow.pointwise(%x) {fn = "gelu", loc = "m.py:1", id = "n0"}
        : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    %z = flow.pointwise(%y, %x) {fn = "add", loc = "m.py:2", id = "n1"}
        : (!flow.tensor<[3, 5], f32>, !flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    func.return %z : !flow.tensor<[3, 5], f32>
  }
}
"""


@pytest.mark.usefixtures("plugins")
def test_the_command_line_compares_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.mlir"
    program.write_text(FUSABLE)
    passes = "canonicalize,fuse,map-tasks{target=cpu}"
    words = ["opt", str(program), "--verify-each=exec", "-p"]
    assert main([*words, passes]) == 0
    assert "task.kernel" in capsys.readouterr().out

    assert main([*words, f"canonicalize,gelu-to-tanh,{passes}"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error[check-failed]: pass gelu-to-tanh changed output 0")


def test_run_passes_shows_each_stage() -> None:
    seen: list[tuple[str, bool]] = []
    module = load(FUSABLE)
    run_passes(
        module,
        default_pipeline(Options()),
        on_stage=lambda name, now: seen.append((name, "task.kernel" in dump(now))),
    )
    late = (*KERNELS, *MEMORY)
    assert seen == [(name, name in late) for name in (*ONE_DEVICE, *MEMORY)]
