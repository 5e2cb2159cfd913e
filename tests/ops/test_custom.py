"""A user's own op: declared in one place, planned by its rule, priced, reported where silent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from xdsl.ir import Block

import irc
from irc import entry_points
from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.sharded import run_ranks
from irc.ops import custom
from irc.ops.custom import DECLARED, Gap, declaration, left_out, register_op
from irc.ops.work import UNKNOWN_FLOPS, bytes_moved, flops, local_bytes, local_flops
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import signatures

RULE = "(a k, b k) -> (a b) sum(k) linear(0) linear(1)"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = dict(DECLARED)
    yield
    DECLARED.clear()
    DECLARED.update(before)


def build(target: str, *shapes: tuple[int, ...], result: tuple[int, ...], **attrs: Any) -> FlowOp:
    block = Block(arg_types=[TensorType.of(shape) for shape in shapes])
    places = ", ".join(f'{{"operand": {i}}}' for i in range(len(shapes)))
    kinds = [TensorType.of(result)]
    call = f"[[{places}], {{}}]"
    op = ExternOp.make(list(block.args), kinds, target=target, arguments=call, **attrs)
    block.add_op(op)
    return op


def products() -> None:
    @register_op(
        "test_irc::products",
        rule=RULE,
        flops=lambda call: 2 * call["a"] * call["b"] * call["k"],
        bytes=lambda call: call.item_bytes * (call["a"] + call["b"]) * call["k"],
    )
    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y.T


def test_a_declaration_gives_rule_work_and_meaning() -> None:
    products()
    op = build("test_irc::products", (6, 8), (4, 8), result=(6, 4))
    assert flops(op) == 2 * 6 * 4 * 8
    assert bytes_moved(op) == 4 * (6 + 4) * 8
    mesh = Mesh.parse("data=2")
    by_split = {s.splits[0]: s for s in signatures(op, mesh)}
    assert {"a", "b", "k"} <= set(by_split)
    assert local_flops(op, by_split["k"], mesh) == 2 * 6 * 4 * 4
    assert local_bytes(op, by_split["a"], mesh) == 4 * (3 + 4) * 8
    whole = [torch.randn(6, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)]
    for signature in by_split.values():
        held = [shard(v, p, mesh) for v, p in zip(whole, signature.operands, strict=True)]
        (parts,) = run_ranks(op, signature, mesh, held, dtype=torch.float64)
        joined = combine(parts, signature.results[0], mesh, (6, 4))
        torch.testing.assert_close(joined, whole[0] @ whole[1].T)
    assert left_out([op]) == []


def test_what_is_left_out_is_assumed_and_reported_never_zero() -> None:
    op = build("test_irc::nothing", (6, 8), result=(6,))
    assert flops(op) == UNKNOWN_FLOPS * (48 + 6)
    assert bytes_moved(op) == 4 * (48 + 6)
    assert left_out([op, op]) == [Gap("test_irc::nothing", ("rule", "flops", "bytes"), 2)]
    cost = ClusterCost(find_cluster("8xH100"), Mesh.parse("data=2"))
    (only,) = signatures(op, cost.mesh)
    assert cost.op_seconds(op, only) > cost.cluster.device.launch_s
    register_op("test_irc::nothing", rule="(a b) -> (a) sum(b)")
    assert left_out([op]) == [Gap("test_irc::nothing", ("flops", "bytes"), 1)]
    assert len(signatures(op, cost.mesh)) > 1
    stated = build("test_irc::other", (6, 8), result=(6,), rule="(a b) -> (a) sum(b)")
    assert left_out([stated])[0].assumed == ("flops", "bytes")


def test_a_rule_is_checked_where_it_is_declared() -> None:
    with pytest.raises(IrcError, match="cannot read the rule") as caught:
        register_op("test_irc::wrong", rule="(a b) -> (a")
    assert caught.value.code == "rule-syntax"
    assert caught.value.where == "test_irc::wrong"


def test_an_op_of_torch_library_is_captured_with_its_rule() -> None:
    @torch.library.custom_op("test_irc::halves", mutates_args=())
    def halves(x: torch.Tensor, part: float) -> torch.Tensor:
        return x * part

    @halves.register_fake
    def _(x: torch.Tensor, part: float) -> torch.Tensor:
        return torch.empty_like(x)

    register_op(halves, rule="(a b) -> (a b) linear(0)", flops=lambda call: call["a"] * call["b"])
    captured = irc.capture(lambda x: halves(x, 0.25) + 1, (torch.ones(4, 6),))
    module = captured.program.module
    (op,) = [op for op in module.walk() if isinstance(op, ExternOp)]
    assert op.plain["rule"] == "(a b) -> (a b) linear(0)"
    assert len(arguments(entry(module))) == 1
    (output,) = run_function(module, [torch.ones(4, 6)])
    assert torch.equal(output, torch.full((4, 6), 1.25))
    assert flops(op) == 24


def test_names_of_ops_in_all_forms() -> None:
    register_op(torch.ops.aten.celu.default, rule="(a) -> (a)")
    assert declaration("aten::celu") is not None
    register_op(torch.ops.aten.celu, rule="(a b) -> (a b)")
    assert declaration("aten::celu").rule == "(a b) -> (a b)"  # type: ignore[union-attr]
    assert declaration("aten::celu.out") == declaration("aten::celu")
    with pytest.raises(IrcError, match="is no op"):
        register_op(42)


def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int = 1) -> str:
    name = f"declared_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("irc_plug", name, entry_points.OPS)
    here = [entry_points.Registered("irc_plug", f"package-{n}", entry) for n in range(count)]
    monkeypatch.setattr(entry_points, "registered", lambda _: here)
    custom._load_plugin.cache_clear()  # pyright: ignore[reportPrivateUsage]
    return name


def test_a_package_declares_its_ops_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = plugin(
        tmp_path,
        monkeypatch,
        "from irc.ops.custom import register_op\n"
        "@register_op('irc_plug::twice', rule='(a) -> (a) linear(0)')\n"
        "def twice(x):\n    return 2 * x\n",
    )
    assert declaration("aten::celu") is None
    assert name not in sys.modules
    op = build("irc_plug::twice", (4,), result=(4,))
    assert len(signatures(op, Mesh.parse("data=2"))) == 3
    assert name in sys.modules


@pytest.mark.parametrize(
    ("text", "count", "code"), [("1 / 0", 1, "plugin-broken"), ("", 2, "plugin-clash")]
)
def test_a_plug_in_that_does_not_load_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int, code: str
) -> None:
    plugin(tmp_path, monkeypatch, text, count)
    with pytest.raises(IrcError) as caught:
        declaration("irc_plug::twice")
    assert caught.value.code == code


def test_an_op_that_this_process_lacks_is_an_error_with_its_name() -> None:
    op = build("nobody::here", (2,), result=(2,))
    with pytest.raises(IrcError, match="no op nobody::here") as caught:
        run_ranks(op, signatures(op, Mesh(()))[0], Mesh(()), [[torch.ones(2)]])
    assert caught.value.code == "op-undeclared"


def test_a_reference_replaces_torch() -> None:
    register_op("aten::celu", reference=lambda x: x + 100)
    op = build("aten::celu", (2,), result=(2,))
    outputs = run_ranks(op, signatures(op, Mesh(()))[0], Mesh(()), [[torch.ones(2)]])
    assert outputs[0][0].tolist() == [101.0, 101.0]
    assert replace(DECLARED["aten::celu"], rule="(a) -> (a)").left_out == ("flops", "bytes")
