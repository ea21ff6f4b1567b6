"""Notices that the machine will be taken back, as each cloud gives them: one row each.

Only the cloud that the machine's own firmware names is asked, and only if it answers at the start. Vast, RunPod,
AutoDL and Lambda give no notice: there short intervals between checkpoints are all the help there is.
"""

from __future__ import annotations

import json
import threading
import time
from calendar import timegm
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Callable, Mapping, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from hermitcrab.train.watch.finding import Finding

EVERY = 5.0
TIMEOUT = 1.0
TRIES = 12  # of the first contact, a minute: the training loads, and the network may still come up
MOST = 65536
VARIABLE = "CRAB_METADATA"  # "aws=http://127.0.0.1:8000": another server, for tests

Until = float  # seconds since the epoch, 0 when no time is told


class Cloud(NamedTuple):
    """How one cloud is asked; `read` turns its answer into the time of the end, or None."""

    vendor: str  # in the firmware's names
    name: str
    base: str
    hello: str  # answers on every machine of this cloud; what it says is who we are
    notice: str
    read: Callable[[str, str], Until | None]
    headers: Mapping[str, str] = {}
    session: str = ""  # the stem of the headers of a session token


def _aws(text: str, _: str) -> Until | None:
    found = json.loads(text)
    return _utc(found["time"]) if found["action"] in {"terminate", "stop", "hibernate"} else None


def _gcp(text: str, _: str) -> Until | None:
    return 0.0 if text.strip() == "TRUE" else None


def _azure(text: str, own: str) -> Until | None:
    """The list holds events of other machines of the same set, too."""
    for event in json.loads(text)["Events"]:
        ours = not own or own in event.get("Resources", [own])
        if event["EventType"] in {"Preempt", "Terminate"} and ours:
            before = event.get("NotBefore", "")
            return parsedate_to_datetime(before).timestamp() if before else 0.0
    return None


def _utc(text: str, _: str = "") -> Until:
    return float(timegm(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%SZ")))


def _tencent(text: str, _: str) -> Until:
    return float(timegm(time.strptime(text.strip(), "%Y-%m-%d %H:%M:%S"))) - 8 * 3600  # UTC+8


COMMON = "http://169.254.169.254"
LATEST = "/latest/meta-data"
CLOUDS = {
    "aws": Cloud(
        vendor="Amazon",
        name="AWS",
        base=COMMON,
        hello=f"{LATEST}/instance-id",
        notice=f"{LATEST}/spot/instance-action",
        read=_aws,
        session="X-aws-ec2-metadata-token",
    ),
    "gcp": Cloud(
        vendor="Google",
        name="Google Cloud",
        base=COMMON,
        hello="/computeMetadata/v1/instance/id",
        notice="/computeMetadata/v1/instance/preempted",
        read=_gcp,
        headers={"Metadata-Flavor": "Google"},
    ),
    "azure": Cloud(
        vendor="Microsoft Corporation",
        name="Azure",
        base=COMMON,
        hello="/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        notice="/metadata/scheduledevents?api-version=2020-07-01",
        read=_azure,
        headers={"Metadata": "true"},
    ),
    "aliyun": Cloud(
        vendor="Alibaba",
        name="Aliyun",
        base="http://100.100.100.200",
        hello=f"{LATEST}/instance-id",
        notice=f"{LATEST}/instance/spot/termination-time",
        read=_utc,
        session="X-aliyun-ecs-metadata-token",
    ),
    "tencent": Cloud(
        vendor="Tencent",
        name="Tencent Cloud",
        base="http://metadata.tencentyun.com",
        hello=f"{LATEST}/instance-id",
        notice=f"{LATEST}/spot/termination-time",
        read=_tencent,
    ),
}


class Poller:
    """Asks in a thread of the supervisor; `found` is what it was told."""

    def __init__(self, cloud: Cloud, base: str = "", *, every: float = EVERY, timeout: float = TIMEOUT) -> None:
        self.cloud, self.base = cloud, base or cloud.base
        self.found: Finding | None = None
        self.answers = False
        self._every, self._timeout = every, timeout
        self._own, self._headers = "", dict(cloud.headers)
        self._stop = threading.Event()
        # A proxy of the user's knows nothing of a machine's own addresses.
        self._opener = build_opener(ProxyHandler({}))
        self._thread = threading.Thread(target=self._run, name="preemption", daemon=True)

    def start(self) -> Poller:
        """Begin to ask."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Ask no more; nobody waits for an answer that is still to come."""
        self._stop.set()

    def hello(self) -> bool:
        """Say whether the metadata server is there."""
        self._renew()
        code, text = self._get(self.cloud.hello)
        self._own = text.strip() if code == 200 else ""
        self.answers = code == 200
        return self.answers

    def ask(self) -> Finding | None:
        """Ask once."""
        code, text = self._get(self.cloud.notice)
        if code == 401:
            self._renew()
            code, text = self._get(self.cloud.notice)
        if code != 200:
            return None
        try:
            until = self.cloud.read(text, self._own)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # a login page of some network is no notice
        return None if until is None else notice(self.cloud.name, until)

    def _run(self) -> None:
        for _ in range(TRIES):
            if self.hello() or self._stop.wait(self._every):
                break
        while self.answers and not self._stop.is_set():
            self.found = self.ask()
            if self.found or self._stop.wait(self._every):
                return

    def _renew(self) -> None:
        stem = self.cloud.session
        if stem:
            headers = {**self.cloud.headers, f"{stem}-ttl-seconds": "21600"}
            code, text = self._get("/latest/api/token", method="PUT", headers=headers)
            # Without one the old way is tried: some machines still allow it.
            self._headers = {**self.cloud.headers, **({stem: text.strip()} if code == 200 else {})}

    def _get(self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        request = Request(  # noqa: S310 - http, from the table
            self.base + path, method=method, headers=dict(self._headers if headers is None else headers)
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return int(answer.status), answer.read(MOST).decode("utf-8", "replace")
        except HTTPError as error:
            error.close()
            return error.code, ""
        except (OSError, ValueError):  # also what http.client raises on an answer that is none
            return 0, ""
        except Exception:  # noqa: BLE001 - http.client has its own errors; no answer may end the thread
            return 0, ""


def notice(name: str, until: Until) -> Finding:
    """Say that the machine is taken back."""
    when = time.strftime("at %H:%M:%S UTC", time.gmtime(until)) if until else "within 30 s"
    left = f", in {until - time.time():.0f} s" if until else ""
    text = f"{name} takes this machine back {when}{left}"
    advice = ("start it again on another machine: it goes on from the newest checkpoint, if the disk is there",)
    return Finding("preempted", fatal=True, text=text, advice=advice, until=until or time.time() + 30)


def poller(environ: Mapping[str, str], root: Path, *, every: float = EVERY) -> Poller | None:
    """Return the poller for this machine, not yet started; None where no cloud is known to give notice."""
    word, _, base = environ.get(VARIABLE, "").partition("=")
    if word in CLOUDS and base:
        return Poller(CLOUDS[word], base, every=every)
    names = " ".join(_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "bios_vendor", "product_name"))
    for cloud in CLOUDS.values():
        if cloud.vendor in names:
            return Poller(cloud, every=every)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
