"""hermitcrab: the machine changes, the training run goes on."""

__version__ = "0.1.0"
