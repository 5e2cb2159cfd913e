"""What flow ops mean in torch, by kind; :mod:`irc.runtime.library` is the table of all."""
