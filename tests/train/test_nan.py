"""Claims: numbers that are none end a run after a few in a row, also where the trainer hides them."""

from __future__ import annotations

import math

import pytest

from hermitcrab.train.watch.nan import Numbers

NAN, INF = math.nan, math.inf


def feed(after: int, *rows: tuple[float | None, float | None], zero: bool = False) -> int | None:
    """Give rows of loss and grad norm; return the number of the one that ends it."""
    numbers = Numbers(after)
    for count, (loss, norm) in enumerate(rows, 1):
        found = numbers.see("status", loss, norm, zero=zero, where=f"step {count}")
        if found:
            assert (found.kind, found.fatal) == ("nan", True)
            return count
    return None


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_some_losses_in_a_row_that_are_no_number_end_it(loss: float) -> None:
    """At the fifth, not before."""
    assert feed(5, *[(loss, 1.0)] * 9) == 5
    assert feed(2, *[(loss, None)] * 9) == 2


def test_a_single_one_ends_nothing() -> None:
    """A good one in between begins the count anew."""
    assert feed(3, *[(NAN, 1.0), (NAN, 1.0), (0.5, 1.0)] * 20) is None


def test_exact_zeros_with_a_nan_grad_norm_are_a_hidden_nan() -> None:
    """The filter of Hugging Face's Trainer: every loss is logged as 0.0."""
    assert feed(5, *[(0.0, NAN)] * 9, zero=True) == 5
    assert feed(5, *[(0.0, None)] * 9, zero=True) == 5


def test_zeros_with_a_good_grad_norm_are_a_small_loss() -> None:
    """Trainers round: 0.00003 is logged as 0.0, and the gradients are fine."""
    assert feed(5, *[(0.0, 0.3)] * 50, zero=True) is None
    assert feed(5, *[(0.0, None)] * 50, zero=False) is None


def test_overflows_of_mixed_precision_are_no_end() -> None:
    """GradScaler looks for its scale: some steps have an infinite norm; lasting, they are the end."""
    assert feed(5, *[(2.0, INF)] * 12, *[(2.0, 1.0)] * 5) is None
    assert feed(5, *[(2.0, NAN)] * 40) == 20


def test_it_can_be_switched_off() -> None:
    """By --nan-after 0."""
    assert feed(0, *[(NAN, NAN)] * 100) is None


def test_sources_are_counted_apart() -> None:
    """The status file and the output tell of one step: that is one, not two."""
    numbers = Numbers(3)
    for _ in range(2):
        assert numbers.see("status", NAN, None) is None
        assert numbers.see("step", NAN, None) is None
    assert numbers.see("status", NAN, None) is not None


def test_the_evidence_says_where_it_began() -> None:
    """The first bad step, for there a checkpoint before it is to be found."""
    numbers = Numbers(2)
    numbers.see("status", 1.0, 1.0, where="step 6")
    numbers.see("status", NAN, INF, where="step 7")
    found = numbers.see("status", NAN, INF, where="step 8")
    assert found is not None
    assert found.text == "loss nan, grad norm inf, 2 times in a row, first at step 7"
