"""What a line of output tells of a training: the tables that read step, loss and grad norm.

Nothing here is certain, so two kinds of counters are told apart: a strong one counts steps of training and
may prove a hang when it stands still; a weak one (a download, a tokenizer, an evaluation) only shows life.
"""

from __future__ import annotations

import math
import re
from typing import Iterator, NamedTuple

LONGEST = 1000  # of a line; every pattern is bounded, so that no output can hold its reader up
NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:\d{1,15}(?:,\d{3}){0,4}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,4})?)"
VALUE = rf"""['"]?\s{{0,12}}[:=|]?\s{{0,12}}(?:tensor\()?[\['"]{{0,2}}({NUMBER})(?![A-Za-z/])"""
WHOLE = r"(\d{1,12}(?:,\d{3}){0,3})"

# A line without any of these is not looked at any further: most output is none of our business.
HINTS = ("loss", "step", "iter", "epoch", "norm", "batch", "update", "%|", "━━", "it/s", "s/it", "=>")
COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

LOSS = re.compile(
    rf"loss(?:es)?(?:[_/ .](?:step|epoch|train|training|avg|mean|total|value|sum))?{VALUE}", re.IGNORECASE
)
GRAD_NORM = re.compile(rf"(?:grad(?:ient)?s?[_ /.-]{{0,2}}norm|norm[_ ]grad|\bgnorm){VALUE}", re.IGNORECASE)
STEP = re.compile(
    r"(?:step|iteration|iter|batch|num_update|update)(s?)['\"]?\s{0,12}[:=#]?\s{0,12}[\[('\"]?\s{0,8}"
    rf"{WHOLE}(?:\s{{0,12}}/\s{{0,8}}{WHOLE})?(?![\d.]{{0,20}}[A-Za-z%])",
    re.IGNORECASE,
)
EPOCH = re.compile(
    r"epoch['\"]?\s{0,6}[:=#]?\s{0,6}[\['\"]{0,2}\s{0,6}(\d{1,9}(?:\.\d{1,20})?)(?:\s{0,6}/\s{0,6}(\d{1,9}))?",
    re.IGNORECASE,
)
# "Epoch: [0][  10/5005]" (the ImageNet example, MMEngine), "Train Epoch: 1 [640/60000 (1%)]" (MNIST's).
IN_EPOCH = re.compile(
    r"epoch\D{0,12}\d{1,9}(?:/\d{1,9})?\]?\s{0,4}\[\s{0,12}(\d{1,12})\s{0,4}/\s{0,4}(\d{1,12})", re.IGNORECASE
)
# Ultralytics: epoch, memory, losses, instances and size: the names stand in a heading long gone.
COLUMNS = re.compile(
    rf"^\s*(\d{{1,9}})/(\d{{1,9}})\s+[\d.]{{1,9}}[KMG]B?\s+((?:{NUMBER}\s+){{1,8}}?)\d+\s+\d+:", re.IGNORECASE
)
AMOUNT = r"(\d{1,12}(?:\.\d{1,3})?)([kMGT]?)"
BARS = (
    re.compile(rf"(?<!\d)\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,9}}{AMOUNT}/{AMOUNT}"),  # tqdm
    re.compile(rf"(?:(?<!\d)\d{{1,3}}%\s)?(?<![━╸╺─])[━╸╺─]{{4,300}}\s{{1,4}}{AMOUNT}/{AMOUNT}"),  # Rich, Ultralytics
    re.compile(rf"^\s*{AMOUNT}/{AMOUNT} \[[=>.]{{4,300}}\]"),  # Keras
    re.compile(rf"(?<![\d./]){AMOUNT}()()[a-z]{{0,8}} \[\d{{1,4}}:\d"),  # tqdm that knows no total
)
SCALES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

# Before "loss": those of other data, or no loss of this moment.
OTHER_LOSS = re.compile(
    r"(?:val|valid|validation|eval|evaluation|test|dev|best|min|lowest|ema|prev|previous|old|initial)"
    r"[\w]{0,12}[ _/.:\-'\"\]]{0,3}$|[A-Za-z0-9]$",
    re.IGNORECASE,
)
PLAIN_LOSS = re.compile(r"(?:^|[^\w])(?:(?:train|training|total|lm|avg|mean|batch)[ _/.\-]{1,2})?$", re.IGNORECASE)
# Before "step": a setting, not a position.
SETTING = re.compile(
    r"(?:total|max|min|num|number|n|warm-?up|save|saving|log|logging|eval|evaluation|accumulation|optimization|of|every"
    r"|per|gradient|last|best|next|first|from|after|decay|val|test|epoch_|time|size|micro|mini|global_train)"
    r"[\w]{0,6}[ _\-]{0,2}$|[A-Za-z0-9]$",
    re.IGNORECASE,
)
FRONT = re.compile(r"(?:global|train|training|current|cur|optimizer)[ _\-]?$", re.IGNORECASE)
# A bar or a line about something else than steps of training, and where a line comes to the training itself.
NOT_TRAINING = re.compile(
    r"\b(?:down|up)?load(?:ing)?\b|\bfetch|\bmap\b|\bfilter|tokeni[sz]|extract|unzip|valid|\beval|\btest|\bval\b|sanity"
    r"|predict|generat|\bsampling|\bcach|\bscan|\bprepar|processing|preprocess|saving|shards|compil|export|\bbuild|convert"
    r"|\bencoding|\bcollect|\bresolv|\binstall",
    re.IGNORECASE,
)
TRAINING = re.compile(r"train|step|epoch|iter|loss|batch", re.IGNORECASE)
HEAD = 60


