"""Products by tile registers: Intel's Advanced Matrix Extensions (AMX)."""
