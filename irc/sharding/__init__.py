"""The algebra of placements: signatures, boxing paths and the search over them."""
