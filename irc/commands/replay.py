"""`irc replay`: run what crashed on its program again."""

import argparse

from irc.errors import ExitCode

HELP = "run the pass of a reproducer again, and say whether it fails in the same way"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc replay`."""
    parser.epilog = (
        "A crash inside irc leaves a reproducer, and its message names the folder. "
        "IRC_REPRODUCERS=off leaves none, IRC_REPRODUCERS=DIR says where; the newest 8 are kept, "
        "and those of the last ten minutes. "
        "Exit codes: 0 it does not fail in the same way, 1 it does, 2 the folder is none."
    )
    parser.add_argument("folder", metavar="DIR", help="the folder that the message has named")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Run it and print how it ends."""
    import json
    from dataclasses import asdict

    from irc.pipeline.reproducer import read, versions

    reproducer = read(args.folder)
    now = reproducer.replayed()
    is_same = now is not None and now.is_like(reproducer.failure)
    here = versions()
    others = {name: was for name, was in reproducer.versions.items() if here.get(name) != was}
    if args.json:
        result = {
            "stage": f"{reproducer.stage}",
            "fails_as_before": is_same,
            "now": now and asdict(now),
            "before": asdict(reproducer.failure),
            "program_is_exact": reproducer.is_exact,
            "other_versions": others,
        }
        print(json.dumps(result, indent=2))
    else:
        print(f"what    {reproducer.stage}\nbefore  {reproducer.failure}")
        print(f"now     {'in the same way' if is_same else now or 'it does not fail'}")
        for name, was in others.items():
            print(f"note    {name} was {was}, and is {here.get(name, 'not installed')}")
        if not reproducer.is_exact:
            print("note    the program is as the failed pass left it")
    return ExitCode.CHECK_FAILED if is_same else ExitCode.OK
