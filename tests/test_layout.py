"""The shape of the house: the package list, the links, the top level."""

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ("backends", "grammar", "passes")
TOP_LEVEL = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "LICENSE", "README.md"),
    *("pyproject.toml", "backends", "examples", "grammar", "irc", "passes", "tests"),
}


def packages_on_disk() -> dict[str, Path]:
    packages = {}
    for top, name in [("irc", "irc"), *((link, f"irc.{link}") for link in LINKS)]:
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / top).parts
            # irc/passes and its like are links; their files are counted by their real path.
            if top != "irc" or not parts or parts[0] not in LINKS:
                packages[".".join((name, *parts))] = init
    return packages


def test_every_folder_is_a_listed_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"] == sorted(packages_on_disk())


def test_no_module_lies_in_a_folder_that_is_not_a_package() -> None:
    packages = {init.parent.resolve() for init in packages_on_disk().values()}
    for top in ("irc", *LINKS):
        stray = [p for p in (ROOT / top).rglob("*.py") if p.parent.resolve() not in packages]
        assert not stray


def test_every_package_says_what_it_is() -> None:
    for name, init in packages_on_disk().items():
        assert ast.get_docstring(ast.parse(init.read_text())), name


@pytest.mark.parametrize("name", LINKS)
def test_link_is_relative(name: str) -> None:
    link = ROOT / "irc" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{name}"


def test_top_level_holds_only_what_is_agreed() -> None:
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in git.stdout.splitlines()} <= TOP_LEVEL


def test_names_say_something() -> None:
    empty = {"utils.py", "common.py", "helpers.py", "manager.py"}
    assert not [p for top in ("irc", *LINKS) for p in (ROOT / top).rglob("*.py") if p.name in empty]
