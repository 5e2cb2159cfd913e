"""Rewrite rules over flow: their notation (``grammar/rewrite.lark``), matching, replacement.

:mod:`notation` reads rules, :mod:`match` finds them in a program and says how far one got where it
does not fit, :mod:`build` puts the replacement there. ``rules/`` has those of irc itself.
"""
