"""Pipeline schedules: in which order each rank runs the parts of a step, and for which micro-batch.

A *stage* is a run of a model's layers, a *micro-batch* a part of a batch that goes through all
stages, a *schedule* the list of actions of each rank. :mod:`irc.schedule.named` generates those
that papers name, :mod:`irc.schedule.search` looks for one by stage times and memory.
"""
