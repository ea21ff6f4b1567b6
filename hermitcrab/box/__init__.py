"""On the box: what runs on the rented machine. Standard library only, Python 3.8 and later."""
