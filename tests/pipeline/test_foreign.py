"""Passes of other packages that go wrong are answered by name, at the place where they go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

import irc.plugin
from irc.choices import names_option
from irc.cli import main
from irc.dialects.builder import entry
from irc.dialects.flow import PointwiseOp, TransposeOp, carry, id_of
from irc.dialects.levels import levels_of
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.passes import BUILTIN
from irc.pipeline import Options, default_pipeline, run_passes

PROGRAM = """
builtin.module {
  func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"})
      -> !flow.tensor<[3, 5], f32> {
    %y = flow.pointwise(%x) {fn = "silu", loc = "m.py:1", id = "n0"}
        : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    %z = flow.pointwise(%y) {fn = "tanh", loc = "m.py:2", id = "n1"}
        : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    func.return %z : !flow.tensor<[3, 5], f32>
  }
}
"""


@dataclass(frozen=True)
class Foreign(ModulePass):
    """A pass of another package that does what it is told."""

    name = "foreign"
    level: ClassVar[str] = "flow"
    does: Callable[[ModuleOp], object] = field(default=lambda _: None)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.does(op)


def ops(module: ModuleOp) -> list[Operation]:
    return list(entry(module).body.block.ops)


def refused(module: ModuleOp, does: Callable[[ModuleOp], object]) -> str:
    with pytest.raises(IrcError) as caught:
        run_passes(module, [Foreign(does)])
    assert caught.value.code == "pass-failed"
    assert "pass 'foreign' of package 'tests'" in caught.value.message
    return caught.value.render()


def raising(error: BaseException) -> Callable[[ModuleOp], object]:
    def does(module: ModuleOp) -> object:
        raise error

    return does


@pytest.mark.parametrize(
    "error",
    [KeyError("my own bug"), PassFailedException("I cannot"), SystemExit(3), AssertionError("no")],
    ids=lambda error: type(error).__name__,
)
def test_what_it_raises_is_said_with_its_place(error: BaseException) -> None:
    said = refused(load(PROGRAM), raising(error))
    assert f"because: {type(error).__name__}: {error}" in said
    assert "test_foreign.py" in said


def test_its_own_errors_reach_the_user() -> None:
    own = IrcError("option-value", "this pass cannot do that")
    with pytest.raises(IrcError) as caught:
        run_passes(load(PROGRAM), [Foreign(raising(own))])
    assert caught.value is own


def no_such_fn(module: ModuleOp) -> None:
    ops(module)[0].properties["fn"] = StringAttr("sillu")


def move_up(module: ModuleOp) -> None:
    first, second, _ = ops(module)
    second.detach()
    entry(module).body.block.insert_op_before(second, first)


def erase_all(module: ModuleOp) -> None:
    entry(module).detach()


def erase_operand(module: ModuleOp) -> None:
    first, *_ = ops(module)
    first.detach()
    first.erase(safe_erase=False)


def longer_result(module: ModuleOp) -> None:
    """Valid in itself: the return and the type of the function agree."""
    func, (_, last, end) = entry(module), ops(module)
    turned = TransposeOp.make(last.results, [TensorType.of([5, 3], "f32")], perm=(1, 0), id="t")
    func.body.block.insert_op_before(turned, end)
    end.operands = turned.results
    func.function_type = FunctionType.from_lists(
        [v.type for v in func.body.block.args], [turned.results[0].type]
    )


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (no_such_fn, "no pointwise function 'sillu'; did you mean 'silu'?"),
        (move_up, "stands after it"),
        (erase_all, "no function @forward"),
        (erase_operand, "Erased SSA value"),
        (longer_result, "result 0 of @forward was !flow.tensor<[3, 5], f32> and is"),
    ],
)
def test_a_program_that_it_breaks_is_refused(does: Callable[[ModuleOp], None], says: str) -> None:
    assert says in refused(load(PROGRAM), does)


def test_a_named_size_may_be_bound() -> None:
    text = PROGRAM.replace("[3, 5]", "[B, 5]")
    bound = load(PROGRAM)

    def bind(module: ModuleOp) -> None:
        (func,) = bound.body.block.ops
        entry(module).detach()
        func.detach()
        module.body.block.add_op(func)

    module = load(text)
    run_passes(module, [Foreign(bind)])
    assert "[3, 5]" in dump(module)


def silu_by_parts(module: ModuleOp, part: int) -> None:
    old, *_ = ops(module)
    kind = old.results[0].type
    gate = PointwiseOp.make(old.operands, [kind], fn="sigmoid")
    product = PointwiseOp.make([old.operands[0], gate.outputs[0]], [kind], fn="mul")
    carry(gate, old, part=part)
    carry(product, old)
    entry(module).body.block.insert_ops_before([gate, product], old)
    old.results[0].replace_all_uses_with(product.outputs[0])
    old.detach()
    old.erase()


@pytest.mark.parametrize("part", [0, 1])
def test_steps_of_a_value_have_ids_of_their_own(part: int) -> None:
    module = load(PROGRAM)
    run_passes(module, [Foreign(lambda m: silu_by_parts(m, part))], verify_each="exec")
    assert [id_of(op) for op in ops(module)] == ["n0.1", "n0", "n1", ""]


def test_the_op_that_had_an_id_keeps_it() -> None:
    def negate_twice(module: ModuleOp) -> None:
        first, second, _ = ops(module)
        value = first.results[0]
        for _ in range(2):
            negation = carry(PointwiseOp.make([value], [value.type], fn="neg"), first)
            entry(module).body.block.insert_op_before(negation, second)
            value = negation.results[0]
        second.operands = [value]

    module = load(PROGRAM)
    run_passes(module, [Foreign(negate_twice)], verify_each="exec")
    assert [id_of(op) for op in ops(module)] == ["n0", "n0.1", "n0.2", "n1", ""]


FLOW_SBP = PROGRAM.replace("f32>", "f32, [data = B]>")
SPMD = PROGRAM.replace("builtin.module {", 'builtin.module attributes {irc.mesh = "data=2"} {')


def test_levels_are_told_from_text() -> None:
    task = load(PROGRAM)
    run_passes(task, default_pipeline(Options()))
    fused = load(PROGRAM)
    run_passes(fused, irc.plugin.parse_passes("fuse"))
    levels = [levels_of(m) for m in (load(PROGRAM), load(FLOW_SBP), load(SPMD), fused, task)]
    assert levels == [("flow", "spmd"), ("flow+sbp",), ("spmd",), ("spmd",), ("task",)]
    assert levels_of(load("builtin.module {}")) == ("flow", "flow+sbp", "spmd", "task")


def test_no_pass_runs_on_a_level_that_it_does_not_take() -> None:
    """Every pass of irc on a program of every level: it runs, or it is refused by name."""
    task = load(PROGRAM)
    run_passes(task, irc.plugin.parse_passes("fuse,map-tasks"))
    texts = {"flow+sbp": FLOW_SBP, "spmd": SPMD, "task": dump(task)}
    for name in BUILTIN:
        cls = irc.plugin.find_pass(name)
        takes = {getattr(cls, "level", ""), *getattr(cls, "also_on", ())}
        for level, text in texts.items():
            if level not in takes:
                with pytest.raises(IrcError, match=f"'{name}' works on .*on level") as caught:
                    run_passes(load(text), [cls()])
                assert caught.value.code == "pass-level"


class First(Foreign):
    """Behind a pass of irc."""

    name = "first"
    after: ClassVar[str] = "canonicalize"


class Second(First):
    """Behind another plug-in's."""

    name = "second"
    after: ClassVar[str] = "first"


