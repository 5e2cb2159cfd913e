"""Rewrite rules over flow: their notation (``grammar/rewrite.lark``), matching, replacement.

:mod:`notation` reads the rules of a text, with :mod:`reader` for their terms and :mod:`checks` for
what no program can be; :mod:`match` finds them in a program and says how far one got where it does
not fit, :mod:`build` puts the replacement there. ``rules/`` has those of irc itself.
"""
