"""The bootstrap after its shell part: a new box becomes the environment that the image is.

The script unpacks the package and the pins, and calls this with what it found out. Steps run in order, each
idempotent, timed and logged; the stamp is written last.
"""

from __future__ import annotations
