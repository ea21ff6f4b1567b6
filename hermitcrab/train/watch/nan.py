"""Is the training still alive in its numbers? A loss or grad norm that is none, again and again, is the end.

Hugging Face's Trainer hides a NaN: `logging_nan_inf_filter` logs a loss of exactly 0.0, with a grad norm of NaN.
"""

from __future__ import annotations

import argparse
import math

from hermitcrab.train.watch.finding import Finding

AFTER = 5  # readings in a row
# Mixed precision skips steps whose gradients overflow while it looks for its scale: that is no end.
OVERFLOWS = 4

ADVICE = (
    "go back to a checkpoint before it and lower the learning rate, or warm up longer",
    "clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), after scaler.unscale_(optimizer)",
    "fp16 overflows: autocast with torch.bfloat16 where the card has it (Ampere and later), or keep a GradScaler",
    "look at the batch: empty targets, log(0), a division by zero; torch.autograd.set_detect_anomaly(True) names it",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add when a run counts as lost."""
    text = f"end it after so many losses or grad norms in a row that are no number (default {AFTER}); 0 never does"
    parser.add_argument("--nan-after", type=_count, default=AFTER, metavar="N", help=text)


class Numbers:
    """Counts what is no number, for each source by itself: the status file and the output tell the same step."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._bad: dict[str, int] = {}
        self._overflows: dict[str, int] = {}
        self._zeros: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def see(
        self, source: str, loss: float | None, grad_norm: float | None, *, zero: bool = False, where: str = ""
    ) -> Finding | None:
        """Take the numbers of a new step; call it once for each."""
        no_loss = loss is not None and not math.isfinite(loss)
        no_norm = grad_norm is not None and not math.isfinite(grad_norm)
        empty = zero and loss == 0 and (grad_norm is None or no_norm)
        for streak, bad in ((self._bad, no_loss), (self._zeros, empty), (self._overflows, no_norm)):
            streak[source] = streak.get(source, 0) + 1 if bad else 0
        if not (no_loss or no_norm or empty):
            self._first.pop(source, None)
            return None
        first = self._first.setdefault(source, where)
        lasting = max(self._bad[source], self._zeros[source])
        if not self.after or (lasting < self.after and self._overflows[source] < OVERFLOWS * self.after):
            return None
        said = f"loss {_say(loss)}, grad norm {_say(grad_norm)}, {max(lasting, self._overflows[source])} times in a row"
        hidden = "; a loss of exactly 0.0 is what Hugging Face's Trainer logs for NaN" * empty
        return Finding("nan", fatal=True, text=said + (f", first at {first}" if first else "") + hidden, advice=ADVICE)


def _say(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"


def _count(text: str) -> int:
    if not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: 0 or more")
    return int(text)
