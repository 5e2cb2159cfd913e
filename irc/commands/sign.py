"""`irc sign`: sign a plan, or make a key to sign with."""

import argparse
from pathlib import Path

from irc.commands.json_output import add_json_option, print_json

HELP = "sign a plan with a key, so that others can trust it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc sign`."""
    parser.epilog = (
        "Who is to trust the key puts its public part, which is printed, into"
        " ~/.config/irc/trusted-keys, or into the file that IRC_TRUSTED_KEYS names."
    )
    parser.add_argument("plan", metavar="PLAN", nargs="?", help="the folder of a plan")
    parser.add_argument("--key", metavar="FILE", help="an Ed25519 private key, PEM")
    parser.add_argument("--new-key", metavar="FILE", help="write a new private key there")
    add_json_option(parser, "the public key, and how many folders were signed")


def run(args: argparse.Namespace) -> int:
    """Sign, and print the public key."""
    from irc.errors import IrcError
    from irc.plan.signature import new_key, sign, signing_key

    if (args.plan is None) != (args.key is None) or (args.key is None) == (args.new_key is None):
        raise IrcError(
            "option-value",
            "--key signs a plan, and --new-key needs none",
            help="irc sign --new-key FILE, then irc sign PLAN --key FILE",
        )
    if args.new_key is not None:
        key = new_key(Path(args.new_key))
        if args.json:
            print_json({"key": key, "signed": 0})
        else:
            print(key)
        return 0
    key, signed = sign(Path(args.plan), signing_key(Path(args.key)))
    if args.json:
        print_json({"key": key, "signed": signed})
        return 0
    print(f"signed {signed} folder{'s' * (signed != 1)} with {key}")
    return 0
