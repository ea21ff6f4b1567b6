"""The file of a state is torch's own: its zip, its checksums, in every way torch reads it."""

from __future__ import annotations

import ctypes
import io
import random
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hermitcrab.checkpoint import archive, sums, tee
from hermitcrab.checkpoint.tee import Tee


def can_save(name: str) -> bool:
    """Say whether this torch knows a type and saves it: 2.4 has uint16 and does not."""
    try:
        torch.save(torch.zeros(1).to(getattr(torch, name)), io.BytesIO())
    except (AttributeError, KeyError):
        return False
    return True


NEWER = [getattr(torch, name) for name in ("float8_e4m3fn", "uint16") if can_save(name)]


def state() -> dict[str, Any]:
    """Views, shared memory, an empty tensor, large and small ones, several types."""
    large = torch.randn(300, 300)
    kinds = {str(kind): large[:2].to(kind) for kind in (torch.bfloat16, torch.bool, torch.complex64, *NEWER)}
    return {"large": large, "turned": large.t(), "part": large[3:5], "empty": torch.empty(0), "n": [1, "x"], **kinds}


def raw(tensor: Any) -> Any:
    """All its bytes, of whatever type."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def write(path: Path, value: Any) -> tee.Sum:
    """Write it as a checkpoint's file."""
    return tee.write(path, lambda file: archive.save(value, file))  # type: ignore[arg-type]


def test_torch_and_zip_read_it(tmp_path: Path) -> None:
    """Loaded whole or mapped; the zip's checksums and the file's own are right; tensors keep sharing memory."""
    path, value = tmp_path / "state.pt", state()
    told = write(path, value)
    assert archive._is_known(), "this torch's inner code is used"
    assert told == tee.measure(path)
    with zipfile.ZipFile(path) as archived:
        assert archived.testzip() is None
    for options in ({}, {"mmap": True}):
        back = torch.load(path, weights_only=True, **options)
        assert back.keys() == value.keys() and back["n"] == [1, "x"]
        for name, tensor in value.items():
            if name != "n":
                assert back[name].dtype == tensor.dtype and torch.equal(raw(back[name]), raw(tensor)), name
        assert back["turned"].data_ptr() == back["large"].data_ptr()
        assert back["large"].data_ptr() % archive.ALIGNED == 0


def test_a_torch_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own torch.save writes the file, as well summed."""

    def changed(*_: Any) -> None:
        raise TypeError("other arguments")

    monkeypatch.setattr(torch.serialization, "_save", changed)
    archive._is_known.cache_clear()
    try:
        assert not archive._is_known()
        monkeypatch.undo()
        told = write(tmp_path / "state.pt", state())
    finally:
        archive._is_known.cache_clear()
    assert told == tee.measure(tmp_path / "state.pt")
    assert torch.equal(torch.load(tmp_path / "state.pt", weights_only=True)["empty"], torch.empty(0))


def test_large_files_have_long_fields() -> None:
    """Past 4 GiB, and past 65535 records, with the limits moved down to where a test can reach them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "FULL", 5000)
        large = archive.Record(b"archive/data/0", 1, 7000, 6000)
        assert len(archive._central(large)) == archive.CENTRAL.size + len(large.name) + 28
        assert (large.offset + len(archive._local(large))) % archive.ALIGNED == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "MANY", 100)
        file = io.BytesIO()
        archive.save({str(number): torch.tensor(number) for number in range(200)}, Tee(file))
    with zipfile.ZipFile(file) as archived:
        assert len(archived.infolist()) > 200 and archived.testzip() is None


def test_sums_of_two_are_the_sum_of_both() -> None:
    """For any lengths, none included."""
    dice = random.Random(3)
    for length in (0, 1, 7, 64, 1000, 70_001):
        one, other = dice.randbytes(33), dice.randbytes(length)
        assert sums.combine(zlib.crc32(one), zlib.crc32(other), length) == zlib.crc32(one + other)


GIB = 1 << 30
ALLOWED_S = 0.05
TRIES = 8


def longest_gap(work: Callable[[], object]) -> float:
    """The longest that this thread was kept from running beside the work, waiting for a core not counted."""
    thread = threading.Thread(target=work)
    longest, last, queued, alive = 0.0, time.monotonic(), queue(), True
    thread.start()
    while alive:
        alive = thread.is_alive()  # before the clock: the last gap counts
        now, waited = time.monotonic(), queue()
        longest, last, queued = max(longest, now - last - (waited - queued)), now, waited
    return longest


def queue() -> float:
    """Seconds that this thread has waited for a core so far: those are another program's."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def test_the_writer_does_not_keep_the_training(tmp_path: Path) -> None:
    """Beside 1 GiB never for 50 ms. A busy machine only adds, so one try of some counts."""
    value = {str(number): torch.ones(1 << 26) for number in range(GIB >> 28)}  # a large one is what keeps it long
    path = tmp_path / "state.pt"

    def ours() -> None:
        path.unlink(missing_ok=True)
        write(path, value)

    gaps = [longest_gap(ours)]
    while len(gaps) < TRIES and gaps[-1] >= ALLOWED_S:
        gaps.append(longest_gap(ours))
    assert min(gaps) < ALLOWED_S, gaps


def test_a_writer_that_keeps_the_training_is_seen() -> None:
    """What the test above measures by: here by a call that keeps the interpreter's lock."""
    assert longest_gap(lambda: ctypes.PyDLL(None).usleep(200_000)) > ALLOWED_S
