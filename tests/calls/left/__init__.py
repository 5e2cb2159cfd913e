"""Calls that eager mode runs: what irc must run too, with the same results.

Each function of these modules returns a call of its own: what to compile, its arguments, and named
ones. They are made anew for each way of calling, since some write to what they are given.
"""
