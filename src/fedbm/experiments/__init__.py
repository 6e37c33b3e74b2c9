"""Experiments of the paper and grids of your own: files → trials → runs → records."""
