"""The reference of irc's public names: complete, and readable without a network."""

import inspect
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

import irc
from irc.cli import main
from irc.report.api_pages import HOST, MODULES, serving, write_pages


def public(module: str) -> dict[str, object]:
    """Return the functions and classes that a module offers, by name."""
    known = import_module(module)
    names = getattr(known, "__all__", None) or [
        name for name, value in vars(known).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]  # fmt: skip
    values = {name: getattr(known, name) for name in names}
    return {n: v for n, v in values.items() if inspect.isclass(v) or inspect.isroutine(v)}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    assert (import_module(module).__doc__ or "").strip()
    names = public(module)
    assert names
    bare = [name for name, value in names.items() if not (value.__doc__ or "").strip()]
    assert not bare


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pdoc")
    folder = tmp_path_factory.mktemp("docs") / "site"
    write_pages(folder)
    return folder


def test_each_module_has_a_page_with_its_names(site: Path) -> None:
    for module in MODULES:
        text = (site / f"{module.replace('.', '/')}.html").read_text()
        for name in public(module):
            assert f'id="{name}"' in text, f"{module}.{name}"
    page = (site / "irc.html").read_text()
    assert 'id="compile"' in page
    assert (inspect.getdoc(irc.compile) or "").splitlines()[0].rstrip(".")[:40] in page
    assert "url=./irc.html" in (site / "index.html").read_text()
    for module in MODULES[1:]:
        assert f'href="{module.replace(".", "/")}.html"' in page, module


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']([^\"']+)")
    for page in site.rglob("*.html"):
        text = page.read_text()
        elsewhere = [each for each in loaded.findall(text) if not each.startswith("data:")]
        assert not [each for each in elsewhere if "//" in each], page
        assert not re.search(r"@import|url\(\s*[\"']?https?:", text), page
        assert str(Path.home()) not in text


@pytest.mark.parametrize("name", ["", "index.html", "search.js", "irc", "irc/dialects/flow.html"])
@pytest.mark.parametrize("dangling", [False, True])
def test_nothing_is_written_through_a_link(name: str, dangling: bool, tmp_path: Path) -> None:
    """With --force neither: the folder, one below it, and a page may lead elsewhere."""
    pytest.importorskip("pdoc")
    elsewhere, site = tmp_path / "elsewhere", tmp_path / "site"
    if not dangling:
        elsewhere.mkdir() if "." not in name else elsewhere.write_text("mine")
    link = site / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(irc.errors.IrcError, match="is a link") as caught:
        write_pages(site, force=True)
    assert caught.value.code == "output-write"
    assert elsewhere.exists() != dangling
    assert not elsewhere.is_dir() or not any(elsewhere.iterdir())


def test_a_folder_of_others_is_left_alone(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    with pytest.raises(irc.errors.IrcError) as caught:
        write_pages(tmp_path)
    assert caught.value.code == "output-exists"
    assert [*tmp_path.iterdir()] == [kept]
    write_pages(tmp_path, force=True)
    assert kept.read_text() == "mine"
    with pytest.raises(irc.errors.IrcError, match="holds pages already") as caught:
        write_pages(site)
    assert caught.value.code == "output-exists"
    write_pages(site, force=True)
    with pytest.raises(irc.errors.IrcError, match="is a file") as caught:
        write_pages(kept)
    assert caught.value.code == "output-write"


def test_served_to_this_machine_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("here")
    with serving(tmp_path) as server:
        assert server.server_address[0] == HOST == "127.0.0.1"
        Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        with urlopen(f"http://{HOST}:{port}/", timeout=10) as answer:
            assert answer.read() == b"here"
        with (
            pytest.raises(irc.errors.IrcError, match=f"--port {port}") as caught,
            serving(tmp_path, int(port)),
        ):
            pass
        assert caught.value.code == "option-value"
        server.shutdown()


def test_json_says_where_the_pages_are(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.is_dir()
    assert main(["docs", "-o", str(tmp_path / "again"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["url"] is None
    assert len(said["pages"]) == len(MODULES) + 1
    assert all(Path(page).is_file() for page in said["pages"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("docs", "option-value", "irc docs --serve"),
        ("docs -o x --port 8000", "option-value", "--port is of --serve"),
        ("docs --serve --port 70000", "option-value", "0 to 65535"),
        ("docs --sreve", "option-unknown", "did you mean '--serve'?"),
    ],
)
def test_wrong_options(
    words: str, code: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error[{code}]: ")
    assert says in errors


def test_without_pdoc_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pdoc.doc", None)
    assert main(["docs", "-o", str(tmp_path / "site")]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error[package-missing]: ")
    assert "pip install 'irc-compiler[docs]'" in errors
    assert not (tmp_path / "site").exists()
