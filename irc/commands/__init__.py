"""The subcommands of `irc`, one per file."""
