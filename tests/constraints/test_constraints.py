"""Constraints: their text, what they name, and that the plan keeps them."""

import json
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue

from irc.constraints.fusion import parse_fusion
from irc.constraints.patterns import Pattern
from irc.constraints.pins import constraint_text, parse_constraints, parse_pattern, pins_option
from irc.dialects.builder import FlowBuilder, argument_attrs, arguments, entry, finish_function
from irc.dialects.flow import ContractOp, FlowOp, id_of, tensor
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.searches import SortOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.passes.auto_shard import AutoShardPass
from irc.pipeline import Options, default_pipeline

T = TensorType.of
MESH = Mesh.parse("data=2,tensor=2")


def mlp() -> ModuleOp:
    """Two products with a gelu between; ids n0 (up), n1 (gelu), n2 (down)."""

    def build(b: FlowBuilder, x: SSAValue, up: SSAValue, down: SSAValue) -> list[SSAValue]:
        b.loc = "net/model.py:7"
        h = b.op(ContractOp, [x, up], spec="bk,kn->bn")
        b.loc = "net/model.py:8"
        return [b.op(ContractOp, [b.pointwise("gelu", h), down], spec="bn,nk->bk")]

    args = [
        ("input", "x", T((6, 96))),
        ("parameter", "layers.0.up.weight", T((96, 384))),
        ("parameter", "layers.1.down.weight", T((384, 96))),
    ]
    return _module(args, build)


def _module(args: list[tuple[str, str, TensorType]], build: object) -> ModuleOp:
    block = Block(arg_types=[kind for _, _, kind in args])
    results = build(FlowBuilder(block), *block.args)  # type: ignore[operator]
    attrs = [argument_attrs(role, name) for role, name, _ in args]
    func = finish_function("forward", block, results, arg_attrs=attrs)
    return ModuleOp([func])


def shard(pins: str, mesh: str = "data=2,tensor=2", module: ModuleOp | None = None) -> ModuleOp:
    module = module or mlp()
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins).apply(context(), module)
    module.verify()
    return module


def held(module: ModuleOp) -> dict[str, str]:
    return {name: str(tensor(value).placement) for _, name, value in arguments(entry(module))}


def made(module: ModuleOp, op: str, result: int = 0) -> str:
    (flow_op,) = (
        o for o in entry(module).body.block.ops if isinstance(o, FlowOp) and id_of(o) == op
    )
    return str(tensor(flow_op.outputs[result]).placement)


def failure(pins: str, **options: object) -> IrcError:
    with pytest.raises(IrcError) as caught:
        shard(pins, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("*.w = [tensor = S(1)]", ["pin *.w = [tensor = S(1)]"]),
        ("a=[a=B];c = [a = S(0)];", ["pin a = [a = B]", "pin c = [a = S(0)]"]),
        ("pin w = (S(0), R)", ["pin w = (S(0), B)"]),
        ("forbid * = (P, P(*), S(*), *)", ["forbid * = (P(sum), P(*), S(*), *)"]),
        ("pin op b0/n3#1 = P(max), S(-1)", ["pin op b0/n3#1 = (P(max), S(-1))"]),
        ('at "m.py:7" = [d = S(0, 1), t = S(0)]', ["pin at m.py:7 = [d = S(0, 1), t = S(0)]"]),
        ("op n2 = (S(0)), (B) -> (S(0))", ["pin op n2 = (S(0)), (B) -> (S(0))"]),
        ("op n2 = () -> [a = B]", ["pin op n2 =  -> [a = B]"]),
        ("pin.w = B\nforbid.w = B", ["pin pin.w = (B)", "pin forbid.w = (B)"]),
        ('"/a b=;#/w" = B', ["pin /a b=;#/w = (B)"]),
        ("", []),
        ("\n# nothing\n\n;;\n", []),
    ],
)
def test_text_reads(text: str, reads: list[str]) -> None:
    assert [str(statement) for statement in parse_constraints(text)] == reads


def test_statements_know_their_lines_and_qualifiers() -> None:
    text = (
        "# the first two lines\n\n*.up.weight = S(0)  priority 3 equal # why\n\n  x = B ; y = B\n"
    )
    first, *others = parse_constraints(text, "plan.sbp")
    assert (first.priority, first.equal, first.where) == (3, True, "plan.sbp, line 3")
    assert [s.where for s in others] == ["plan.sbp, line 5"] * 2


