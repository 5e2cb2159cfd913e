"""IR text: what prints parses back; what is wrong is refused in one located message."""

import math

import pytest
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
    f32,
    f64,
)
from xdsl.ir import Block

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import PadOp
from irc.dialects.literals import ConstantOp
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.text import context, dump, load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.universe import DIALECTS, load_dialect

PROGRAM = """
builtin.module {
  task.kernel @k0 {template = "rows", space = array<i64: 8, 16>, parallel = 1 : i64,
      num_inputs = 1 : i64, mapping = #task.map<spatial(2) * repeat(4)>} : {
  ^bb0(%x: !task.buffer<128, f32>, %o: !task.buffer<128, f32>):
    %v = task.load(%x) {offset = 0 : i64, strides = array<i64: 16, 1>}
        : (!task.buffer<128, f32>) -> !task.value<f32, full>
    %s = task.reduce(%v) {fn = "sum"} : (!task.value<f32, full>) -> !task.value<f32, row>
    %d = task.pointwise(%v, %s) {fn = "sub"}
        : (!task.value<f32, full>, !task.value<f32, row>) -> !task.value<f32, full>
    task.store(%d, %o) {offset = 0 : i64, strides = array<i64: 16, 1>}
        : (!task.value<f32, full>, !task.buffer<128, f32>) -> ()
  }
  func.func @forward(%x: !flow.tensor<[8, 16], f32> {role = "input", name = "x"})
      -> !flow.tensor<[8, 16], f32> {
    %r = task.launch(%x) {kernel = @k0, loc = "x:1", id = "n3"}
        : (!flow.tensor<[8, 16], f32>) -> !flow.tensor<[8, 16], f32>
    %p = comm.all_reduce(%r) {axis = "tensor", fn = "sum", loc = "x:2", id = "n4"}
        : (!flow.tensor<[8, 16], f32>) -> !comm.pending<!flow.tensor<[8, 16], f32>>
    %w = comm.wait(%p) {loc = "x:2", id = "n4"}
        : (!comm.pending<!flow.tensor<[8, 16], f32>>) -> !flow.tensor<[8, 16], f32>
    func.return %w : !flow.tensor<[8, 16], f32>
  }
}
"""


def test_printing_is_a_fixed_point_of_parsing() -> None:
    text = dump(load(PROGRAM))
    assert dump(load(text)) == text
    for kept in ('id = "n3"', 'loc = "x:2"', "spatial(2) * repeat(4)"):
        assert kept in text


def test_what_is_printed_is_what_xdsl_prints() -> None:
    module = load(PROGRAM)
    op = next(op for op in module.walk() if op.name == "task.launch")
    # Equal numbers are no equal texts; a string is escaped byte by byte, and so is an odd key.
    odd = 'a "b" \\ \n\t\x7f é \u4e16'
    values = (0.0, -0.0, math.inf, math.nan, 1e-300, 0.1, 1e17)
    op.attributes["numbers"] = ArrayAttr([FloatAttr(x, t) for x in values for t in (f32, f64)])
    op.attributes["texts"] = ArrayAttr([StringAttr(odd), StringAttr(""), StringAttr("a.b$c")])
    op.attributes[odd] = DictionaryAttr({"a.b": UnitAttr(), "0": IntegerAttr(1, 1)})
    module.attributes["nested"] = DictionaryAttr({"x": DictionaryAttr({})})
    assert dump(module) == str(module) + "\n"


@pytest.mark.parametrize("numbers", [(math.inf, -math.inf, 1e17, 1e-300), (math.nan, 0.1)])
def test_numbers_that_print_as_their_bits_are_read_back(numbers: tuple[float, ...]) -> None:
    block = Block()
    builder = FlowBuilder(block)
    constant = builder.constant(numbers, (len(numbers),), "f64")
    kind = TensorType.of((len(numbers) + 1,), "f64")
    builder.op(PadOp, [constant], result=kind, low=(0,), high=(1,), value=numbers[0])
    module = ModuleOp([finish_function("f", block, [])])
    again = load(dump(module))
    attrs = [op.plain["value"] for op in again.walk() if isinstance(op, ConstantOp | PadOp)]
    assert repr(attrs) == repr([numbers, numbers[0]])


def test_bits_of_another_width_are_refused() -> None:
    with pytest.raises(IrcError, match="does not parse"):
        load(flow("%c = flow.constant() {value = array<f32: 0x7f800000>} : () -> " + X))


def flow(operation: str, argument: str = "!flow.tensor<[8, 4], f32>") -> str:
    """Return a function around one op of operand %x."""
    return f"func.func @f(%x: {argument}) {{\n  {operation}\n  func.return\n}}"


