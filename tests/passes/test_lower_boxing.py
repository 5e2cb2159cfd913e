"""What one rank runs: local shapes, starts and waits."""

import pytest
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Operation

from irc.dialects.builder import entry
from irc.dialects.comm import CollectiveOp, WaitOp
from irc.dialects.flow import id_of, loc_of, tensor
from irc.dialects.text import context, load
from irc.dialects.types import PlacementAttr
from irc.errors import IrcError
from irc.passes.lower_boxing import LowerBoxingPass

TEXT = """builtin.module attributes {{irc.mesh = "{mesh}"}} {{
func.func @forward(%x: !flow.tensor<[8, 12], f32, [{before}]> {{role = "input", name = "x"}})
    -> !flow.tensor<[8, 12], f32, [{after}]> {{
  %y = sbp.boxing(%x) {{loc = "m.py:9", id = "n4.box0"{via}}}
      : (!flow.tensor<[8, 12], f32, [{before}]>) -> !flow.tensor<[8, 12], f32, [{after}]>
  func.return %y : !flow.tensor<[8, 12], f32, [{after}]>
}} }}"""


def lower(before: str, after: str, mesh: str = "a=2,b=2", via: str = "") -> ModuleOp:
    module = load(TEXT.format(mesh=mesh, before=before, after=after, via=via))
    LowerBoxingPass(cluster="8xH100").apply(context(), module)
    module.verify()
    return module


def steps(module: ModuleOp) -> list[Operation]:
    return [op for op in entry(module).body.block.ops if op.name.startswith("comm.")]


@pytest.mark.parametrize(
    ("before", "after", "op", "attrs", "local"),
    [
        ("a = S(0)", "a = B", "all_gather", {"dim": 0}, (8, 12)),
        ("a = S(1)", "a = S(0)", "all_to_all", {"split_dim": 0, "concat_dim": 1}, (4, 12)),
        ("a = P(max)", "a = B", "all_reduce", {"fn": "max"}, (8, 12)),
        ("a = P(sum)", "a = S(1)", "reduce_scatter", {"fn": "sum", "dim": 1}, (8, 6)),
        ("a = B", "a = S(1)", "local_chunk", {"dim": 1}, (8, 6)),
    ],
)
def test_each_transition_has_its_op(
    before: str, after: str, op: str, attrs: dict[str, object], local: tuple[int, ...]
) -> None:
    ops = steps(lower(before, after, mesh="a=2"))
    first = ops[0]
    assert first.name == f"comm.{op}"
    assert first.plain == {"axis": "a", **attrs}  # type: ignore[attr-defined]
    assert tensor(ops[-1].results[0]).shape == local
    assert (id_of(ops[-1]), loc_of(ops[-1])) == ("n4.box0", "m.py:9")
    assert [m.name for m in ops[1:]] == ([] if op == "local_chunk" else ["comm.wait"])


def test_every_start_is_followed_by_its_wait() -> None:
    module = lower("a = P(sum), b = S(0)", "a = B, b = S(1)")
    ops = steps(module)
    starts = [op for op in ops if isinstance(op, CollectiveOp)]
    assert len(starts) >= 2
    for start in starts:
        wait = start.next_op
        assert isinstance(wait, WaitOp)
        assert wait.operands[0] is start.results[0]
    assert len({id_of(op) for op in ops}) == len(ops)
    for op in ops:
        sbp = op.attributes["sbp"]
        assert isinstance(sbp, ArrayAttr)
        assert all(isinstance(p, PlacementAttr) for p in sbp)


def test_arguments_and_results_say_what_a_rank_holds() -> None:
    func = entry(lower("a = B, b = S(1)", "a = S(0), b = S(1)"))
    assert func.arg_attrs is not None
    assert func.res_attrs is not None
    assert str(func.arg_attrs.data[0].data["sbp"]) == "#sbp.placement<[a = B, b = S(1)]>"
    assert str(func.arg_attrs.data[0].data["name"]) == '"x"'
    assert str(func.res_attrs.data[0].data["sbp"]) == "#sbp.placement<[a = S(0), b = S(1)]>"
    assert [t.shape for t in func.function_type.inputs] == [(8, 6)]  # type: ignore[attr-defined]
    assert [t.shape for t in func.function_type.outputs] == [(4, 6)]  # type: ignore[attr-defined]


def test_steps_that_are_written_are_taken() -> None:
    via = ", via = [#sbp.placement<[a = S(0), b = B]>, #sbp.placement<[a = B, b = B]>]"
    names = [op.name for op in steps(lower("a = P(sum), b = B", "a = S(1), b = B", via=via))]
    assert names == [
        "comm.reduce_scatter", "comm.wait", "comm.all_gather", "comm.wait", "comm.local_chunk",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "via"),
    [
        ("a = B, b = B", "a = P(sum), b = B", ""),
        ("a = S(0), b = B", "a = S(1), b = B", ", via = [#sbp.placement<[a = B, b = S(0)]>]"),
    ],
)
def test_what_no_collective_does_is_refused(before: str, after: str, via: str) -> None:
    with pytest.raises(IrcError, match=r"n4\.box0") as error:
        lower(before, after, via=via)
    assert error.value.code == "no-boxing"
    assert error.value.where == "m.py:9"


def test_placements_that_fit_no_signature_are_refused() -> None:
    text = """builtin.module attributes {irc.mesh = "a=2"} {
    func.func @forward(%x: !flow.tensor<[4], f32, [a = P(sum)]> {role = "input", name = "x"})
        -> !flow.tensor<[4], f32, [a = P(sum)]> {
      %y = flow.pointwise(%x) {fn = "relu", loc = "m.py:5", id = "n0"}
          : (!flow.tensor<[4], f32, [a = P(sum)]>) -> !flow.tensor<[4], f32, [a = P(sum)]>
      func.return %y : !flow.tensor<[4], f32, [a = P(sum)]>
    } }"""
    with pytest.raises(IrcError, match=r"m\.py:5") as error:
        LowerBoxingPass().apply(context(), load(text))
    assert error.value.code == "no-signature"


def test_a_program_for_one_device_stays_as_it_is() -> None:
    text = """func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
      func.return %x : !flow.tensor<[4], f32>
    }"""
    module, before = load(text), load(text)
    LowerBoxingPass().apply(context(), module)
    assert module.is_structurally_equivalent(before)