@pytest.mark.parametrize(
    ("text", "code", "where", "says"),
    [
        ("x [a = B]", "constraint-syntax", "pins", "'[a = B]'"),
        ("\nx = B\npn op n3 = B\n", "constraint-syntax", "pins, line 3, column 4", "'op n3 = B'"),
        ("x = [a = Shard(0)]", "placement-syntax", "pins", "'hard(0)]'"),
        ("x = [a = B] B", "placement-syntax", "pins", "'B'"),
        ("x = [a = S(0)", "placement-syntax", "pins", "the end"),
        ("x = B\ny = S(", "placement-syntax", "pins, line 2", "the end"),
        ("x = P(product)", "placement-syntax", "pins", "'product'"),
        ("x = [a = B, a = S(0)]", "placement-syntax", "pins", "a, a"),
        ("x = (B), (S(0))", "placement-syntax", "pins", "several"),
        ("x = B priority high", "placement-syntax", "pins", "'high'"),
        ('"x = B', "constraint-syntax", "pins", '"x'),
    ],
)
def test_what_does_not_read_is_located(text: str, code: str, where: str, says: str) -> None:
    with pytest.raises(IrcError) as caught:
        parse_constraints(text)
    assert caught.value.code == code
    assert caught.value.where.startswith(where)
    assert says in caught.value.render()


@pytest.mark.parametrize(
    ("text", "placement", "fits"),
    [
        ("[tensor = S(0)]", Placement.of(data=Partial(), tensor=Split(0)), True),
        ("[tensor = S(0)]", Placement.of(data=Split(1), tensor=Split(1)), False),
        ("B, S(-1)", Placement.of(data=B, tensor=Split(2)), True),
        ("B, S(-1)", Placement.of(data=B, tensor=Split(1)), False),
        ("S(*), P(*)", Placement.of(data=Split(2), tensor=Partial("max")), True),
        ("S(*), P", Placement.of(data=Split(2), tensor=Partial("max")), False),
        # Unless it says so, a pattern leaves the order of application open.
        ("S(0), S(0)", Placement((("data", Split(0, 1)), ("tensor", Split(0)))), True),
        (
            "[data = S(0), tensor = S(0, 1)]",
            Placement((("data", Split(0, 1)), ("tensor", Split(0)))),
            False,
        ),
    ],
)
def test_patterns_match(text: str, placement: Placement, fits: bool) -> None:
    assert parse_pattern(text).matches(placement, MESH, 3) is fits


def test_an_axis_of_one_rank_holds_the_same_however_it_is_said() -> None:
    single = Mesh.parse("data=1,tensor=2")
    assert parse_pattern("S(0), B").matches(Placement.replicated(single.names), single, 1)
    assert parse_pattern("[tensor = B]").exact(single, 2) == Placement.replicated(single.names)
    assert parse_pattern("[tensor = B]").exact(MESH, 2) is None
    assert Pattern.of(Placement.of(data=B, tensor=B)).exact(MESH, 2) == Placement.of(
        data=B, tensor=B
    )


@pytest.mark.parametrize(
    ("glob", "name", "fits"),
    [
        ("layers.{0-1,11}.w", "layers.11.w", True),
        ("layers.{0-1,11}.w", "layers.2.w", False),
        ("layers.?.w", "layers.2.w", True),
        ("a[0].w", "a[0].w", True),
        ("a[0].w", "a0.w", False),
        ("*", "anything.at/all", True),
        ("{q,k}", "{q,k}", True),
        ("l.{1-2-3}", "l.2", False),
        ("{-}", "1", False),
    ],
)
def test_globs(glob: str, name: str, fits: bool) -> None:
    (statement,) = parse_constraints(f'"{glob}" = B')
    assert statement.matches(name) is fits


def test_a_pin_of_one_axis_leaves_the_others_to_the_search() -> None:
    free = held(shard(""))["layers.0.up.weight"]
    pinned = held(shard("*.up.weight = [data = S(0)]"))["layers.0.up.weight"]
    assert free != pinned
    assert pinned.startswith("[data = S(0), tensor = ")


def test_of_two_pins_the_later_holds_unless_the_other_has_priority() -> None:
    both = "*.up.weight = (B, S(0)){}\n*.weight = (B, B)"
    assert held(shard(both.format("")))["layers.0.up.weight"] == "[data = B, tensor = B]"
    kept = held(shard(both.format(" priority 1")))
    assert kept["layers.0.up.weight"] == "[data = B, tensor = S(0)]"
    assert kept["layers.1.down.weight"] == "[data = B, tensor = B]"


def test_what_is_forbidden_is_avoided() -> None:
    assert "S(1)" in held(shard(""))["layers.0.up.weight"]
    kept = held(shard("forbid *.up.weight = [data = S(1)]; forbid *.up.weight = [tensor = S(1)]"))
    assert "S(1)" not in kept["layers.0.up.weight"]


