"""Recurrent cells over time: RNN, GRU and LSTM, as a kernel of a plan and as a function by itself.

First the inputs of some steps are multiplied, some rows by some vectors of gates at a time. A step
of a recurrence is a product of a vector and a matrix, then a few functions of its gates. Calls, and
memory for each gate, cost more than that; here the sums of all gates of some units stay in
registers until the new state of these units is stored.

How weights are laid out is said in :mod:`irc.ops.recurrent`.
"""
