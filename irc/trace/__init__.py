"""Traces of a call or step, predicted and measured, in one form that Perfetto reads."""
