"""Ways to spoil a model: each takes a model and a generator, and returns the bytes of a file.

Some change bytes, some a random field of the message, and some what only an enemy would write:
paths that leave the folder, sizes that no memory holds, bodies without an end.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import onnx
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto, helper

Mutation: TypeAlias = Callable[[onnx.ModelProto, random.Random], bytes]

HOSTILE = (
    "", "..", "../../canary", "/etc/passwd", "a\0b", "a\nb", "*/ system(0); /*", "?" * 5000,
    "$(touch canary)", '"; import os; os.system("touch canary")', "%s%n", "\u202e\u0000",
    "__import__('os').system('touch canary')", "9**9**9", "-1", "NaN", "\\", "CON", "<script>",
)  # fmt: skip
"""What may stand where a name is expected."""

EXTREMES = (-1, 0, 1, 2, 31, 2**15, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))

LOCATIONS = (
    "../secret.bin", "/etc/passwd", "sub/../../secret.bin", ".", "", "missing.bin", "/dev/zero",
    "link.bin", "pipe", "w.bin\0x", "~/.netrc", "file:///etc/passwd",
)  # fmt: skip


def flipped(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Change a few bytes."""
    data = bytearray(model.SerializeToString())
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def cut(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """End the file early."""
    data = model.SerializeToString()
    return data[: chance.randrange(len(data))]


def spliced(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Put random bytes, or a part of the file itself, into the middle."""
    data = model.SerializeToString()
    at, start = chance.randrange(len(data)), chance.randrange(len(data))
    length = chance.randint(1, 64)
    piece = chance.choice([chance.randbytes(length), data[start : start + length]])
    return data[:at] + piece + data[at:]


def foreign(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Another kind of file altogether."""
    data = model.SerializeToString()
    return chance.choice([
        b"", b"\n", b"<html><body>404 Not Found</body></html>", gzip.compress(data),
        b"PK\x03\x04" + chance.randbytes(200), chance.randbytes(500), b"\x80\x04" + data,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", b"\x0a" * 4000,
    ])  # fmt: skip


def field(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Set one random field of the message to a value that it should not have."""
    owner, kind = chance.choice(list(_fields(model)))
    _spoil(owner, kind, chance)
    return model.SerializeToString()


def removed(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Remove, repeat or reorder elements of a repeated field."""
    repeated = [(o, k) for o, k in _fields(model) if k.is_repeated]
    owner, kind = chance.choice(repeated)
    values = getattr(owner, kind.name)
    at, change = chance.randrange(len(values)), chance.choice(["remove", "repeat", "reverse"])
    kept = list(values)
    if change == "remove":
        kept = kept[:at] + kept[at + 1 :]
    elif change == "repeat":
        kept = [*kept, kept[at]]
    else:
        kept = kept[::-1]
    copies = [_copy(each) for each in kept]
    owner.ClearField(kind.name)
    getattr(owner, kind.name).extend(copies)
    return model.SerializeToString()


def rewired(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Read another value, perhaps a later one: a cycle, a missing name, another shape."""
    nodes = [n for n in model.graph.node if n.input]
    node = chance.choice(nodes)
    names = [name for n in model.graph.node for name in (*n.input, *n.output)]
    node.input[chance.randrange(len(node.input))] = chance.choice([*names, "nothing"])
    return model.SerializeToString()


def operator(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Another op, domain, opset or attribute."""
    node = chance.choice(list(model.graph.node))
    what = chance.randrange(5)
    if what == 0:
        node.op_type = chance.choice(
            ["Cov", "Exp2", "Softmax", "Concat", "Split", "Einsum", "Tile"]
        )
    elif what == 1:
        node.domain = chance.choice(["nobody", "com.microsoft", "ai.onnx.ml"])
    elif what == 2:
        model.opset_import[0].version = chance.choice([0, -1, 6, 999])
    elif what == 3:
        values: list[Any] = [-7, [2**62], "no", [1.5], 2**62]
        node.attribute.append(helper.make_attribute("axis", chance.choice(values)))
    else:
        model.ir_version = chance.choice([0, 99, -3])
    return model.SerializeToString()


def external(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Weights that lie outside the folder, or where nothing does."""
    weights = model.graph.initializer
    if not weights:
        weights.add(name="stray", data_type=TensorProto.FLOAT, dims=[4])
    weight = chance.choice(list(weights))
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    del weight.external_data[:]
    entries = {"location": chance.choice([*LOCATIONS, "w.bin"])}
    for key in ("offset", "length"):
        if chance.random() < 0.6:
            entries[key] = str(chance.choice([*EXTREMES, "x", "1e9", ""]))
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return model.SerializeToString()


def bomb(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Little text, much memory or time."""
    size = chance.choice([2**40, 2**62, 2**63 - 1])
    name = chance.choice(["ConstantOfShape", "Expand", "Range", "Tile", "deep", "wide"])
    graph = model.graph
    if name == "deep":
        body = helper.make_graph([], "leaf", [], [_scalar("v0")])
        body.node.append(helper.make_node("Identity", ["flag"], ["v0"]))
        for depth in range(1, chance.choice([20, 60, 200])):
            outer = helper.make_graph([], f"d{depth}", [], [_scalar(f"v{depth}")])
            node = helper.make_node("If", ["flag"], [f"v{depth}"])
            node.attribute.append(helper.make_attribute("then_branch", body))
            node.attribute.append(helper.make_attribute("else_branch", body))
            if outer.ByteSize() + 2 * body.ByteSize() > 400_000:
                break
            outer.node.append(node)
            body = outer
        graph.node.extend(body.node)
        return model.SerializeToString()
    if name == "wide":
        graph.node.append(helper.make_node("Concat", ["nothing"] * 50_000, ["w"], axis=0))
        return model.SerializeToString()
    graph.initializer.append(helper.make_tensor("big", TensorProto.INT64, [2], [size, size]))
    graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [], [1]))
    graph.initializer.append(helper.make_tensor("most", TensorProto.INT64, [], [size]))
    graph.initializer.append(helper.make_tensor("seed", TensorProto.FLOAT, [1, 1], [1.0]))
    inputs = {
        "ConstantOfShape": ["big"], "Expand": ["seed", "big"], "Tile": ["seed", "big"],
        "Range": ["one", "most", "one"],
    }[name]  # fmt: skip
    graph.node.append(helper.make_node(name, inputs, ["huge"]))
    graph.output.append(onnx.ValueInfoProto(name="huge"))
    return model.SerializeToString()


def recursive(model: onnx.ModelProto, chance: random.Random) -> bytes:
    """Functions that call each other without an end."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("loop", 1)]
    count = chance.randint(1, 3)
    for index in range(count):
        call = helper.make_node(f"F{(index + 1) % count}", ["a"], ["b"], domain="loop")
        model.functions.append(
            helper.make_function("loop", f"F{index}", ["a"], ["b"], [call], opsets)
        )
    if not any(each.domain == "loop" for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid("loop", 1))
    first = model.graph.input[0].name
    model.graph.node.append(helper.make_node("F0", [first], ["endless"], domain="loop"))
    model.graph.output.append(onnx.ValueInfoProto(name="endless"))
    return model.SerializeToString()


MUTATIONS: Mapping[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        flipped, cut, spliced, foreign, field, removed, rewired, operator, external, bomb,
        recursive,
    )
}  # fmt: skip


def _scalar(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [])


def _fields(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Yield every set field of a message and of those inside it."""
    for kind, value in message.ListFields():
        yield message, kind
        if kind.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if kind.is_repeated else [value]:
                yield from _fields(each)


def _copy(value: Any) -> Any:
    if not hasattr(value, "CopyFrom"):
        return value
    copied = type(value)()
    copied.CopyFrom(value)
    return copied


def _spoil(owner: Any, kind: FieldDescriptor, chance: random.Random) -> None:
    if kind.type == FieldDescriptor.TYPE_MESSAGE:
        owner.ClearField(kind.name)
        return
    if kind.type == FieldDescriptor.TYPE_STRING:
        value: Any = chance.choice(HOSTILE)
    elif kind.type == FieldDescriptor.TYPE_BYTES:
        value = chance.randbytes(chance.choice([0, 1, 7, 4096]))
    elif kind.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        value = chance.choice([float("nan"), float("inf"), -1e30, 0.0])
    elif kind.type == FieldDescriptor.TYPE_ENUM:
        value = chance.choice([0, 1, 2, 7])
    else:
        narrow = kind.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32)
        allowed = [n for n in EXTREMES if not narrow or abs(n) < 2**31]
        value = chance.choice(
            [n for n in allowed if n >= 0] if "UINT" in str(kind.type) else allowed
        )
    if kind.is_repeated:
        values = getattr(owner, kind.name)
        values[chance.randrange(len(values))] = value
    else:
        setattr(owner, kind.name, value)