class Third(First):
    """Behind the same pass as the first."""

    name = "third"


class TooLate(Foreign):
    """Of level flow, behind a pass that leaves it."""

    name = "too-late"
    after: ClassVar[str] = "map-tasks"


class Abstract(ModulePass):
    """Has no apply."""

    name = "abstract"
    level: ClassVar[str] = "flow"


class OfPlan(Foreign):
    """Of a level that has no modules."""

    name = "of-plan"
    level: ClassVar[str] = "plan"


@dataclass(frozen=True)
class Needs(ModulePass):
    """One option that has to be given."""

    count: int
    name = "needs"
    level: ClassVar[str] = "flow"

    def apply(self, ctx: Context, op: ModuleOp) -> None: ...


PLUGINS = {cls.name: cls for cls in (First, Second, Third, TooLate, Abstract, OfPlan, Needs)}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [
        irc.plugin.Registered(
            name, "sample", irc.plugin.EntryPoint(name, f"{__name__}:{cls.__name__}", "irc.passes")
        )
        for name, cls in PLUGINS.items()
    ]
    monkeypatch.setattr(irc.plugin, "plugin_passes", lambda: here)


@pytest.mark.parametrize(
    "passes",
    [("first", "second", "third"), ("second", "first", "third"), ("first,second", "third")],
)
def test_they_go_behind_each_other_in_any_order(passes: tuple[str, ...]) -> None:
    names = [each.name for each in default_pipeline(Options(passes=passes))]
    assert names[:4] == ["canonicalize", "first", "second", "third"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("too-late", "pass-level", "goes after 'map-tasks', behind which the program is on level"),
        ("abstract", "plugin-broken", "does not define apply"),
        ("of-plan", "plugin-broken", "its level is 'plan'"),
        ("needs", "option-value", "pass 'needs' of package 'sample'"),
        ("first{count=1}", "option-unknown", "count"),
    ],
)
@pytest.mark.parametrize("mesh", ["", "data=2"])
def test_what_no_pipeline_can_run_is_refused(text: str, code: str, says: str, mesh: str) -> None:
    with pytest.raises(IrcError, match=says) as caught:
        default_pipeline(Options(passes=(text,), mesh=Mesh.parse(mesh)))
    assert caught.value.code == code
    if text == "needs":
        assert vars(default_pipeline(Options(passes=("needs{count=2}",)))[3])["count"] == 2


@pytest.mark.parametrize("passes", ["first", [Foreign], [Foreign()], [3], [""], 3, None])
def test_names_are_text(passes: object) -> None:
    with pytest.raises(IrcError, match="passes is a list of names") as caught:
        names_option("passes", passes)
    assert caught.value.code == "option-value"
    assert names_option("rules", [Path("my.rules")]) == ("my.rules",)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.mlir"
    file.write_text(PROGRAM)
    assert main(["opt", str(file), "--verify-each", "exec", "-p", "fuse"]) == 0
    assert "flow.fusion" in capsys.readouterr().out
    summed = 'cumulative(%y) {dim = 0 : i64, exclusive = false, reverse = false, fn = "mean"'
    for text in (
        PROGRAM.replace("silu", "sillu"),
        PROGRAM.replace('pointwise(%y) {fn = "tanh"', summed),
    ):
        file.write_text(text)
        assert main(["opt", str(file)]) == 2
        assert capsys.readouterr().err.startswith("error[ir-invalid]")
