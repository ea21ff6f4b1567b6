"""Where packages come from: as configured, from the mirror asked for, or from the quickest of a short probe.

"A mirror is faster" is false as often as true, so a few seconds of measuring decide. The hashes of the locks
make any mirror harmless. A user's own settings of pip or uv are respected: then nothing is probed.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from hermitcrab.box.bootstrap.run import Run, clean
from hermitcrab.errors import UserError

AUTO, NONE = "auto", "none"
PROBE_S = 3.0
PAGE = "torch/"  # some hundred kB, in every index
ENOUGH = 1 << 20
BETTER = 2.0  # so many times the official index's rate is worth a change
CONFIGURED = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "PIP_INDEX_URL", "PIP_NO_INDEX", "UV_OFFLINE")
# What an index of this style is called in pip and in uv.
VARIABLES = {"simple": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), "flat": ("PIP_FIND_LINKS", "UV_FIND_LINKS")}
OFFICIAL = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"  # pip knows its own default


class Mirror(NamedTuple):
    """One mirror of packages, and of the distributions."""

    name: str
    packages: str
    style: str  # simple (PEP 503) or flat (a page of links)
    debian: str
    security: str
    ubuntu: str

    @property
    def variables(self) -> dict[str, str]:
        """What makes pip and uv use it."""
        return dict.fromkeys(VARIABLES[self.style], self.packages)


def table() -> dict[str, Mirror]:
    """Return the mirrors by name."""
    rows = json.loads(Path(__file__).with_name("mirrors.json").read_text(encoding="utf-8"))
    return {name: Mirror(name, **row) for name, row in rows.items()}


def check(name: str, known: Mapping[str, Mirror]) -> None:
    """Refuse a mirror that is none, before anything is done."""
    if name not in (AUTO, NONE, *known):
        raise UserError(f"--mirror {name}: known are {', '.join((AUTO, NONE, *known))}", code=2)


def choose(run: Run, name: str, pip: Sequence[str], known: Mapping[str, Mirror]) -> Mirror | None:
    """Return the mirror to use, or None: as it is configured."""
    if name == NONE or (name == AUTO and is_configured(run, pip)):
        return None
    if name != AUTO:
        return known[name]
    status, said = run.attempt(*_python(pip), "-c", OFFICIAL, environ=clean(run.environ))
    official = said.strip() if status == 0 and said.strip().startswith("http") else ""
    rates = probe({"": official, **{one.name: one.packages for one in known.values()}}, run.environ)
    run.note(f"rates of indexes in bytes/s: {rates}")
    best = max(known, key=lambda one: rates.get(one, 0.0))
    return known[best] if rates.get(best, 0.0) > BETTER * rates.get("", 0.0) else None


def is_configured(run: Run, pip: Sequence[str]) -> bool:
    """Whether the user has chosen an index: by a variable, or in a file of pip's or uv's."""
    if any(run.environ.get(name) for name in CONFIGURED):
        return True
    if any(Path(path).is_file() for path in (run.places.home / ".config/uv/uv.toml", Path("/etc/uv/uv.toml"))):
        return True
    said = run.attempt(*pip, "config", "list", environ=clean(run.environ))[1]
    return any(line.partition("=")[0].endswith("index-url") for line in said.splitlines() if "extra-" not in line)


def probe(indexes: Mapping[str, str], environ: Mapping[str, str], seconds: float = PROBE_S) -> dict[str, float]:
    """Ask all at once, and return the bytes per second of those that answered in time."""
    rates: dict[str, float] = {}
    threads = [
        threading.Thread(target=_measure, args=(name, index, environ, seconds, rates), daemon=True)
        for name, index in indexes.items()
        if index
    ]
    end = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(rates)


def apt_options(mirror: Mirror, distro: str, suite: str, work: Path) -> tuple[str, ...]:
    """Return the options that make apt use the mirror, for this run only; http, since signatures protect."""
    if distro == "ubuntu":
        rows = [(mirror.ubuntu, f"{suite}{pocket}", "main universe") for pocket in ("", "-updates", "-security")]
    else:
        rows = [(mirror.debian, suite, "main"), (mirror.debian, f"{suite}-updates", "main")]
        rows.append((mirror.security, f"{suite}-security", "main"))
    path = work / "mirror.list"
    path.write_text("".join(f"deb {address} {pocket} {parts}\n" for address, pocket, parts in rows), encoding="ascii")
    return (f"-o Dir::Etc::SourceList={path}", "-o Dir::Etc::SourceParts=/dev/null")


def _measure(name: str, index: str, environ: Mapping[str, str], seconds: float, rates: dict[str, float]) -> None:
    begun, size = time.monotonic(), 0
    try:
        request = urllib.request.Request(index.rstrip("/") + "/" + PAGE, headers={"User-Agent": "hermitcrab"})  # noqa: S310
        with _opener(environ).open(request, timeout=seconds) as answer:
            while size < ENOUGH and time.monotonic() - begun < seconds:
                piece = answer.read(1 << 14)
                size += len(piece)
                if not piece:
                    break
    except (OSError, ValueError):  # of HTTP, too
        return
    if size:
        rates[name] = size / (time.monotonic() - begun)


def _opener(environ: Mapping[str, str]) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=environ.get("SSL_CERT_FILE") or None)
    proxies = {
        kind: environ.get(f"{kind}_proxy") or environ.get(f"{kind}_proxy".upper(), "") for kind in ("http", "https")
    }
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({kind: proxy for kind, proxy in proxies.items() if proxy}),
        urllib.request.HTTPSHandler(context=context),
    )


def _python(pip: Sequence[str]) -> Sequence[str]:
    """Return the words of a pip command up to its Python."""
    return list(pip)[: list(pip).index("-m")]