def test_a_glob_is_about_tensors_that_have_the_dims_it_splits() -> None:
    """A scalar, such as a step's learning rate, has nothing to split; by its name it is refused."""

    def build(b: FlowBuilder, x: SSAValue, lr: SSAValue) -> list[SSAValue]:
        return [b.pointwise("mul", x, lr)]

    args = [("input", "x", T((4, 8))), ("input", "lr", T(()))]
    module = shard("* = [data = S(0)]", module=_module(args, build))
    assert held(module)["x"].startswith("[data = S(0)")
    for pins in ("lr = [data = S(0)]", "l* = [data = S(0)]"):
        with pytest.raises(IrcError, match="'lr' has 0 dims") as raised:
            shard(pins, module=_module(args, build))
        assert raised.value.code == "placement-syntax"


def test_an_op_is_pinned_by_id_or_by_line_or_by_its_signature() -> None:
    assert made(shard(""), "n0") != "[data = B, tensor = S(0)]"
    assert made(shard("pin op n0 = (B, S(0))"), "n0") == "[data = B, tensor = S(0)]"
    assert made(shard("pin op forward/n0 = (B, S(0))"), "n0") == "[data = B, tensor = S(0)]"
    assert made(shard('pin at "model.py:7" = (B, S(0))'), "n0") == "[data = B, tensor = S(0)]"
    module = shard("op n2 = (B, S(1)), (B, S(0)) -> (B, P)")
    assert made(module, "n2") == "[data = B, tensor = P(sum)]"
    assert (
        made(shard("forbid op n2 = [data = P(*)]; forbid op n2 = (*, P(*))"), "n2").count("P") == 0
    )


