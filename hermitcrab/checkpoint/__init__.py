"""What runs while it trains: checkpoints that survive, and resume that is exact."""
