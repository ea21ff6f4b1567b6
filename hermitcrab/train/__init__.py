"""`crab train`: a run that survives, is resumed, watched, and ended by its gate. Standard library only."""
