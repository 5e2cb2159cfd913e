"""The algebra of placements: shards, signatures, boxing paths, what each rank runs."""