def test_a_result_is_pinned_by_its_number() -> None:
    def build(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return b.ops(SortOp, [x], dim=1, descending=False)

    args = [("input", "x", T((4, 8)))]
    module = shard("op n0#1 = (S(0), B)", module=_module(args, build))
    assert made(module, "n0", 0) == made(module, "n0", 1) == "[data = S(0), tensor = B]"


@pytest.mark.parametrize(
    ("pins", "code", "says"),
    [
        ("*.upp.weight = B, B", "input-mismatch", "did you mean 'layers.0.up.weight'?"),
        ("op n9 = B, B", "input-mismatch", "there is no op 'n9'"),
        ("op n0#1 = B, B", "input-mismatch", "has 1 results; there is no #1"),
        ('at "model.py:9" = B, B', "input-mismatch", "no op comes from line"),
        ("x = B", "mesh-mismatch", "lists 1 axes; the mesh is data=2,tensor=2"),
        ("x = [tenser = B]", "mesh-mismatch", "places on tenser"),
        ("x = S(2), B", "placement-syntax", "axis 'data' cannot split dim 2"),
        ("x = (B) -> (B)", "mesh-mismatch", "lists 1 axes"),
        ("x = (B, B) -> (B, B)", "placement-syntax", "has a placement and no signature"),
        ("op n0 = (B, B) -> (B, B)", "placement-syntax", "takes 2 operands"),
        ("x = P, B", "placement-syntax", "makes an argument partial on data"),
    ],
)
def test_what_names_nothing_or_fits_nowhere_is_refused(pins: str, code: str, says: str) -> None:
    error = failure(f"# a file\n\n{pins}\n")
    assert error.code == code
    assert error.where == "pins, line 3"
    assert says in error.render()


def test_shards_that_are_not_equal_are_refused_with_the_sizes_that_would_do() -> None:
    error = failure("x = [a = S(0)] equal", mesh="a=4")
    assert error.code == "mesh-axis-indivisible"
    assert "cannot shard 'x' dim 0 (6) over mesh axis 'a' (4)" in error.message
    assert error.because == ("the pin asks for equal shards, and 6 is not a multiple of 4",)
    assert "(2, 3, 6)" in error.help


def test_constraints_that_leave_nothing_name_themselves_and_what_there_was() -> None:
    error = failure("pin op n1 = (P, B)")
    assert (error.code, error.exit_code) == ("sharding-infeasible", 4)
    assert error.where == "net/model.py:8"
    assert "group pin: 'pin op n1 = (P(sum), B)' (pins)" in error.because
    assert "[data = S(0), tensor = S(1)]" in error.help
    error = failure("pin x = (S(0), B)\nforbid x = (S(*), *)")
    assert [note.partition(":")[0] for note in error.because] == ["group pin", "group forbid"]
    # A forbid of lower priority gives way.
    assert held(shard("pin x = (S(0), B) priority 1\nforbid x = (S(*), *)"))["x"].startswith(
        "[data = S(0)"
    )


def test_a_file_and_a_mapping_say_the_same_as_text(tmp_path: Path) -> None:
    path = tmp_path / "plan.sbp"
    path.write_text("# up is split by rows\n*.up.weight = (B, S(0))\n")
    assert held(shard(str(path))) == held(shard("*.up.weight = (B, S(0))"))
    placement = Placement.of(data=B, tensor=Split(0))
    for pins in ({"*.up.weight": placement}, {"*.up.weight": "B, S(0)"}, path):
        assert held(shard(pins_option(pins))) == held(shard(str(path)))
    path.write_text("*.upp.weight = (B, S(0))\n\n*.weight = (B\n")
    assert failure(str(path)).where == "plan.sbp, line 3, column 14"
    assert failure(str(tmp_path / "none.sbp")).code == "file-missing"


def test_the_plan_remembers_its_constraints_without_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.sbp"
    path.write_text("*.up.weight = (B, S(0))\n")
    attr = shard(str(path)).attributes["irc.auto_shard"]
    assert isinstance(attr, StringAttr)
    options = json.loads(attr.data)
    assert options["pins"] == "*.up.weight = (B, S(0))\n"
    assert held(shard("")) != held(shard(options["pins"]))


def test_same_is_read_and_printed() -> None:
    (constraint,) = parse_constraints('same layers.{0-3}.up.weight, "x y"')
    assert (constraint.verb, constraint.glob, constraint.others) == (
        "same",
        "layers.{0-3}.up.weight",
        ("x y",),
    )
    (plain,) = parse_constraints("same a.*, b")
    assert parse_constraints(str(plain)) == (plain,)
    # An argument may be called so.
    assert parse_constraints('"same" = [tensor = S(0)]')[0].glob == "same"
    for text in ("same a", "same a, b = S(0)", "same"):
        with pytest.raises(IrcError):
            parse_constraints(text)


def test_same_gives_two_arguments_one_placement() -> None:
    """Apart, Megatron's pairing wants the rows of the second weight."""
    pins = "*.up.weight = S(1)"
    assert held(shard(pins, mesh="tensor=2"))["layers.1.down.weight"] == "[tensor = S(0)]"
    linked = held(shard(f"{pins}; same *.up.weight, *.down.weight", mesh="tensor=2"))
    assert linked["layers.1.down.weight"] == linked["layers.0.up.weight"] == "[tensor = S(1)]"
    free = held(shard("same *.down.weight, *.up.weight", mesh="tensor=2"))
    assert free["layers.1.down.weight"] == free["layers.0.up.weight"]


def test_same_joins_overlapping_groups_and_refuses_what_cannot_be() -> None:
    same = "same *.up.weight, *.down.weight"
    pins = f"{same}; same *.down.weight, x; *.up.weight = [tensor = B]"
    assert set(held(shard(pins, mesh="tensor=2")).values()) == {"[tensor = B]"}
    with pytest.raises(IrcError, match="lie in the same way") as caught:
        shard(f"{same}; *.up.weight = S(0); *.down.weight = S(1)", mesh="tensor=2")
    assert caught.value.code == "sharding-infeasible"
    with pytest.raises(IrcError, match="names no argument"):
        shard("same *.weight, nobody")


def test_constraints_without_ranks_are_refused() -> None:
    assert default_pipeline(Options(pins="# nothing\n"))
    with pytest.raises(IrcError, match="places something among ranks") as caught:
        default_pipeline(Options(pins="*.weight = B"))
    assert caught.value.code == "mesh-mismatch"
    # A script may run on one rank, where its axes have a size of 1.
    assert default_pipeline(Options(mesh=Mesh.parse("data=1"), pins="*.weight = B"))


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        ("fuse n4", "names one op"),
        ("fuse n4, n4", "names an op twice"),
        ("keep n3, n3 apart", "names an op twice"),
        ("keep apart", "stops making sense"),
        ("keep n3", "stops making sense at 'the end'"),
        ("same x", "stops making sense"),
        ("pin x", "stops making sense"),
    ],
)
def test_a_statement_that_asks_for_nothing_is_no_missing_file(pins: str, says: str) -> None:
    with pytest.raises(IrcError) as caught:
        parse_fusion(*constraint_text(pins))
    assert caught.value.code == "constraint-syntax"
    assert says in caught.value.render()


def test_a_glob_may_fuse_what_it_matches() -> None:
    text = 'fuse n{3-5}; fuse at "model.py:42"; keep n7 apart'
    assert len(parse_fusion(*constraint_text(text))) == 3
