"""Claims: a message is sent as its receiver wants it, in bounded time, and its address stays a secret."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.errors import UserError
from hermitcrab.train.gate import notify
from tests.rented import put, served

SECRET = "T00/B00/XXXXsecretXXXX"


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers are on this machine."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def send(url_host: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Send a message to a server that some host's name is given to; return the body that came."""
    with served("runpod") as api:
        monkeypatch.setitem(notify.BODIES, "127.0.0.1", notify.BODIES.get(url_host))
        assert notify.send(f"{api.url}/{SECRET}", "hermitcrab: exp", "is done") == ""
        method, path, body = api.calls[0].split(" ", 2)
        assert (method, path) == ("POST", f"/{SECRET}")
        return json.loads(body)


def test_slack_and_discord_find_their_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """One calls it text, the other content."""
    body = send("hooks.slack.com", monkeypatch)
    assert body["text"] == body["content"] == "hermitcrab: exp\nis done"


@pytest.mark.parametrize("host", ["oapi.dingtalk.com", "qyapi.weixin.qq.com"])
def test_dingtalk_and_wecom_get_theirs(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They refuse what has another form."""
    assert send(host, monkeypatch) == {"msgtype": "text", "text": {"content": "hermitcrab: exp\nis done"}}


def test_feishu_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again another form."""
    assert send("open.feishu.cn", monkeypatch) == {"msg_type": "text", "content": {"text": "hermitcrab: exp\nis done"}}


def test_a_failure_is_told_without_the_address() -> None:
    """It never raises, whatever the other side does."""
    with served("runpod") as api:
        api.statuses = [403]
        said = notify.send(f"{api.url}/{SECRET}", "t", "x")
        assert said.startswith("403")
        assert SECRET not in said
    assert notify.send("http://[::1", "t", "x")
    assert notify.send("nonsense", "t", "x")


def test_a_receiver_that_is_slow_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a busy machine is: it has heard, though its answer came too late."""
    monkeypatch.setattr(notify, "LIMIT", 0.3)
    heard = threading.Event()
    with served("runpod") as api:
        plain = api.answer

        def late(method: str, path: str, body: str) -> tuple[int, Any]:
            found = plain(method, path, body)
            heard.wait(30)
            return found

        monkeypatch.setattr(api, "answer", late)
        assert notify.send(f"{api.url}/{SECRET}", "t", "x") == "no answer in time"
        heard.set()
        while not api.calls:
            time.sleep(0.01)
        assert len(api.calls) == 1


def test_a_receiver_that_is_busy_is_told_again() -> None:
    """It has said that it did not listen."""
    with served("runpod") as api:
        api.statuses = [503]
        assert notify.send(f"{api.url}/{SECRET}", "t", "x") == ""
        assert len(api.calls) == 2


def test_apprise_gets_the_address_where_nobody_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its variable, not on its command line."""
    put(tmp_path, "apprise", f'#!/bin/sh\necho "$*|$APPRISE_URLS" > "{tmp_path}/call"\n', 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert notify.send("tgram://token/chat", "title", "text") == ""
    assert (tmp_path / "call").read_text() == "-t title -b text|tgram://token/chat\n"


def test_apprise_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message must not keep the box up."""
    put(tmp_path, "apprise", "#!/bin/sh\nexec sleep 30\n", 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(notify, "LIMIT", 0.5)
    begun = time.monotonic()
    assert notify.send("tgram://token/chat", "title", "text") == "apprise did not answer in time"
    assert time.monotonic() - begun < 20


def test_what_cannot_be_sent_to_is_refused_before_step_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the address is not repeated."""
    monkeypatch.setenv("PATH", "/nonexistent")
    notify.check("https://hooks.example/x")
    with pytest.raises(UserError, match="needs an address"):
        notify.check(SECRET)
    with pytest.raises(UserError, match="needs apprise") as refused:
        notify.check(f"tgram://{SECRET}")
    assert SECRET not in str(refused.value)
