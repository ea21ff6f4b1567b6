"""The text of `nvidia-smi`, read when nothing better answers; a field that is no number is unknown."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

from hermitcrab.box.check.nvml import Card, Slice

FIELDS = ("name", "memory.total", "memory.used", "mig.mode.current", "driver_version")
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
SECONDS = 10  # a sick driver makes it hang
MIB = 2**20

# Since driver 610 the banner says "KMD Version" and "CUDA UMD Version"; `-q` may hold a sentence beside them.
DRIVER = re.compile(r"\b(?:KMD|Driver) Version\s*:\s*(\d{3,}(?:\.\d+)+)")
CUDA = re.compile(r"\bCUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)")
ROW = re.compile(r"^\|\s+\d+\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|Enabled|Disabled)\s*\|\s*[\dA-Fa-f]{4,8}:", re.MULTILINE)
MEMORY = re.compile(r"\|\s*(?P<used>[^|/]+?)\s*/\s*(?P<total>[^|/]+?)\s*\|\s*(?:[\d.]+%|N/A|ERR!)\s+\w")
MIG_MODE = re.compile(r"^\|[^|]*\|[^|]*\|\s*(Enabled|Disabled)\*?\s*\|\s*$", re.MULTILINE)
SLICE = re.compile(r"^\|\s+(?P<card>\d+)(?:\s+\d+){3}\s+\|\s*\S+\s*/\s*(?P<total>\S+)", re.MULTILINE)


class Smi(NamedTuple):
    """What `nvidia-smi` let be known; ``said`` is what it said instead."""

    ran: bool = False
    driver: str = ""
    cuda: int | None = None
    cards: tuple[Card, ...] = ()
    said: str = ""


def ask() -> Smi:
    """Run the query, and the table only when the query tells nothing."""
    queried = _run(QUERY)
    smi = read_query(queried) if queried is not None else Smi()
    return smi if smi.cards else read_table(_run(QUERY[:1]))


def read_query(text: str) -> Smi:
    """Read the answer to QUERY; a line of another shape is no card."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == len(FIELDS)]
    drivers = [row[4] for row in rows if re.fullmatch(r"\d{3,}(\.\d+)+", row[4])]
    cards = tuple(_card(row[0], f"{row[1]}MiB", f"{row[2]}MiB", row[3]) for row in rows)
    return Smi(True, drivers[0] if drivers else "", None, cards, "" if cards else text.strip())


def read_table(text: str | None) -> Smi:
    """Read the table, or ``nvidia-smi -q`` as far as versions go; None is a missing program."""
    if text is None:
        return Smi(said="nvidia-smi: command not found")
    driver, cuda = DRIVER.search(text), _cuda(text)
    cards = tuple(_cards(text))
    return Smi(True, driver[1] if driver else "", cuda, cards, "" if cards else text.strip())


def size(text: str) -> int | None:
    """Read ``15109MiB``; None for ``N/A``, ``ERR!``, ``[Insufficient Permissions]`` and the like."""
    found = re.fullmatch(r"\s*(\d+)\s*MiB\s*", text)
    return int(found[1]) * MIB if found else None


def _cuda(text: str) -> int | None:
    """Find the CUDA that the driver knows; a line that says UMD is the surer one."""
    found = sorted(CUDA.finditer(text), key=lambda match: "UMD" not in match[0])
    return 1000 * int(found[0][1]) + 10 * int(found[0][2]) if found else None


def _cards(text: str) -> list[Card]:
    """Read the rows of the cards, each from its name to the next name, and the table of slices."""
    table, _, below = text.partition("MIG devices:")
    slices = [(int(match["card"]), size(match["total"])) for match in SLICE.finditer(below)]
    starts = [match.start() for match in ROW.finditer(table)]
    cards = []
    for index, (start, end) in enumerate(zip(starts, [*starts[1:], len(table)])):
        block = table[start:end]
        row, memory, mig = ROW.match(block), MEMORY.search(block), MIG_MODE.search(block)
        total, used = (memory["total"], memory["used"]) if memory else ("", "")
        card = _card(row["name"] if row else "", total, used, mig[1] if mig else "")
        cards.append(card._replace(slices=tuple(Slice("", total) for owner, total in slices if owner == index)))
    return cards


def _card(name: str, total: str, used: str, mig: str) -> Card:
    known = not re.search(r"\.\.\.$|^\W|ERR!|^N/A$", name)  # old tables cut long names short
    return Card(name if known else "", size(total), size(used), {"Enabled": True, "Disabled": False}.get(mig))


def _run(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except (FileNotFoundError, PermissionError):
        return None
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout.decode(errors="replace")
