"""Compiled plans run with numpy alone: machine code from the plan's folder, threads of its own."""
