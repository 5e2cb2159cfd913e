"""`irc explain`: what a pass does, what an error means, why a plan is as it is."""

import argparse
import inspect
from collections.abc import Mapping
from importlib import import_module

from irc.commands.json_output import add_json_option, print_json
from irc.commands.placements_option import add_placements_option
from irc.commands.progress import asked, progress
from irc.errors import IrcError, did_you_mean
from irc.logs import PROGRESS

HELP = "explain a pass, an error, a plan, whose code is run, or what IRC_LOGS prints"

OF_PLANS = {
    "op": "--op", "why_not": "--why-not", "fusion": "--fusion", "rewrites": "--rewrites",
    "json": "--json", "sizes": "--sizes", "overlap": "--overlap", "placements": "--placements",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc explain`."""
    parser.add_argument("kind", choices=[*KINDS, "plan", *TOPICS], help="what to explain")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a pass, an error code, or a plan folder"
    )
    parser.add_argument(
        "--op", metavar="ID", default="", help="of a plan: these ops only; an id or a glob of ids"
    )
    parser.add_argument(
        "--why-not",
        metavar="WHAT",
        nargs="+",
        help='of an op or argument (--op): what it would cost to lie so, as in "S(0),B";'
        " with --fusion: two ops, and why they are not one kernel",
    )
    parser.add_argument(
        "--fusion", action="store_true", help="of a plan: its kernels, and why others are two"
    )
    parser.add_argument(
        "--rewrites",
        metavar="FILE",
        nargs="*",
        help="of a plan: which rewrite rules were applied where, and how far the others got: those"
        " that it was compiled with, or those of these files instead",
    )
    parser.add_argument(
        "--sizes",
        action="store_true",
        help="of a plan: which sizes are open, and what is made for each of them, and why",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="of a plan: which collectives compute hides, and at which ones it waits",
    )
    add_placements_option(
        parser,
        "as OneFlow's, those of arguments both ways, and what --why-not changes as S(0)R; of a plan"
        " of stages those of weights are shown with it alone",
    )
    add_json_option(parser, "all facts")


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    if (args.kind in TOPICS) != (args.name is None):
        raise IrcError(
            "option-value",
            f"irc explain {args.kind} takes {'no name' if args.name else 'a name'}",
            help="irc explain trust or logs; irc explain pass NAME, error CODE or plan PLAN",
        )
    if args.kind in TOPICS:
        text = inspect.cleandoc(import_module(TOPICS[args.kind]).__doc__ or "")
        if args.json:
            print_json({"name": args.kind, "about": text})
        else:
            print(text)
        return 0
    if args.kind == "plan":
        text = _plan(args).rstrip()
        if not args.json:
            from irc.report.terminal import for_stdout

            text = for_stdout(text)
        print(text)
        return 0
    for name, option in OF_PLANS.items():
        if name != "json" and getattr(args, name) not in (None, False, ""):
            raise IrcError(
                "option-value", f"{option} is for plans, not for '{args.kind} {args.name}'"
            )
    text, facts = KINDS[args.kind](args.name)
    if args.json:
        print_json(facts)
    else:
        print(text.rstrip())
    return 0


def _pass(name: str) -> tuple[str, Mapping[str, object]]:
    from xdsl.passes import get_pass_option_infos

    from irc.plugin import find_pass

    cls = find_pass(name)
    about = inspect.cleandoc(cls.__doc__ or "")
    infos = get_pass_option_infos(cls)
    facts: dict[str, object] = {
        "name": name,
        "about": about,
        "level": getattr(cls, "level", None),
        "options": [
            {"name": each.name, "type": f"{each.expected_type}", "default": each.default_value}
            for each in infos
        ],
    }
    after = getattr(cls, "after", None)
    place = f"Level: {getattr(cls, 'level', '?')}" + (f", after {after}" if after else "")
    if also := getattr(cls, "also_on", ()):
        place += f"; irc opt runs it on {', '.join(also)} too"
    options = [
        f"  {option.name}: {option.expected_type}"
        + (f" = {option.default_value}" if option.default_value is not None else "")
        for option in infos
    ]
    lines = [name, "", about, "", place, "Options:"]
    return "\n".join([*lines, *(options or ["  none"])]), facts


def _error(code: str) -> tuple[str, Mapping[str, object]]:
    from irc.error_pages import REGISTRY

    if code not in REGISTRY:
        raise IrcError(
            "option-value",
            f"no error has the code '{code}'",
            help=did_you_mean(code, REGISTRY) or "irc list errors names them all",
        )
    page = REGISTRY[code]
    return page.render(), page._asdict()


def _plan(args: argparse.Namespace) -> str:
    from irc.plan.host import is_host, load_host
    from irc.plan.parts_files import is_parts, load_parts

    if is_host(args.name):
        from irc.report.host import explain_host

        for name, option in OF_PLANS.items():
            if name != "json" and getattr(args, name) not in (None, False, ""):
                raise IrcError(
                    "option-value",
                    f"{option} is about one plan, and '{args.name}' holds one for each region",
                    help=f"name a region: irc explain plan {args.name}/regions/NAME {option}",
                )
        return explain_host(load_host(args.name), args.name, as_json=args.json)
    if is_parts(args.name):
        from irc.report.parts import explain_parts

        for name, option in OF_PLANS.items():
            if name not in ("json", "placements") and getattr(args, name) not in (None, False, ""):
                raise IrcError(
                    "option-value",
                    f"{option} is about one program, and '{args.name}' is of several",
                    help=f"irc explain plan {args.name} says what they are",
                )
        plan, notation = load_parts(args.name), args.placements or ""
        return explain_parts(plan, as_json=args.json, placements=notation)
    from irc.report.explain import explain_plan

    parts = {name: OF_PLANS[name] for name in ("sizes", "overlap", "rewrites", "fusion")}
    for name, option in parts.items():
        if args.placements and getattr(args, name) not in (None, False):
            raise IrcError(
                "option-value", f"{option} shows no placements in another notation",
                help="leave out --placements, or name ops with --op",
            )  # fmt: skip
    if args.sizes:
        from irc.report.sizes import explain_sizes

        return explain_sizes(args.name, as_json=args.json)
    if args.overlap:
        from irc.report.overlap import explain_overlap

        return explain_overlap(args.name, as_json=args.json)
    if args.rewrites is not None:
        return _rewrites(args)
    if args.fusion and not args.op:
        return _fusion(args)
    if args.why_not is not None:
        return _why_not(args)
    return explain_plan(args.name, op=args.op, as_json=args.json, placements=args.placements or "")


def _fusion(args: argparse.Namespace) -> str:
    import json
    from dataclasses import asdict

    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp

    from irc.kernels.fusion.groups import Grouping
    from irc.passes.fuse import FusePass
    from irc.plugin import find_backend
    from irc.report.evidence import Evidence
    from irc.report.fusion import Fusion, write

    evidence = Evidence.of(args.name)
    target = find_backend(evidence.plan.backend).targets[0]

    def group_again(module: ModuleOp, pins: str) -> list[tuple[FuncOp, Grouping]]:
        return FusePass(pins=pins, target=target).groupings(module)

    if args.why_not is not None and len(args.why_not) != 2:
        raise IrcError(
            "option-value",
            f"--fusion --why-not takes two ops, not {len(args.why_not)}",
            help="name them: --fusion --why-not n3 n4",
        )
    if "fuse" not in evidence.passes:
        return "the plan fuses nothing: it has no pass fuse"
    fusion = Fusion(evidence, group_again)
    if args.why_not is not None:
        return fusion.why_not(*args.why_not)
    report = fusion.report()
    return json.dumps(asdict(report), indent=1) if args.json else write(report)


def _rewrites(args: argparse.Namespace) -> str:
    import json
    from dataclasses import asdict
    from fnmatch import fnmatchcase

    from irc.report.evidence import Evidence
    from irc.report.rewrites import write
    from irc.rewrite.apply import rewrite
    from irc.rewrite.library import builtin_rules, kept_texts, own_rules, read_texts

    evidence = Evidence.of(args.name)
    if "rewrite" not in evidence.passes:
        return "the plan rewrites nothing: it has no pass rewrite"
    own = own_rules(read_texts(args.rewrites) or kept_texts(evidence.after("rewrite")))
    places = rewrite(evidence.before("rewrite"), (*own, *builtin_rules()))
    if args.op:
        places = [place for place in places if fnmatchcase(place.op, args.op)]
    if args.json:
        return json.dumps([asdict(p) for p in places], indent=1)
    return write(places, () if args.op else [rule.name for rule in own])


def _why_not(args: argparse.Namespace) -> str:
    import json
    from collections.abc import Mapping
    from dataclasses import asdict
    from typing import Any

    from xdsl.dialects.builtin import ModuleOp

    from irc.dialects.text import context
    from irc.plugin import builtin_pass
    from irc.report.evidence import Evidence
    from irc.report.why_not import why_not, write

    if not args.op:
        raise IrcError(
            "option-value",
            "--why-not is about one op or argument",
            help='name it: --op n3 --why-not "S(0),B", or --op tokens.weight --why-not "S(0),B"',
        )

    if len(args.why_not) != 1:
        raise IrcError(
            "option-value",
            f"--why-not takes one placement, not {len(args.why_not)}",
            help='write it as one word: --why-not "S(0),B"; two ops go with --fusion',
        )
    (placement,) = args.why_not

    def plan_again(module: ModuleOp, options: Mapping[str, Any]) -> None:
        builtin_pass("auto-shard")(**options).apply(context(), module)

    notation = args.placements or ""
    with progress(asked(args)):
        PROGRESS.info("reading %s", args.name)
        answer = why_not(
            Evidence.of(args.name), args.op, placement, plan_again, placements=notation
        )
    return json.dumps(asdict(answer), indent=1) if args.json else write(answer)


TOPICS = {"trust": "irc.plan.trust", "logs": "irc.logs"}
"""What has no names: the module whose docstring says it."""

KINDS = {"pass": _pass, "error": _error}
