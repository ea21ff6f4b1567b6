"""A small JSON client: bounded in time, patient with 429 and 5xx, and it hands its key to nobody else."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Mapping, NamedTuple

MOST = 1 << 20  # bytes of an answer that are read
LONGEST_PAUSE = 30.0
PASSING = frozenset((429, 500, 502, 503, 504))
LATE = "no answer in time"


class Answer(NamedTuple):
    """What came back; status 0 is no answer at all."""

    status: int
    text: str
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the server did what was asked."""
        return 200 <= self.status < 300


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key is for this server alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: str = "",
    timeout: float = 10.0,
    tries: int = 5,
    pause: float = 1.0,
    proxies: bool = True,
    twice: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Ask until there is an answer that stays the same; the last one is returned.

    Without ``twice`` what was asked once and not answered in time is not asked again: it may have been heard.
    """
    handlers: list[Any] = [_Stay(), urllib.request.HTTPSHandler(context=_tls())]
    opener = urllib.request.build_opener(*handlers, *([] if proxies else [urllib.request.ProxyHandler({})]))
    answer, wait = Answer(0, "", "never asked"), 0.0
    for number in range(tries):
        if number:
            sleep(max(min(wait, LONGEST_PAUSE), pause * 2 ** (number - 1)))
        answer, wait = _once(opener, _request(method, url, headers or {}, body), timeout)
        final = answer.status or "certificate" in answer.error or (answer.error == LATE and not twice)
        if final and answer.status not in PASSING:
            break
    return answer


def _request(method: str, url: str, headers: Mapping[str, str], body: str) -> urllib.request.Request:
    request = urllib.request.Request(url, method=method, data=body.encode() if body else None)  # noqa: S310
    for name, value in {"Accept": "application/json", "User-Agent": "hermitcrab", **headers}.items():
        # Unredirected: urllib would else send it on to wherever a proxy's answer points.
        request.add_unredirected_header(name, value)
    if body:
        request.add_unredirected_header("Content-Type", "application/json")
    return request


def _once(opener: Any, request: urllib.request.Request, timeout: float) -> tuple[Answer, float]:
    """Return the answer, and how long the server asks us to wait."""
    try:
        with opener.open(request, timeout=timeout) as response:
            return Answer(response.status, _read(response, timeout)), 0.0
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _read(error, timeout), f"{error.code} {error.reason}"), _asked(error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(0, "", _because(error)), 0.0


def _read(response: Any, timeout: float) -> str:
    """Read a body; one that drips is cut, and so is one without end."""
    data, end = b"", time.monotonic() + timeout
    try:
        while len(data) < MOST and time.monotonic() < end:
            part = response.read1(65536) if hasattr(response, "read1") else response.read(65536)
            if not part:
                break
            data += part
    except (OSError, http.client.HTTPException):
        pass
    return data.decode("utf-8", "replace")


def _asked(error: urllib.error.HTTPError) -> float:
    text = error.headers.get("Retry-After", "") if error.headers else ""
    return float(text) if text.isdigit() else 0.0


def _because(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "the server's certificate cannot be checked: install ca-certificates"
    if isinstance(reason, (socket.timeout, TimeoutError)):
        return LATE
    return (reason.strerror if isinstance(reason, OSError) else "") or type(reason).__name__


_CONTEXTS: list[ssl.SSLContext] = []


def _tls() -> ssl.SSLContext:
    """Return one context for all, made at the first call: afterwards no file is needed any more."""
    if not _CONTEXTS:
        _CONTEXTS.append(ssl.create_default_context())
    return _CONTEXTS[0]


def prepare() -> None:
    """Load now what is else loaded at the first call, since by then it may be gone from the disk."""
    _tls()
    "a".encode("idna")
    urllib.request.build_opener()
