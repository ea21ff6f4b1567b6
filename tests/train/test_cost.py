"""Claims: a price is read as people write it, and what was spent is never lost or counted backwards."""

from __future__ import annotations

import argparse
import math

import pytest

from hermitcrab.train.watch.cost import Meter, money, parse


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("4.5/h", 4.5),
        ("4.5", 4.5),
        (".5/hour", 0.5),
        ("108/day", 4.5),
        ("0.1 / min", 6.0),
        ("730/month", 1.0),
        ("0", 0),
    ],
)
def test_a_price_is_per_hour(text: str, price: float) -> None:
    """Whatever it was given for."""
    assert parse(text) == pytest.approx(price)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e3", "4,5", "4.5/fortnight", "$4", "9" * 400])
def test_what_is_no_price_is_refused(text: str) -> None:
    """With what is valid."""
    with pytest.raises(argparse.ArgumentTypeError, match="is no price"):
        parse(text)


def test_the_meter_counts_time() -> None:
    """Half an hour is half the price; a clock that goes back counts nothing."""
    meter = Meter(4.5, "CNY", 100.0)
    assert meter.spent(100.0 + 1800) == pytest.approx(2.25)
    assert meter.spent(50.0) == 0
    assert money(2.25, "CNY") == "2.25 CNY"
    assert money(2.25, "") == "2.25"


@pytest.mark.parametrize(("before", "spent"), [(3.0, 3.0), (None, 0.0), ("many", 0.0), (math.nan, 0.0), (True, 0.0)])
def test_it_goes_on_from_what_was_spent(before: object, spent: float) -> None:
    """And a broken record is none."""
    assert Meter(1.0, "CNY", 0.0, before).spent(0.0) == spent


def test_without_a_price_nothing_is_known() -> None:
    """Unknown is not zero."""
    assert Meter(None, "", 0.0).spent(3600) is None
