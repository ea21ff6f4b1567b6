"""Tells somebody who is not at the box: by a webhook, or by apprise where it is installed. Never for long.

The address is a secret: it is in no message, no journal and no command line of ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, Callable, Mapping
from urllib.parse import urlsplit

from hermitcrab.box.power import http
from hermitcrab.errors import UserError

LIMIT = 20.0  # seconds for one message, whatever the other side does
TRIES = 3


def _wecom(text: str) -> Any:
    return {"msgtype": "text", "text": {"content": text}}


def _feishu(text: str) -> Any:
    return {"msg_type": "text", "content": {"text": text}}


# Who wants the text in a place of his own; all others find theirs: Slack "text", Discord "content".
BODIES: dict[str, Callable[[str], Any]] = {
    "oapi.dingtalk.com": _wecom,
    "qyapi.weixin.qq.com": _wecom,
    "open.feishu.cn": _feishu,
    "open.larksuite.com": _feishu,
}


def check(url: str) -> None:
    """Refuse an address that nothing here can send to; raises UserError, without the address."""
    parts = _split(url)
    if parts[0] in {"http", "https"} and parts[1]:
        return
    if not parts[0]:
        raise UserError("--notify needs an address: https://… of a webhook, or one of apprise's", code=2)
    if not shutil.which("apprise"):
        raise UserError(f"--notify {parts[0]}://… needs apprise: `pip install apprise`, or use a webhook", code=2)


def send(url: str, title: str, text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Send a message; returns what went wrong, or nothing. Never raises."""
    try:
        if _split(url)[0] in {"http", "https"}:
            return _post(url, title, text)
        return _apprise(url, title, text, environ)
    except Exception as error:  # noqa: BLE001 - a message must not end what it is about
        return type(error).__name__


def _post(url: str, title: str, text: str) -> str:
    whole = f"{title}\n{text}"
    shape = BODIES.get(_split(url)[1])
    body = shape(whole) if shape else {"title": title, "text": whole, "content": whole}
    answer = http.ask("POST", url, body=json.dumps(body), timeout=LIMIT, tries=TRIES, twice=False)
    return "" if answer.ok else answer.error or f"status {answer.status}"


def _apprise(url: str, title: str, text: str, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["apprise", "-t", title, "-b", text],
            env={**environ, "APPRISE_URLS": url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT,
            check=False,
        )
    except FileNotFoundError:
        return "apprise is not installed"
    except subprocess.TimeoutExpired:
        return "apprise did not answer in time"
    return f"apprise ended with status {done.returncode}" if done.returncode else ""


def _split(url: str) -> tuple[str, str]:
    """Return scheme and host of an address; both empty when it is none."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://\S", url):
        return "", ""
    try:
        parts = urlsplit(url)
        return parts.scheme.lower(), parts.hostname or ""
    except ValueError:
        return "", ""