X = "!flow.tensor<[8, 4], f32>"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("func.func @f(", "ir-syntax", "does not parse"),
        ("\0", "ir-syntax", "NUL"),
        ("(" * 300, "ir-too-large", "deep"),
        # A lexer that tries every way to cut what is not closed would not come to an end.
        ('"' + "a" * 5000, "ir-syntax", "not closed"),
        (flow('%r = flow.exp(%x) {id = "n1'), "ir-syntax", "not closed"),
        (flow(r'%r = flow.exp(%x) {id = "n\q"}'), "ir-syntax", "not closed"),
        (f"!flow.tensor<[{'9' * 60}], f32>", "ir-too-large", "digits"),
        ("%0 = arith.constant dense<1> : tensor<1099511627776xi8>", "ir-invalid", "dense"),
        (flow("", "!flow.tensor<[8], f32, [data = S(1)]>"), "ir-invalid", "splits dim 1"),
        (flow("", "!flow.tensor<[8], f32, [data = Q]>"), "ir-syntax", "S(dim), B or P"),
        (flow("", "!flow.tensor<[8], f32, [a = S(0, 1)]>"), "ir-invalid", "ordered"),
        (flow("", "!flow.tensor<[8], index>"), "ir-invalid", "element type"),
        (
            flow(f"%r = flow.transpose(%x) {{perm = array<i64: 0, 0>}} : ({X}) -> {X}"),
            "ir-invalid",
            "does not permute",
        ),
        (
            flow(f"%r = flow.reshape(%x) : ({X}) -> !flow.tensor<[8, 5], f32>"),
            "ir-invalid",
            "reshape of",
        ),
        (
            flow(f'%r = flow.pointwise(%x) {{fn = "exp"}} : ({X}) -> !flow.tensor<[8, 4], f64>'),
            "ir-invalid",
            "gives",
        ),
    ],
)
def test_what_is_wrong_is_refused(text: str, code: str, says: str) -> None:
    with pytest.raises(IrcError, match=says.replace("(", r"\(").replace(")", r"\)")) as caught:
        load(text)
    assert caught.value.code == code


def test_comments_and_strings_hold_any_brackets_and_quotes() -> None:
    text = flow(f'%r = flow.reshape(%x) {{loc = "((((// \\22"}} : ({X}) -> {X}')
    load('// "one quote, ' + "(" * 300 + "\n" + text.replace("(((", "(" * 300))


def test_a_store_that_leaves_its_buffer_is_refused() -> None:
    with pytest.raises(IrcError, match="touches elements"):
        load(PROGRAM.replace("%d, %o) {offset = 0", "%d, %o) {offset = 1"))


def test_a_mapping_that_is_too_small_is_refused() -> None:
    with pytest.raises(IrcError, match="covers"):
        load(PROGRAM.replace("repeat(4)", "repeat(3)"))


def test_placements_print_as_oneflow_writes_them() -> None:
    placed = Placement.of(data=Split(0), tensor=Partial("max"), pipe=B)
    assert str(TensorType.of((8, 4), "f32", placed)).endswith(
        "[data = S(0), tensor = P(max), pipe = B]>"
    )


def test_two_axes_on_one_dim_keep_their_order() -> None:
    swapped = Placement((("data", Split(0, 1)), ("tensor", Split(0, 0))))
    text = f"func.func @f(%x: {TensorType.of((8, 4), 'f32', swapped)}) {{\n  func.return\n}}"
    assert "data = S(0, 1), tensor = S(0)" in dump(load(text))
    assert swapped.split_axes(0) == ("tensor", "data")


def test_meshes_number_ranks_row_major() -> None:
    mesh = Mesh.parse("data=2,tensor=4")
    assert [mesh.rank(mesh.coordinates(r)) for r in range(8)] == list(range(8))
    assert [list(g) for g in mesh.groups("data")] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("text", ["a=1", "a=4", "a=2,b=3,c=2", "a=3,b=1,c=2", "a=2,b=2,c=2,d=2"])
def test_groups_are_the_ranks_that_differ_on_one_axis(text: str) -> None:
    mesh = Mesh.parse(text)
    for axis in mesh.names:
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(mesh.num_ranks):
            place = mesh.coordinates(rank)
            key = tuple(v for name, v in place.items() if name != axis)
            groups.setdefault(key, []).append(rank)
        assert [list(group) for group in mesh.groups(axis)] == list(groups.values())
        for rank in range(mesh.num_ranks):
            assert rank in mesh.group_of(rank, axis)
            assert list(mesh.group_of(rank, axis)) in list(groups.values())


def test_the_group_of_one_of_many_ranks_is_arithmetic() -> None:
    mesh = Mesh.parse("data=1024,context=32,tensor=32")
    assert mesh.group_of(mesh.num_ranks - 1, "context") == range(1047583, 1048607, 32)


@pytest.mark.parametrize("text", ["data", "data=0", "data=2,data=2", "a b=2", "data=-1", "data=x"])
def test_malformed_meshes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|repeat|identifier|size"):
        Mesh.parse(text)


def test_xdsl_opt_knows_the_ops_that_irc_opt_knows() -> None:
    """Kernels of attention, scans and recurrent cells were not among them."""
    known = {op.name for name in DIALECTS for op in load_dialect(name).operations}
    mine = {op.name for op in context().loaded_ops if op.name.split(".")[0] in DIALECTS}
    assert {"task.along", "task.attention", "task.recurrent"} <= mine
    assert mine <= known
