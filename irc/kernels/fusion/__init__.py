"""Which ops become one kernel: legality, profit, reasons, and what the user asks."""
