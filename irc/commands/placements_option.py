"""``--placements``: the notation in which commands show placements."""

import argparse

PLACEMENTS = ("oneflow", "dtensor")
"""As in irc.report.notation, which --help need not import."""


def add_placements_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Declare ``--placements``.

    Args:
        parser: of a command.
        default: how they are shown without it.
    """
    parser.add_argument(
        "--placements",
        choices=PLACEMENTS,
        help="show placements as S(0), B, P(sum), or as Shard(0), Replicate(), Partial('sum')"
        f" (default: {default})",
    )
