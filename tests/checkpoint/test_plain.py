"""State is tensors and primitives: every kind of object is converted, or refused by its key path."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import enum
import io
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import pytest
import torch
from torch import nn

from hermitcrab import Checkpointer
from hermitcrab.checkpoint import parts, rng, saver
from hermitcrab.checkpoint.plain import UnsaveableError, plain
from hermitcrab.checkpoint.snapshot import Snapshot, first_non_finite, free_memory
from tests.checkpoint.loop import scaler


class Subclass(torch.Tensor):  # type: ignore[misc] # torch is untyped where it is not installed
    """A tensor of a kind of its own."""


class Colour(enum.IntEnum):
    """A subclass of int."""

    RED = 3


KEPT: dict[str, Any] = {
    "primitives": {"a": [1, 2.5, True, None, "x", -(2**70)], 3: (1, (2,)), (1, "k"): 0, "nan": float("inf")},
    "tensor": torch.arange(6).reshape(2, 3),
    "python rng": random.getstate(),
    "rng": rng.capture(),
    "generator": {k: v for k, v in np.random.default_rng(1).bit_generator.state.items()},  # noqa: C416 - a plain dict of it
}
CONVERTED: dict[str, tuple[Any, Any]] = {
    "path": (Path("/a/b"), "/a/b"),
    "timedelta": (dt.timedelta(minutes=2), 120.0),
    "Namespace": (argparse.Namespace(lr=0.1, out=Path("x")), {"lr": 0.1, "out": "x"}),
    "numpy scalars": ([np.float64(2.5), np.int32(3), np.bool_(True), np.str_("s")], [2.5, 3, True, "s"]),
    "defaultdict": (collections.defaultdict(list, a=[1]), {"a": [1]}),
    "Counter": (collections.Counter("aab"), {"a": 2, "b": 1}),
    "IntEnum": ({Colour.RED: Colour.RED}, {3: 3}),
    "Size": (torch.zeros(2, 3).shape, (2, 3)),
    "namedtuple": (torch.tensor([1.0, 2.0]).sort(), (torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))),
    "Parameter": (nn.Parameter(torch.ones(2)), torch.ones(2)),
    "numpy's random state": (np.random.RandomState(3).get_state()[2:], (624, 0, 0.0)),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "function": ({"hooks": {"on": [len]}}, r"state\.hooks\.on\[0\] is a builtins\.builtin_function_or_method"),
    "object": ({"cfg": object()}, r"state\.cfg is a builtins\.object"),
    "module": (nn.Linear(1, 1), r"state is a torch"),
    "set": ({"seen": {1}}, r"state\.seen"),
    "bytes": ({"b": b"x"}, r"state\.b is a builtins\.bytes"),
    "key": ({Path("a"): 1}, r"the key .*a.* of state"),
    "sparse": ({"w": torch.eye(2).to_sparse()}, r"state\.w .*only dense"),
    "meta": ({"w": torch.empty(2, device="meta")}, r"state\.w .*with data"),
    "objects of numpy": ({"a": np.array([object()])}, r"state\.a"),
    "texts of numpy": ({"a": np.array(["x"])}, r"state\.a"),
    "dates of numpy": ({"a": np.array(["2026-01-01"], "M8[D]")}, r"state\.a"),
    "long double": ({"a": np.longdouble(1)}, r"state\.a is a numpy\.\w*(longdouble|float128)"),
    "long doubles": ({"a": np.zeros(2, np.longdouble)}, r"state\.a"),
    "masked array": ({"a": np.ma.masked_array([1, 2], [0, 1])}, r"state\.a"),
    "Python's complex": ({"a": [1j]}, r"state\.a\[0\] is a builtins\.complex"),
    "generator": ({"g": torch.Generator()}, r"state\.g is a torch"),
    "subclass": ({"w": [torch.zeros(2).as_subclass(Subclass)]}, r"state\.w\[0\] .*give its full, ordinary tensor"),
}


def loaded(value: Any) -> Any:
    """Through the file and back, as every load does."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def same(left: Any, right: Any) -> bool:
    """Equal, tensors included."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else bool(left == right)


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    """It loads with weights_only=True, equal."""
    assert same(loaded(plain(KEPT[name])), KEPT[name])


@pytest.mark.parametrize("name", CONVERTED)
def test_converted(name: str) -> None:
    """It becomes a primitive that says the same."""
    value, expected = CONVERTED[name]
    assert same(loaded(plain(value)), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """The message names the key path, so that one finds it."""
    value, said = REFUSED[name]
    with pytest.raises(UnsaveableError, match=said):
        plain(value)


TYPES = sorted({str(kind) for kind in vars(torch).values() if isinstance(kind, torch.dtype)})


class Holder(nn.Module):  # type: ignore[misc] # torch is untyped where it is not installed
    """A model that is one tensor."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.register_buffer("w", tensor)


