"""Any loss that a training may have: read when it is saved, never warned about, refused in one line if it is none."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer
from hermitcrab.checkpoint import metrics, store
from hermitcrab.errors import UserError

NUMBERS: dict[str, Any] = {
    "float": 0.5,
    "int": 2,
    "with a graph": torch.tensor([0.25], requires_grad=True).sum() * 2,
    "leaf that requires grad": torch.tensor(0.5, requires_grad=True),
    "shape [1]": torch.tensor([0.5]),
    "shape [1, 1]": torch.tensor([[0.5]]),
    "float16": torch.tensor(0.5, dtype=torch.float16),
    "bfloat16": torch.tensor(0.5, dtype=torch.bfloat16),
    "float64": torch.tensor(0.5, dtype=torch.float64),
    "int64": torch.tensor(3),
    "bool": torch.tensor(True),
    "numpy float32": np.float32(0.5),
    "numpy int": np.int64(7),
    "numpy array of one": np.array([0.5]),
    "numpy array without dimensions": np.array(0.5),
    "fraction": Fraction(1, 2),
}
NONE: dict[str, tuple[Any, str]] = {
    "two": (torch.zeros(2), r"a Tensor of shape \(2,\); give one number, such as loss\.mean\(\)"),
    "empty": (torch.zeros(0), r"a Tensor of shape \(0,\)"),
    "two, with a graph": (torch.ones(2, requires_grad=True) * 2, r"a Tensor of shape \(2,\)"),
    "complex": (torch.tensor(1j), "a Tensor"),
    "Python's complex": (1j, "a complex"),
    "numpy array": (np.zeros((2, 3)), r"a ndarray of shape \(2, 3\)"),
    "text": ("0.5", "a str"),
    "list": ([0.5], "a list"),
    "dict": ({"loss": 0.5}, "a dict"),
}


def make(folder: Path, **options: Any) -> Checkpointer:
    """A checkpointer that has begun."""
    ckpt = Checkpointer(folder, model=nn.Linear(2, 2), rehearse=False, **{"every_steps": 1, **options})
    ckpt.resume()
    return ckpt


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(folder: Path, name: str) -> None:
    """Saved as the number it is, without a warning, and whatever the metric is called."""
    value = NUMBERS[name]
    with make(folder) as ckpt:
        ckpt.step(0, loss=value, accuracy=value)
    told = store.verify(folder / "step_00000000")["metrics"]
    expected = float(value.detach() if isinstance(value, torch.Tensor) else np.asarray(float(np.ravel(value)[0])))
    assert told == {"loss": expected, "accuracy": expected}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_number(folder: Path, name: str) -> None:
    """One line at the first step, also where nothing would be saved yet; nothing counts as done."""
    value, said = NONE[name]
    ckpt = make(folder, every_steps=1000)
    with pytest.raises(UserError, match=rf"step\(…, loss=…\) is {said}"):
        ckpt.step(0, loss=value)
    with pytest.raises(UserError, match=r"step\(…, accuracy=…\) is"):
        ckpt.step(0, accuracy=value)
    ckpt.step(0, loss=1.0)
    ckpt.close()


def test_none_is_no_loss(folder: Path) -> None:
    """A loop that computes none saves all the same."""
    with make(folder) as ckpt:
        ckpt.step(0, loss=None, grad_norm=None)
    assert store.verify(folder / "step_00000000")["metrics"] == {}


@pytest.mark.parametrize("value", [math.nan, torch.tensor(math.nan, requires_grad=True), np.float32("inf")])
def test_not_finite(folder: Path, capsys: pytest.CaptureFixture[str], value: Any) -> None:
    """Of whatever kind, it delays the save."""
    with make(folder) as ckpt:
        ckpt.step(0, loss=value)
        assert "step 0 is not saved: its loss is" in capsys.readouterr().err
        ckpt.step(1, loss=0.5)
    assert [item.step for item in store.found(folder)] == [1]


def test_it_is_the_number_of_its_step(folder: Path) -> None:
    """Whatever is done to the tensor before it is saved, and without holding on to the step's graph."""
    total = torch.tensor(0.5, requires_grad=True) * 1
    ckpt = make(folder, every_steps=1000)
    ckpt.step(0, loss=total)
    with torch.no_grad():
        total.zero_()
    ckpt.close()
    assert store.verify(folder / "step_00000000")["metrics"] == {"loss": 0.5}


class OnCard:
    """Stands in for a tensor on a card: reading it, which waits, is counted."""

    device = torch.device("cuda")

    def __init__(self, value: float, reads: list[float], *, graph: bool = True) -> None:
        self.value, self.reads, self.graph = value, reads, graph

    def detach(self) -> OnCard:
        return OnCard(self.value, self.reads, graph=False)

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False

    def clone(self) -> OnCard:
        return OnCard(self.value, self.reads, graph=self.graph)

    def item(self) -> float:
        self.reads.append(self.value)
        return self.value


def test_a_card_is_waited_for_at_a_save_only(folder: Path) -> None:
    """Whenever that is, and without the graph of its step, which would fill the card."""
    reads: list[float] = []
    ckpt = make(folder, every_steps=1000)
    for step in range(3):
        ckpt.step(step, loss=OnCard(step / 2, reads), accuracy=OnCard(0.5, reads))
        assert not any(value.graph for value in ckpt._metrics.values())
    ckpt.close()
    assert reads == [1.0, 0.5]
    assert store.verify(folder / "step_00000002")["metrics"] == {"loss": 1.0, "accuracy": 0.5}


def test_what_is_held_on_a_card_is_a_copy() -> None:
    """The loop's own tensor may be the sum of the next step by then."""
    loss = OnCard(0.5, [])
    loss.detach = lambda: loss  # type: ignore[method-assign] # as on a card: the same memory
    held = metrics.held("loss", loss)
    loss.value = 9.0
    assert metrics.number(held) == 0.5
