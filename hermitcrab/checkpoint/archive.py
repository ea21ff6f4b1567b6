"""State as the file that ``torch.load`` takes, written in half the time of ``torch.save``.

torch sums every record for its zip, and the manifest wants a sum of the same bytes; here one pass serves
both. torch's own code says which records there are; only the zip around them is made here. Where that code
has changed, `torch.save` itself writes the file: slower, and as good.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import io
import pickle
import struct
import zlib
from typing import Any, NamedTuple

import torch

from hermitcrab.checkpoint.tee import CHUNK, Tee

FOLDER = "archive"  # the name that torch gives to a file without one
VERSION = b"3\n"  # of torch's format
PROTOCOL = 2  # of pickle, torch's choice
ALIGNED = 64  # where a record begins, so that torch.load(mmap=True) gets fast tensors
SMALL = 1 << 16  # below that, summing twice is cheaper than combining sums
FULL = 0xFFFFFFFF  # in a field of four bytes: the true number is in the zip64 field
MANY = 0xFFFF  # the same of two bytes
DATE = 0x0021  # 1980-01-01, the first that a zip knows: the same state gives the same file
LOCAL, CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
END64, LOCATOR, END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")


class Record(NamedTuple):
    """One file in the zip."""

    name: bytes
    crc32: int
    size: int
    offset: int


def save(state: Any, file: Tee) -> None:
    """Write a state."""
    if _is_known():
        _save(state, file)
    else:
        torch.save(state, file)


class Zip:
    """What torch's code hands its records to; they are stored as they are."""

    def __init__(self, file: Tee) -> None:
        self._file, self._records = file, []  # type: tuple[Tee, list[Record]]

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Write bytes, a text, or what a storage (or its address, in older versions) holds."""
        view = _bytes(data, size)
        crc32 = 0
        for start in range(0, size, CHUNK):
            crc32 = zlib.crc32(view[start : start + CHUNK], crc32)
        record = Record(f"{FOLDER}/{name}".encode(), crc32, size, self._file.size)
        self._records.append(record)
        self._file.write(_local(record))
        if size < SMALL:
            self._file.write(bytes(view))
        else:
            self._file.write_summed(view, crc32)

    def close(self) -> None:
        """Write the list of the records."""
        self.write_record("version", VERSION, len(VERSION))
        start = self._file.size
        for record in self._records:
            self._file.write(_central(record))
        size, count = self._file.size - start, len(self._records)
        if start + size > FULL or count >= MANY:
            here = self._file.size
            self._file.write(END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start))
            self._file.write(LOCATOR.pack(b"PK\6\7", 0, here, 1))
        few = min(count, MANY)
        self._file.write(END.pack(b"PK\5\6", 0, 0, few, few, min(size, FULL), min(start, FULL), 0))


def _save(state: Any, file: Tee) -> None:
    inner: Any = torch.serialization._save  # noqa: SLF001 - see _is_known
    newer = {"_disable_byteorder_record": False} if "_disable_byteorder_record" in _parameters(inner) else {}
    archive = Zip(file)
    inner(state, archive, pickle, PROTOCOL, **newer)
    archive.close()


@functools.lru_cache(maxsize=None)
def _is_known() -> bool:
    """Whether torch takes back what we make of its inner code; tried once, on a small state."""
    tensor = torch.arange(SMALL, dtype=torch.float32)
    buffer = io.BytesIO()
    try:
        _save({"a": tensor, "b": [tensor[1:], 2, "c"]}, Tee(buffer))
        back = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        shared = back["b"][0].data_ptr() == back["a"].data_ptr() + tensor.element_size()
        return bool(shared and torch.equal(back["a"], tensor) and back["b"][1:] == [2, "c"])
    except Exception:  # noqa: BLE001 - whatever it is, torch.save does not have it
        return False


def _parameters(work: Any) -> Any:
    return inspect.signature(work).parameters


def _bytes(data: Any, size: int) -> memoryview:
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytes) or not size:
        return memoryview(data if size else b"")
    address = data if isinstance(data, int) else data.data_ptr()
    return memoryview((ctypes.c_char * size).from_address(address))  # its owner lives in the state that is saved


def _local(record: Record) -> bytes:
    """The header before a record, as long as it takes for the data to begin at a round address."""
    long = record.size >= FULL
    size = FULL if long else record.size
    extra = struct.pack("<2H2Q", 1, 16, record.size, record.size) if long else b""
    begin = record.offset + LOCAL.size + len(record.name) + len(extra) + 4
    padding = -begin % ALIGNED
    extra += struct.pack("<2s H", b"FB", padding) + bytes(padding)
    length = len(record.name), len(extra)
    return LOCAL.pack(b"PK\3\4", 45, 0, 0, 0, DATE, record.crc32, size, size, *length) + record.name + extra


def _central(record: Record) -> bytes:
    size, offset = min(record.size, FULL), min(record.offset, FULL)
    wide = [*([record.size] * 2 if size == FULL else []), *([record.offset] if offset == FULL else [])]
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    lengths = len(record.name), len(extra)
    fields = (45, 45, 0, 0, 0, DATE, record.crc32, size, size, *lengths, 0, 0, 0, 0, offset)
    return CENTRAL.pack(b"PK\1\2", *fields) + record.name + extra