@pytest.mark.filterwarnings("ignore")  # torch warns of types that it means to change
@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_tensor(folder: Path, name: str) -> None:
    """Saved and loaded, byte for byte, or refused at the first save by its key path: torch 2.4 cannot write uint16."""
    try:
        tensor = torch.empty(6, dtype=getattr(torch, name.rpartition(".")[2]))
        tensor.untyped_storage().fill_(1)
    except (RuntimeError, NotImplementedError):
        pytest.skip(f"this torch makes no {name}")
    ckpt = Checkpointer(folder, model=Holder(tensor), every_steps=1, rehearse=False)
    ckpt.resume()
    if can_be_saved(tensor):
        ckpt.step(0)
        ckpt.close()
        back = saver.load(folder / "step_00000000")["model"]["w"]
        assert back.dtype == tensor.dtype
        assert bytes(back.untyped_storage().tolist()) == bytes(tensor.untyped_storage().tolist())
    else:
        with pytest.raises(UnsaveableError, match=r"^model\.w is a torch\.Tensor, which .*; (this torch|only dense)"):
            ckpt.step(0)
        ckpt._drain()


def can_be_saved(tensor: Any) -> bool:
    """Whether torch itself takes it; quantized ones are never meant to be."""
    try:
        return loaded(tensor) is not None and not tensor.is_quantized
    except (KeyError, RuntimeError, NotImplementedError, pickle.UnpicklingError):
        return False


ARRAYS = {
    "float": np.arange(3.0),
    "other byte order": np.arange(3, dtype=">i4"),
    "reversed": np.arange(3)[::-1],
    "without dimensions": np.array(7),
    "complex": np.array([1j, 2]),
    "bool": np.array([True, False]),
    "by columns": np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_numpy(name: str) -> None:
    """They become tensors of the same values."""
    assert np.array_equal(loaded(plain(ARRAYS[name])).numpy(), ARRAYS[name])


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_arrays_that_not_every_torch_holds(kind: str) -> None:
    """Kept where this torch can, refused by their key path elsewhere: numpy's random state holds uint32."""
    value = {"keys": np.arange(5, dtype=kind)}
    if hasattr(torch, kind) and can_be_saved(torch.zeros(1).to(getattr(torch, kind))):
        assert np.array_equal(loaded(plain(value))["keys"].numpy(), value["keys"])
    else:
        with pytest.raises(UnsaveableError, match=r"^state\.keys is a "):
            plain(value)


@pytest.mark.parametrize("value", [torch.bfloat16, torch.device("cpu")])
def test_what_only_some_versions_of_torch_load(value: Any) -> None:
    """Kept where it loads, refused where it does not."""
    try:
        kept = plain(value)
    except UnsaveableError:
        return
    assert loaded(kept) == value


def test_what_holds_itself_is_refused() -> None:
    """No endless recursion."""
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(UnsaveableError, match="holds itself"):
        plain(value)


def test_the_parts_of_torch_load() -> None:
    """State of the usual optimizers, schedulers and of a module with its versions."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model(torch.ones(3, 2)).sum().backward()
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop):
        optimizer = kind(model.parameters(), lr=0.1)
        optimizer.step()
        schedulers = [
            torch.optim.lr_scheduler.OneCycleLR(kind(model.parameters(), lr=0.1), 0.1, total_steps=9)
            if kind is torch.optim.SGD
            else torch.optim.lr_scheduler.StepLR(optimizer, 2),
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        ]
        halves = [
            torch.optim.lr_scheduler.ConstantLR(optimizer),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ]
        schedulers.append(torch.optim.lr_scheduler.SequentialLR(optimizer, halves, [3]))
        for part in (optimizer, *schedulers):
            part.load_state_dict(loaded(parts.collect({"part": part})["part"]))
    scaling = scaler()
    scaling.load_state_dict(loaded(parts.collect({"part": scaling})["part"]))
    state = plain(model.state_dict())
    assert loaded(state)._metadata["1"] == {"version": 2}


def test_a_snapshot_is_a_copy_in_the_same_memory_each_time() -> None:
    """Later changes do not reach it; tied tensors stay tied; the layout stays."""
    weight = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    state = {"a": weight, "tied": weight, "view": weight[0], "t": torch.arange(6.0).reshape(2, 3).t(), "n": [1, ("x",)]}
    snapshot = Snapshot()
    first = snapshot.take(state)
    assert same(first, state)
    assert first["a"] is first["tied"] and first["a"].data_ptr() != weight.data_ptr()
    assert [first[name].stride() for name in "at"] == [state[name].stride() for name in "at"]
    weight.zero_()
    assert first["a"].abs().sum() > 0
    address = first["a"].data_ptr()
    assert snapshot.take(state)["a"].data_ptr() == address
    state["a"] = state["tied"] = torch.ones(2)
    assert same(snapshot.take(state)["a"], torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_what_is_not_finite_is_found_by_name(dtype: torch.dtype) -> None:
    """NaN and both infinities, anywhere; large values alone are none."""
    largest = {torch.float16: 6e4, torch.bfloat16: 1e38}.get(dtype, 3e38)  # their sum is not finite
    big = torch.full((1000,), largest).to(dtype)
    assert first_non_finite({"w": [big, torch.arange(3)], "none": torch.empty(0)}) == ""
    for bad in (float("nan"), float("inf"), float("-inf")):
        broken = big.clone()
        broken[500] = bad
        assert first_non_finite({"w": [big, broken]}) == "model.w.1"


def test_free_memory_follows_the_cgroup(tmp_path: Path) -> None:
    """The lower of what the machine has and what the container may take."""
    for name, text in {
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  1000 kB\n",
        "sys/fs/cgroup/memory.max": "500000\n",
        "sys/fs/cgroup/memory.current": "200000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == 300_000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert free_memory(tmp_path) == 1_024_000
