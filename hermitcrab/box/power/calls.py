"""Makes a call of the table: fills it with the platform's values, makes it, and says what came of it."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from hermitcrab.box.power import http
from hermitcrab.box.power.stops import Call

SHOWN = 200  # characters of an answer that are worth a line


class Result(NamedTuple):
    """Whether a call did what it should, and what came back."""

    ok: bool
    said: str
    data: Any = None


def fill(call: Call, values: Mapping[str, str]) -> Call:
    """Put the platform's values in; what has none stays as it is, and fails."""
    key = values.get("key", "")
    known = {**values, "basic": base64.b64encode(f"{key}:".encode()).decode()}

    def put(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), text)

    return call._replace(
        argv=tuple(map(put, call.argv)),
        url=put(call.url),
        body=put(call.body),
        auth=put(call.auth),
        says=put(call.says),
        names=put(call.names),
        hide=key,
    )


def make(call: Call, *, sleep: Callable[[float], None] = time.sleep) -> Result:
    """Make a call and judge its answer; never raises, and never shows the key."""
    done, text, error = _command(call) if call.argv else _request(call, sleep)
    data = _json(text)
    if call.says:
        done = call.says in text
    elif done and isinstance(data, dict) and data.get("success") is False:
        done, error = False, str(data.get("msg") or data.get("error") or "the platform says: no success")
    elif done and call.names and not _names(call.names, data, text):
        done, error = False, f"the answer is not about {call.names}"
    said = "done" if done else error or " ".join(text.split())[:SHOWN] or "no answer"
    return Result(done, _hidden(call, said), data)


def own(data: Any, identity: str) -> dict[str, Any]:
    """Return what an answer tells about the one with this id."""
    return next((found for found in _dicts(data) if str(found.get("id", "")) == identity), {})


def _command(call: Call) -> tuple[bool, str, str]:
    argv = [*(("sudo", "-n") if call.as_root and os.geteuid() else ()), *call.argv]
    try:
        # Its own session: what hangs is ended with all that it started.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        return False, "", f"cannot be run: {error.strerror}"
    try:
        output, _ = process.communicate(timeout=call.timeout)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        return False, "", f"did not end within {call.timeout:g} s"
    text = output[: http.MOST].decode("utf-8", "replace")
    first = " ".join(text.split())[:SHOWN]
    error_text = f"status {process.returncode}: {first}" if first else f"status {process.returncode}"
    return process.returncode == 0, text, "" if process.returncode == 0 else error_text


def _request(call: Call, sleep: Callable[[float], None]) -> tuple[bool, str, str]:
    headers = {"Authorization": call.auth} if call.auth else {}
    answer = http.ask(call.method, call.url, headers=headers, body=call.body, timeout=call.timeout / 2, sleep=sleep)
    told = " ".join(answer.text.split())[:SHOWN]
    return answer.ok, answer.text, f"{answer.error} {told}".strip() if not answer.ok else ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _names(identity: str, data: Any, text: str) -> bool:
    if data is not None:
        return bool(own(data, identity)) or any(found.get("InstanceId") == identity for found in _dicts(data))
    return re.search(rf"(?<![\w-]){re.escape(identity)}(?![\w-])", text) is not None


def _dicts(data: Any) -> Iterator[dict[str, Any]]:
    todo = [data]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def _hidden(call: Call, text: str) -> str:
    text = text.replace(call.hide, "***") if call.hide else text
    return "".join(character if character.isprintable() else "?" for character in text)
