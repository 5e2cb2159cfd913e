"""``native/host.json``: a host program for a process without torch.

    native/manifest.json        digests of the next two
    native/host.json            the steps of the host, and which native program each region is
    native/weights.bin          the arrays that the host reads
    native/region_0/            the native program of a region

What is here was worked out when the plan was compiled. Steps run ops of ONNX on arrays; a file that
names values, functions or arrays that there are not is refused before any of them runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from irc.plan import json_text
from irc.plan.host_code import ENTRY, Call, Function, HostCode, Library, Node
from irc.plan.json_text import corrupt
from irc.plan.native import NATIVE_FORMAT
from irc.plan.version import check_format

HOST = "host.json"
FUNCTION = "function"
"""The key of an attribute that is a body."""
REGION = re.compile(r"region_[0-9]{1,6}")


@dataclass(frozen=True)
class StoredArray:
    """An array of weights.bin: where it begins, and what it is; row-major."""

    start: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NativeHost:
    """The content of host.json.

    Attributes:
        plan: the hash of the host program that it was made from.
        code: its steps.
        arrays: those that its functions name by number.
        regions: the hash of the native program of each region, by name.
    """

    plan: str
    code: HostCode
    arrays: tuple[StoredArray, ...]
    regions: Mapping[str, str]
    irc: str = ""


def native_host_text(host: NativeHost) -> str:
    """Print the file; equal programs print equally."""
    return json_text.dump({"format": NATIVE_FORMAT, **json_text.encode(host)})


def parse_native_host(text: bytes, where: str) -> NativeHost:
    """Read the file.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    data = json_text.parse_object(text, where)
    check_format(data.pop("format", None), where, NATIVE_FORMAT, "the native program")
    host: NativeHost = json_text.decode(NativeHost, data, where)
    for name in host.regions:
        if not REGION.fullmatch(name):
            raise corrupt(f"{name[:80]!r} is not the name of a region", where)
    if problem := _problem(host):
        raise corrupt(problem, where)
    return host


def _problem(host: NativeHost) -> str | None:
    """Say what does not fit together, or None."""
    code = host.code
    if set(code.regions) != set(host.regions) or set(code.functions) & set(host.regions):
        return "it calls other regions than it has"
    if ENTRY not in code.functions:
        return f"it has no function {ENTRY}"
    entry = code.functions[ENTRY]
    if len(entry.inputs) != len(code.inputs) or len(entry.outputs) != len(code.outputs):
        return "it has other inputs or outputs than its first function"
    for each in code.symbols:
        stated = dict(enumerate(entry.inputs)).get(each.input)
        if stated is None or not 0 <= each.dim < len(stated.shape):
            return f"size '{each.name[:40]}' stands in a dim that there is not"
    known = {each.symbol for each in code.symbols}
    for quotient in code.quotients:
        if any(name not in known for _, names in (*quotient.dim, *quotient.by) for name in names):
            return "a size follows from one that there is not"
        known.add(quotient.symbol)
    if any(n not in known for c in code.conditions for _, names in c.difference for n in names):
        return "a condition is about a size that there is not"
    for name, function in code.functions.items():
        if problem := _problem_in(function, host):
            return f"function {name[:40]!r} {problem}"
    return _cycle(code)


def _problem_in(function: Function, host: NativeHost) -> str | None:
    """Say what of a function does not fit: each value is written once, and before it is read."""
    count = function.values
    written = set(range(len(function.inputs))) | {slot for slot, _ in function.stored}
    if not len(function.inputs) <= count or any(not 0 <= slot < count for slot in written):
        return f"names values beyond the {count} that it has"
    if any(not 0 <= number < len(host.arrays) for _, number in function.stored):
        return f"names an array beyond the {len(host.arrays)} that there are"
    if count > 1 << 20:
        return "has more values than are read"
    for step in function.steps:
        inputs = getattr(step, "inputs", ())
        outputs = getattr(step, "outputs", None) or (getattr(step, "output", -1),)
        if not set(inputs) <= written:
            return "reads a value that nothing wrote"
        if isinstance(step, Library):
            return f"leaves {step.op[:40]} to torch"
        if isinstance(step, Node | Call) and len(step.outputs) != len(step.stated):
            return "states other results than a step has"
        if isinstance(step, Call) and (problem := _call_problem(step, host)):
            return problem
        if any(not 0 <= slot < count for slot in outputs) or set(outputs) & written:
            return "writes a value twice, or one that it has not"
        written |= set(outputs)
    return None if set(function.outputs) <= written else "gives a value that nothing wrote"


def _call_problem(step: Call, host: NativeHost) -> str | None:
    if step.function in host.regions:
        return None
    called = host.code.functions.get(step.function)
    if called is None:
        return f"calls {step.function[:40]!r}, which there is not"
    fits = len(called.inputs) == len(step.inputs) and len(called.outputs) == len(step.outputs)
    return None if fits else f"calls {step.function[:40]!r} with other values than it takes"


def _cycle(code: HostCode) -> str | None:
    """Say which function calls itself, whatever lies between; None where none does."""
    done: set[str] = set()
    for start in code.functions:
        path: list[tuple[str, Iterator[str]]] = [(start, iter(_called(code, start)))]
        while path:
            name, rest = path[-1]
            following = next(rest, None)
            if following is None:
                done.add(name)
                path.pop()
            elif any(following == each for each, _ in path):
                return f"function {following[:40]!r} calls itself"
            elif following not in done:
                path.append((following, iter(_called(code, following))))
    return None


def _called(code: HostCode, name: str) -> list[str]:
    called: list[str] = []
    for step in code.functions[name].steps:
        if isinstance(step, Call):
            called.append(step.function)
        elif isinstance(step, Node):
            called += bodies_of(step)
    return [each for each in called if each in code.functions]


def bodies_of(step: Node) -> list[str]:
    """Return the names of the functions that an op of ONNX calls: branches and bodies.

    Raises:
        IrcError: ``plan-corrupt`` where its arguments are none.
    """
    data: Any = json_text.parse(step.arguments, HOST)
    try:
        _, options = data
        bodies = [_body(each) for each in options["attributes"].values()]
    except (AttributeError, LookupError, TypeError, ValueError):
        raise corrupt(f"{step.target[:80]} has arguments of another form", HOST) from None
    names = [name for name in bodies if name is not None]
    if not all(isinstance(name, str) for name in names):
        raise corrupt(f"{step.target[:80]} has a body without a name", HOST)
    return names


def _body(attribute: Any) -> Any:
    """Return the name of a body; None for another attribute."""
    if not isinstance(attribute, dict):
        return None
    return cast("dict[str, Any]", attribute).get(FUNCTION)