class Counter(NamedTuple):
    """Something that is counted: when its value moves, something goes on."""

    label: str
    value: float
    total: float | None
    strong: bool


class Reading(NamedTuple):
    """What one line told."""

    counters: tuple[Counter, ...] = ()
    step: int | None = None
    total: int | None = None
    source: str = ""  # step, bar or epoch: what the step was read from
    loss: float | None = None
    zero: bool = False  # the loss is 0.0, and not something small that was rounded
    grad_norm: float | None = None


SOURCES = ("status", "step", "bar", "epoch")  # the steps of the first that was seen are believed


def hints(line: str) -> bool:
    """Say whether a line may tell something; cheap, for every line of output."""
    low = line.lower()
    return any(hint in low for hint in HINTS)


def read(line: str) -> Reading | None:
    """Read a line; None when it tells nothing."""
    text = COLORS.sub("", line.rstrip("\r\n").rpartition("\r")[2][:LONGEST])
    if not hints(text):
        return None
    bar = next((found for found in (pattern.search(text) for pattern in BARS) if found), None)
    other = _is_other(text, bar)
    loss, zero = (None, False) if other else _loss(text)
    norm = GRAD_NORM.search(text)
    numbers = loss is not None or norm is not None
    counters = tuple(_counters(text, bar, numbers=numbers, other=other))
    if not counters and not numbers:
        return None
    step, total, source = _step(counters)
    return Reading(counters, step, total, source, loss, zero, number(norm[1]) if norm else None)


def _is_other(text: str, bar: re.Match[str] | None) -> bool:
    """Say whether a line is about something else, by what stands before its bar or its first word of training."""
    if bar and NOT_TRAINING.search(text[max(0, bar.start() - HEAD) : bar.start()]):
        return True
    training = TRAINING.search(text[:HEAD])
    return bool(NOT_TRAINING.search(text[: training.start() if training else HEAD]))


def number(text: str) -> float:
    """Read a number as programs print them."""
    return float(text.replace(",", ""))


def _loss(text: str) -> tuple[float | None, bool]:
    """Return the loss of the training, and whether it is exactly zero: the plain one before those of parts."""
    columns = COLUMNS.match(text)
    if columns:
        values = [number(word) for word in columns[3].split()]
        return (math.fsum(values) if all(map(math.isfinite, values)) else math.nan), False
    part = None
    for found in LOSS.finditer(text):
        before = text[max(0, found.start() - 24) : found.start()]
        if OTHER_LOSS.search(before):
            continue
        value = number(found[1]), bool(re.fullmatch(r"[-+]?0(?:\.0)?", found[1]))
        if PLAIN_LOSS.search(before):
            return value
        part = part or value
    return part or (None, False)


def _counters(text: str, bar: re.Match[str] | None, *, numbers: bool, other: bool) -> Iterator[Counter]:
    """Yield what the line counts; with a loss beside it, or as a bar, it counts training."""
    for found in STEP.finditer(text):
        before = text[max(0, found.start() - 24) : found.start()]
        front = FRONT.search(before)
        if not SETTING.search(before[: front.start()] if front else before) and (numbers or not found[1]):
            total = number(found[3]) if found[3] else None
            yield Counter("step", number(found[2]), total, strong=numbers and not other)
            break
    inside = IN_EPOCH.search(text)
    if inside:
        yield Counter("batch", float(inside[1]), float(inside[2]), strong=not other)
    yield from _epoch(text, numbers=numbers, other=other)
    if bar:
        label, speed = text[: bar.start()], text[bar.end() : bar.end() + HEAD]
        yield _bar(label, *bar.groups(), other=other or "B/s" in speed)


def _epoch(text: str, *, numbers: bool, other: bool) -> Iterator[Counter]:
    found = COLUMNS.match(text) or EPOCH.search(text)
    if found:
        yield Counter("epoch", float(found[1]), float(found[2]) if found[2] else None, strong=numbers and not other)


def _bar(label: str, done: str, scale: str, total: str, total_scale: str, *, other: bool) -> Counter:
    # Bytes and thousands are counted where files are loaded, not in training.
    strong = not (other or scale or total_scale)
    name = re.sub(r"[\d\W]+", " ", label[-HEAD:]).strip().lower()
    most = float(total) * SCALES[total_scale] if total else None
    return Counter(f"bar {name}", float(done) * SCALES[scale], most, strong)


def _step(counters: tuple[Counter, ...]) -> tuple[int | None, int | None, str]:
    """Return the step, how many there will be and where that was read, from the best of the strong counters."""
    for source in SOURCES[1:]:
        for counter in counters:
            kind = "bar" if counter.label == "batch" else counter.label.split(" ")[0]
            if counter.strong and kind == source and counter.value == int(counter.value):
                return int(counter.value), int(counter.total) if counter.total else None, source
    return None, None, ""
