"""A sharding rule alone, for an op of another library.

Without it irc keeps the op whole on every rank, and says so. "whole(b)": a row has one maximum, so
it cannot be split. What is not declared here, the work of the op and how it is computed, irc
estimates and leaves to torch.
"""

import irc

# A rank that runs a plan loads no model, and so not the library of its ops: it is imported here.
import irc_example.library  # noqa: F401

irc.register_op("irc_example_library::softsign_rows", rule="(a b) -> (a b) whole(b)")
