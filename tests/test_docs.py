"""The documentation runs: examples of ops and passes, and doctests."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from irc.dialects.text import context, load
from irc.passes import BUILTIN
from irc.plugin import find_pass, parse_passes
from irc.universe import DIALECTS, load_dialect

ROOT = Path(__file__).parents[1]
MLIR = r"```mlir\n(.*?)```"
OPS = [op for dialect in DIALECTS for op in load_dialect(dialect).operations]


def modules() -> list[str]:
    paths = [
        *(path for path in (ROOT / "irc").rglob("*.py")),
        *(ROOT / "irc" / p.relative_to(ROOT) for t in ("passes", "backends")
          for p in (ROOT / t).rglob("*.py")),
    ]  # fmt: skip
    with_doctest = {p for p in paths if ">>> " in p.read_text(encoding="utf-8")}
    return sorted(".".join(p.relative_to(ROOT).with_suffix("").parts) for p in with_doctest)


@pytest.mark.parametrize("name", modules())
def test_doctests(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_op_examples_parse(op: type) -> None:
    """An example may use values that it does not define, with any type."""
    for example in re.findall(MLIR, inspect.cleandoc(op.__doc__ or ""), re.DOTALL):
        parser = Parser(context(), example, f"the example of {op.__name__}")
        parsed = list(iter(parser.parse_optional_operation, None))
        assert parsed
        for each in parsed:
            each.verify()


@pytest.mark.parametrize("name", BUILTIN)
def test_pass_is_where_and_what_its_name_says(name: str) -> None:
    module, _, cls = BUILTIN[name].partition(":")
    words = name.split("-")
    assert module == f"irc.passes.{'_'.join(words)}"
    assert cls == "".join(word.capitalize() for word in words) + "Pass"
    assert (ROOT / "passes" / f"{'_'.join(words)}.py").is_file()


@pytest.mark.parametrize("name", BUILTIN)
def test_pass_turns_before_into_after(name: str) -> None:
    """The docstring has Before and After; a line ``Run: name{option=1}`` sets options."""
    doc = inspect.cleandoc(find_pass(name).__doc__ or "")
    before, after = (
        re.search(rf"^{word}:\s*{MLIR}", doc, re.DOTALL | re.MULTILINE)
        for word in ("Before", "After")
    )
    assert before, f"{name} has no Before:"
    assert after, f"{name} has no After:"
    run = re.search(r"^Run:\s*`*([^`\n]+)`*$", doc, re.MULTILINE)
    assert_turns(parse_passes(run.group(1) if run else name), before.group(1), after.group(1))


def assert_turns(passes: tuple[ModulePass, ...], before: str, after: str) -> None:
    from irc.pipeline import run_passes

    module, expected = load(before, "Before"), load(after, "After")
    run_passes(module, passes)
    module.verify()
    assert module.is_structurally_equivalent(expected), f"got:\n{module}\nAfter:\n{expected}"
