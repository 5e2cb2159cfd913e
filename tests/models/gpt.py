"""The GPT that most tests compile is the one of `irc demo`."""

from irc.commands.demo_gpt import GPT, GPTConfig

__all__ = ["GPT", "GPTConfig"]
