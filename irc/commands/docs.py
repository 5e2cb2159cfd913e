"""`irc docs`: the reference of irc's public names, as pages of HTML."""

import argparse
from pathlib import Path

from irc.commands.json_output import add_json_option, print_json

HELP = "write or serve the reference of irc's Python names, as pages of HTML"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc docs`."""
    parser.epilog = (
        "The pages say what the docstrings say: of what irc has in Python, and of what passes,"
        " backends, ops and schedules of other packages are written with. They need no network,"
        " and --serve answers this machine alone. pip install 'irc-compiler[docs]' brings pdoc,"
        " which writes them."
    )
    add = parser.add_argument
    add("-o", "--output", metavar="DIR", help="write them there, index.html first")
    add("--serve", action="store_true", help="serve them on 127.0.0.1 until Ctrl-C")
    add("--port", metavar="N", type=int, help="serve: at this port (default: a free one)")
    add("--force", action="store_true",
        help="replace pages of before, and write into a folder that holds other files")  # fmt: skip
    add_json_option(parser, "the folder, its pages and the address")


def run(args: argparse.Namespace) -> int:
    """Write the pages, and serve them where that is asked."""
    from tempfile import TemporaryDirectory

    from irc.errors import IrcError

    if args.output is None and not args.serve:
        raise IrcError(
            "option-value", "irc docs writes (-o DIR) or serves (--serve)",
            help="irc docs -o site, or irc docs --serve",
        )  # fmt: skip
    if args.port is not None and not args.serve:
        raise IrcError("option-value", "--port is of --serve", help="irc docs --serve --port 8080")
    if args.port is not None and not 0 <= args.port < 65536:
        raise IrcError("option-value", f"--port {args.port}: ports are 0 to 65535")
    if args.output is not None:
        return _written(args, Path(args.output))
    with TemporaryDirectory() as folder:
        return _written(args, Path(folder))


def _written(args: argparse.Namespace, folder: Path) -> int:
    from irc.report.api_pages import HOST, serving, write_pages

    if not args.serve:
        pages = write_pages(folder, force=args.force)
        _say(args, folder, pages, "")
        return 0
    # The port first: whether it can be had is known at once, the pages take seconds.
    with serving(folder, args.port or 0) as server:
        pages = write_pages(folder, force=args.force)
        _say(args, folder, pages, f"http://{HOST}:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0  # it is how one ends it
    return 0


def _say(args: argparse.Namespace, folder: Path, pages: tuple[Path, ...], url: str) -> None:
    import sys

    if args.json:
        names = [f"{page}" for page in pages]
        print_json({"folder": f"{folder}", "pages": names, "url": url or None})
    elif url:
        print(f"{url}  Ctrl-C ends it")
    else:
        print(f"{pages[0]}: {len(pages) - 1} modules")
    sys.stdout.flush()  # a program that started the server reads the address
