"""What can be taken away of a program in text form, at any level."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import prod

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import Pure

from irc.dialects.builder import argument_attrs, functions
from irc.dialects.dominance import verify_module
from irc.dialects.text import dump, load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.pipeline.failure import Failure, Stage
from irc.reproduce.smallest import Smallest

ENTRY = "forward"
SHAPES = re.compile(r"<\[([\d, ]*)\]")
LITERALS = re.compile(r'"(?:[^"\\]|\\.)*"')


def smallest_program(
    module: ModuleOp, stage: Stage, failure: Failure, seconds: float
) -> Smallest[ModuleOp]:
    """Search for a small program on which a stage fails as it does on this one.

    Args:
        module: a program on which it fails; not changed.
        stage: what fails.
        failure: how it fails.
        seconds: that the search may take.
    """

    def fails(candidate: ModuleOp) -> bool:
        now = stage.failure(candidate.clone())
        return now is not None and now.is_like(failure)

    smallest = Smallest(module, fails, size_of, seconds)
    smallest.search(
        (
            _other_entries,
            _symbols,
            _last_ops,
            _ops,
            _results,
            _bypasses,
            _attributes,
            _smaller_shapes,
        )
    )
    return smallest


def size_of(module: ModuleOp) -> tuple[int, ...]:
    """Return ops, ends of functions, attributes of the module, and elements of tensors."""
    ops = list(module.walk())
    funcs = functions(module).values()
    ends = sum(len(f.function_type.inputs) + len(f.function_type.outputs) for f in funcs)
    elements = sum(_elements(result.type) for op in ops for result in op.results)
    elements += sum(_elements(arg.type) for f in funcs for arg in f.body.block.args)
    return len(ops), ends, len(module.attributes), elements


def ops_of(module: ModuleOp) -> int:
    """Return how many ops there are, but for what holds others and returns."""
    return sum(not isinstance(op, ModuleOp | FuncOp | ReturnOp) for op in module.walk())


def _elements(kind: Attribute) -> int:
    if not isinstance(kind, TensorType):
        return 0
    return prod(size if type(size) is int else 2 for size in kind.shape)


Edit = Callable[[ModuleOp], None]


def edited(module: ModuleOp, edit: Edit) -> ModuleOp | None:
    """Return a valid copy with an edit and nothing that is now unused, or None."""
    copy = module.clone()
    try:
        edit(copy)
        _sweep(copy)
        verify_module(copy)
    # An edit may break any rule of any level: then it is no candidate.
    except Exception:
        return None
    return copy


def _sweep(module: ModuleOp) -> None:
    """Remove ops, arguments of the entry and symbols that nothing reads."""
    for func in functions(module).values():
        for op in reversed(list(func.body.block.ops)):
            if op.results and _is_unread(op.results) and op.has_trait(Pure):
                op.detach()
                op.erase()
    if (func := functions(module).get(ENTRY)) is not None:
        block = func.body.block
        kept = [index for index, arg in enumerate(block.args) if not _is_unread([arg])]
        attrs = func.arg_attrs.data if func.arg_attrs else ()
        for arg in [each for each in block.args if _is_unread([each])]:
            block.erase_arg(arg)
        if attrs:
            func.arg_attrs = ArrayAttr([attrs[index] for index in kept])
        _retype(func)
    named = set(_named(module))
    for op in list(module.body.block.ops):
        name = op.properties.get("sym_name")
        if isinstance(name, StringAttr) and name.data not in named | {ENTRY} and named:
            op.detach()
            op.erase()


def _is_unread(values: Sequence[SSAValue]) -> bool:
    return not any(value.uses for value in values)


def _named(module: ModuleOp) -> Iterator[str]:
    for op in module.walk():
        for attr in (*op.properties.values(), *op.attributes.values()):
            if isinstance(attr, SymbolRefAttr):
                yield attr.string_value()


def _retype(func: FuncOp) -> None:
    block = func.body.block
    ends = block.last_op
    outputs = list(ends.operands) if ends is not None else []
    func.function_type = FunctionType.from_lists(
        [arg.type for arg in block.args], [value.type for value in outputs]
    )


def _body(module: ModuleOp) -> list[Operation]:
    """Return the ops of the entry but for its return."""
    func = functions(module).get(ENTRY)
    return [] if func is None else list(func.body.block.ops)[:-1]


def _returned(func: FuncOp, values: Sequence[SSAValue]) -> None:
    """Return other values from a function."""
    old = func.body.block.last_op
    assert old is not None
    func.body.block.add_op(ReturnOp(*values))
    old.detach()
    old.erase()
    func.res_attrs = ArrayAttr(
        [argument_attrs("output", f"output{index}") for index in range(len(values))]
    )
    _retype(func)


def _other_entries(smallest: Smallest[ModuleOp]) -> None:
    """Another function alone: a layer in place of the model."""
    for name in functions(smallest.subject):
        if name == ENTRY:
            continue

        def alone(copy: ModuleOp, name: str = name) -> None:
            known = functions(copy)
            if (old := known.get(ENTRY)) is not None:
                old.detach()
                old.erase()
            known[name].sym_name = StringAttr(ENTRY)
            count = len(known[name].body.block.args)
            known[name].arg_attrs = ArrayAttr(
                [argument_attrs("input", f"x{index}") for index in range(count)]
            )

        if smallest.offer(edited(smallest.subject, alone)):
            return


def _symbols(smallest: Smallest[ModuleOp]) -> None:
    """Kernels and functions of the module."""

    def without(module: ModuleOp, part: range) -> ModuleOp | None:
        def edit(copy: ModuleOp) -> None:
            for op in list(copy.body.block.ops)[part.start : part.stop]:
                op.detach()
                op.erase()

        return edited(module, edit) if len(part) < len(module.body.block.ops) else None

    smallest.without_parts(lambda module: len(module.body.block.ops), without)


def _last_ops(smallest: Smallest[ModuleOp]) -> None:
    """The last ops of the entry: what they read is returned in their place."""
    length = len(_body(smallest.subject)) // 2
    while length:

        def shorter(copy: ModuleOp, length: int = length) -> None:
            func, ops = functions(copy)[ENTRY], _body(copy)
            ended = set(ops[len(ops) - length :])
            last = func.body.block.last_op
            read = {value: None for op in (*ended, last) if op for value in op.operands}
            known = {result for op in ops[: len(ops) - length] for result in op.results}
            _returned(func, [value for value in read if value in known])
            for op in reversed(ops[len(ops) - length :]):
                op.detach()
                op.erase()

        if not smallest.offer(edited(smallest.subject, shorter)):
            length //= 2
        length = min(length, len(_body(smallest.subject)))


def _ops(smallest: Smallest[ModuleOp]) -> None:
    """Ops of the entry: what others read of them becomes an argument."""

    def without(module: ModuleOp, part: range) -> ModuleOp | None:
        def edit(copy: ModuleOp) -> None:
            func = functions(copy)[ENTRY]
            ops = _body(copy)[part.start : part.stop]
            attrs = list(func.arg_attrs.data) if func.arg_attrs else []
            attrs += [DictionaryAttr({})] * (len(func.body.block.args) - len(attrs))
            own = set(ops)
            for op in ops:
                for result in op.results:
                    if any(use.operation not in own for use in result.uses):
                        block = func.body.block
                        new = block.insert_arg(result.type, len(block.args))
                        attrs.append(argument_attrs("input", _free_name(attrs)))
                        result.replace_all_uses_with(new)
            func.arg_attrs = ArrayAttr(attrs)
            for op in reversed(ops):
                op.detach()
                op.erase()

        return edited(module, edit)

    smallest.without_parts(lambda module: len(_body(module)), without)


def _free_name(attrs: Sequence[DictionaryAttr]) -> str:
    taken = {f"{each.data.get('name')}" for each in attrs}
    return next(name for n in count() if f'"{(name := f"cut{n}")}"' not in taken)


def _results(smallest: Smallest[ModuleOp]) -> None:
    """Results of the entry."""

    def number(module: ModuleOp) -> int:
        func = functions(module).get(ENTRY)
        return 0 if func is None else len(func.function_type.outputs)

    def without(module: ModuleOp, part: range) -> ModuleOp | None:
        def edit(copy: ModuleOp) -> None:
            func = functions(copy)[ENTRY]
            last = func.body.block.last_op
            kept = [v for i, v in enumerate(last.operands if last else ()) if i not in part]
            _returned(func, kept)

        return edited(module, edit)

    smallest.without_parts(number, without)


def _bypasses(smallest: Smallest[ModuleOp]) -> None:
    """An op whose result is of the type of an operand: that stands in its place."""
    index = 0
    while index < len(_body(smallest.subject)):
        if not any(smallest.offer(each) for each in _bypassed(smallest.subject, index)):
            index += 1


def _bypassed(module: ModuleOp, index: int) -> Iterator[ModuleOp | None]:
    op = _body(module)[index]
    if len(op.results) != 1:
        return
    for place, operand in enumerate(op.operands):
        if operand.type != op.results[0].type:
            continue

        def edit(copy: ModuleOp, place: int = place) -> None:
            own = _body(copy)[index]
            own.results[0].replace_all_uses_with(own.operands[place])
            own.detach()
            own.erase()

        yield edited(module, edit)


def _attributes(smallest: Smallest[ModuleOp]) -> None:
    """What is written on the module, such as the account of a search."""
    for name in list(smallest.subject.attributes):

        def edit(copy: ModuleOp, name: str = name) -> None:
            del copy.attributes[name]

        smallest.offer(edited(smallest.subject, edit))


def _smaller_shapes(smallest: Smallest[ModuleOp]) -> None:
    """One size wherever it stands, in shapes and in attributes, the greatest first."""
    text = dump(smallest.subject)
    sizes = {int(n) for each in SHAPES.findall(text) for n in re.findall(r"\d+", each)}
    for size in sorted(sizes, reverse=True):
        for less in (1, 2, 3, size // 4, size // 2):
            if 0 < less < size and smallest.offer(resized(dump(smallest.subject), size, less)):
                break


def resized(text: str, size: int, less: int) -> ModuleOp | None:
    """Return the program with another number for a size, or None where it is none then.

    >>> line = 'func.func @forward(%0: !flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 4], f32>'
    >>> module = resized(f"{line} {{ func.return %0 : !flow.tensor<[8, 4], f32> }}", 8, 2)
    >>> "[2, 4]" in dump(module)
    True
    """
    number = re.compile(rf"(?<![\w.@%-]){size}(?![\w.])")
    strings = list(LITERALS.finditer(text))
    ends = [0, *(match.end() for match in strings)]
    starts = [*(match.start() for match in strings), len(text)]
    parts: list[str] = []
    for index, (end, start) in enumerate(zip(ends, starts, strict=True)):
        parts.append(number.sub(str(less), text[end:start]))
        if index < len(strings):
            parts.append(strings[index][0])  # names and specs have numbers of their own
    try:
        return load("".join(parts))
    except IrcError:
        return None
