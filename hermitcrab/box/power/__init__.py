"""How the machine under us is stopped: a table, a proof that it will work, and the stop itself. Knows of no run."""
