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
from tests.guide_pages import pattern, run_page

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "examples" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_guide_page_runs_as_it_stands(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text(encoding="utf-8"), tmp_path)


def test_what_a_page_shows_is_held_against_what_is_printed() -> None:
    """A number may differ behind ``~`` alone, and lines are left out at ``...`` alone."""
    assert re.fullmatch(pattern("a ~1.5 ms\n...\nz\n"), "a 20.7 ms\nb\nc\nz\n")
    assert not re.fullmatch(pattern("a 1.5 ms\n"), "a 20.7 ms\n")
    assert not re.fullmatch(pattern("a\nz\n"), "a\nb\nz\n")
    with pytest.raises(AssertionError, match="the page shows"):
        run_page("```console\n$ irc explain error internal\nno such page\n```\n", ROOT)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_of_the_guide_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_index_of_the_guide_names_every_page() -> None:
    index = (GUIDE / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(
        re.findall(r"\]\((\w+\.md)\)", index)
    )
