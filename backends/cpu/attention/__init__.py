"""Attention: many rows in the lanes, few rows in place, masks, and what is stored."""
