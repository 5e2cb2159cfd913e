"""Every error has a page, and reads as it should."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from irc.error_pages import FAMILIES, PAGES, REGISTRY
from irc.errors import ErrorCollector, ExitCode, InternalError, IrcError, IrcErrors, printable

ROOT = Path(__file__).parents[1]


def codes_in_source() -> Iterator[tuple[str, str]]:
    for top in ("irc", "passes", "backends"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Name("IrcError") | ast.Attribute(attr="IrcError"),
                        args=[ast.Constant(str(code)), *_],
                    ):
                        yield code, f"{path.relative_to(ROOT)}:{node.lineno}"
                    case _:
                        pass


def test_every_code_in_the_source_has_a_page() -> None:
    assert {code: where for code, where in codes_in_source() if code not in REGISTRY} == {}


def test_pages_are_in_order_and_distinct() -> None:
    assert len(REGISTRY) == len(PAGES)
    for family in FAMILIES:
        codes = [page.code for page in family]
        assert codes == sorted(set(codes))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.code)
def test_page_is_complete(page: tuple[object, ...]) -> None:
    code, title, exit_code, *texts = page
    assert isinstance(code, str)
    assert code == code.lower().replace("_", "-").replace(" ", "-")
    assert isinstance(title, str)
    assert not title.endswith(".")
    assert exit_code in set(ExitCode) - {ExitCode.OK}
    assert all(texts)


def test_rendering() -> None:
    error = IrcError(
        "mesh-axis-indivisible",
        "cannot shard 'up.weight' dim 0 (11008) over mesh axis 'tp' (size 6)",
        where="model.py:142 in MLP.__init__",
        because="11008 is not a multiple of 6",
        help="use 2, 4 or 8",
    )
    assert str(error).splitlines() == [
        "error[mesh-axis-indivisible]: cannot shard 'up.weight' dim 0 (11008) "
        "over mesh axis 'tp' (size 6)",
        "  --> model.py:142 in MLP.__init__",
        "  because: 11008 is not a multiple of 6",
        "  help: use 2, 4 or 8",
    ]
    assert error.exit_code == 2


def test_names_cannot_forge_lines_or_move_the_cursor() -> None:
    shown = IrcError("not-onnx", "node 'a\nerror[internal]: b\x1b[2J\r'").render()
    assert shown.splitlines()[1].startswith("    error")
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert printable("größe") == "größe"


def test_a_code_without_a_page_is_our_bug() -> None:
    with pytest.raises(InternalError, match="no-such-code"):
        IrcError("no-such-code", "x")


def test_errors_cross_processes() -> None:
    one = IrcError("world-size", "4, not 2", "here", ["a", "b"], "start 4")
    for error in (one, IrcErrors([one, IrcError("op-unsupported", "Foo")])):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_many_errors_take_a_line_each() -> None:
    several = IrcErrors(
        IrcError("onnx-invalid", f"Mul {n}\nx", f"m:node {n}", "its operands") for n in range(20)
    )
    lines = several.render().splitlines()
    assert len(lines) == 3 * 5 + 8 + 1
    assert lines[-2:] == ["error[onnx-invalid]: Mul 10 (m:node 10)", "and 9 more errors"]


def test_collector_reports_all_at_once() -> None:
    errors = ErrorCollector()
    errors.check()
    errors.add(IrcError("op-unsupported", "Foo"))
    errors.add(IrcError("op-unsupported", "Foo"))
    with pytest.raises(IrcError) as one:
        errors.check()
    assert type(one.value) is IrcError
    errors.add(IrcError("capture-failed", "Bar"))
    with pytest.raises(IrcErrors) as both:
        errors.check()
    assert both.value.codes == ("op-unsupported", "capture-failed")
    assert both.value.exit_code == 3
    assert str(both.value).count("error[") == 2
