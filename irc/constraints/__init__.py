"""What the user fixes: constraint files, patterns of placements, and what they allow."""
