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
from tests.guide_pages import blocks, counts, pattern, run_page

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "examples" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
DOCS = [ROOT / "README.md", *PAGES]
SLOW = [page for page in DOCS if counts(page.read_text(encoding="utf-8"))[1]]
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


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_guide_page_runs_as_it_stands(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]
    run_page(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=lambda page: page.name)
def test_guide_page_runs_with_its_slow_blocks(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]
    run_page(page.read_text(encoding="utf-8"), tmp_path, slow=True)


def test_what_a_page_shows_is_held_against_what_is_printed(tmp_path: Path) -> None:
    """A number may differ behind ``~`` alone, and lines are left out at ``...`` alone."""
    assert re.fullmatch(pattern("a ~1.5 ms\n...\nz\n"), "a 20.7 ms\nb\nc\nz\n")
    assert re.fullmatch(pattern("a   ~1.5 us  x\n"), "a 3e-07 ms x\n")
    assert not re.fullmatch(pattern("a ~1.5 MB\n"), "a 20.7 ms\n")
    assert not re.fullmatch(pattern("a 1.5 ms\n"), "a 20.7 ms\n")
    assert not re.fullmatch(pattern("a\nz\n"), "a\nb\nz\n")
    for command, shown in (
        ("irc explain error internal", "no such page\n"),
        ("irc explain error internal", ""),
        ("irc list passes", "error[pass-unknown]: no pass\n"),
    ):
        with pytest.raises(AssertionError, match="the page shows"):
            run_page(f"```console\n$ {command}\n{shown}```\n", tmp_path)


def test_a_command_of_a_page_ends_as_the_page_shows(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ends with status 2"):
        run_page("```console\n$ irc explain error no-such\n...\n```\n", tmp_path)
    with pytest.raises(AssertionError, match="not rm"):
        run_page("```console\n$ rm x\n```\n", tmp_path)


def test_pages_say_how_many_of_their_blocks_are_run() -> None:
    """The sentence of the guide's index, from the pages themselves."""
    run, slow, read = (
        sum(column)
        for column in zip(*(counts(p.read_text(encoding="utf-8")) for p in DOCS), strict=True)
    )
    index = (GUIDE / "README.md").read_text(encoding="utf-8")
    said = f"Of the {run + slow + read} blocks of code of these pages and of the front page, {run}"
    assert said in " ".join(index.split()), f"the index should say: {said} .. ({slow}, {read})"
    assert f"{slow} more are marked slow" in " ".join(index.split())


def test_each_block_that_is_not_run_has_a_reason_of_its_own() -> None:
    reasons = [
        block.said
        for page in DOCS
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.mark in ("not run", "slow")
    ]
    assert len(set(reasons)) == len(reasons)


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them of their words."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    words = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", word.strip().lower()).replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_of_the_guide_lead_somewhere(page: Path) -> None:
    """To a file or folder, and where there is a ``#``, to a heading of that page."""
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / file if file else page, anchor) for file, anchor in links]
    assert not [target for target, _ in targets if not target.exists()]
    assert not [
        (target.name, anchor)
        for target, anchor in targets
        if anchor and anchor not in headings(target)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_of_the_guide_is_read_in_ten_minutes(page: Path) -> None:
    """Words of sentences and tables, beside what is typed and printed."""
    prose = re.sub(r"^```(?!text).*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    assert len(prose.split()) <= 2000


def test_index_of_the_guide_names_every_page() -> None:
    index = (GUIDE / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(
        re.findall(r"\]\((\w+\.md)\)", index)
    )
