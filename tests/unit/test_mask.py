"""No token, password or credential gets into what the user, a log or an issue report shows."""

from __future__ import annotations

import time

import pytest

from hermitcrab.box.mask import holds_token, mask, mask_words

BODY = "Zx9" + "aB3dE5fG7" * 4
SECRETS = ("hf_", "ghp_", "gho_", "github_pat_", "glpat-", "sk-", "sk-proj-", "dckr_pat_", "rpa_")

SAID = (
    "https://user:{}@index.example/simple",
    "Looking in indexes: https://{}@index.example/simple, https://other.example",
    "https://user:pa/{}@host.example/x",
    "https://user:p@{}@host.example/x",
    "curl -u user:{}@registry.example",
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    '"Authorization": "token {}"',
    "X-Registry-Auth: {}",
    "sent Bearer {} to it",
    "PASSWORD={}",
    "export DB_PASSWORD='{} with spaces'",
    'password: "a\\"{}"',
    "MY_API_KEY={}",
    "WANDB_API_KEY: {}",
    "client_secret={}",
    '{{"auths":{{"r.example":{{"auth":"{}"}}}}}}',
    '{{"identitytoken":"{}"}}',
    "Step 3/4 : ENV ROOT_PASSWORD {}",
    "docker login -u me -p {} r.example",
    "docker login --password {}",
    "RUN echo 'root:{}' | chpasswd",
)


@pytest.mark.parametrize("said", SAID)
def test_planted_secret_is_masked_where_its_place_gives_it_away(said: str) -> None:
    """The secret goes, a mark stays, and masking twice changes nothing more."""
    text = said.format(BODY)
    hidden = mask(text)
    assert BODY in text and "***" in hidden
    assert BODY not in hidden and "with spaces" not in hidden
    assert mask(hidden).count("***") == hidden.count("***")


@pytest.mark.parametrize("prefix", [*SECRETS, "AKIA"])
def test_planted_token_is_masked_wherever_it_stands(prefix: str) -> None:
    """A token with a known shape is found without any name beside it."""
    token = prefix + (BODY.upper() if prefix == "AKIA" else BODY)
    assert mask(f"bad answer for {token}, stop") == "bad answer for ***, stop"
    assert holds_token(f"x={token}")


@pytest.mark.parametrize(
    "said",
    [
        "debian:bookworm-slim@sha256:" + "ab" * 32,
        "registry.example:5000/team/image:1@sha256:" + "ab" * 32,
        "https://registry.example:5000/image@sha256:" + "ab" * 32,
        "git+ssh://git@host.example/lib.git@v1.2#egg=lib",
        "git+https://host.example/lib.git@v1.2",
        "failed to fetch anonymous token: Get https://auth.example/token",
        "TOKENIZERS_PARALLELISM false",
        "--secret id=ca,src=/etc/ca.pem",
        "docker login --password-stdin",
        "12:30:01 building torch==2.4.1+cu121",
        "no basic auth credentials",
    ],
)
def test_what_is_no_secret_stays_readable(said: str) -> None:
    """Digests, remotes and plain words are left alone."""
    assert mask(said) == said


def test_a_variable_in_the_place_of_a_secret_is_no_token() -> None:
    """`user:$PASSWORD@host` names a secret without holding it; the literal one is found."""
    assert not holds_token("pip install -i https://me:$PIP_PASSWORD@index.example/simple")
    assert holds_token("pip install -i https://me:hunter2@index.example/simple")


def test_masking_is_fast_on_hostile_text() -> None:
    """Long repetitions of what starts a pattern stay linear."""
    start = time.monotonic()
    for piece in ("://", "a:", "a@", "login ", "token", "echo ", "eyJ", "password_", "'auth':"):
        mask(piece * 20_000)
    assert time.monotonic() - start < 5


COMMANDS = {
    ("train.py", "--lr", "0.1", "--out=x"): ["train.py", "--lr", "0.1", "--out=x"],
    ("--wandb-key", "abc", "x"): ["--wandb-key", "***", "x"],
    ("--api_token=abc",): ["--api_token=***"],
    ("--hf-token", "--fp16"): ["--hf-token", "--fp16"],
    ("MY_SECRET=abc", "logger.api_key=abc"): ["MY_SECRET=***", "logger.api_key=***"],
    ("https://me:pass@example.org/x",): ["https://***@example.org/x"],
    ("--note", "hf_" + "a" * 20): ["--note", "***"],
    ("--webhook-url=https://example.org/T0/B0",): ["--webhook-url=***"],
}


@pytest.mark.parametrize("given", COMMANDS, ids=lambda words: words[0])
def test_a_command_is_safe_to_show(given: tuple[str, ...]) -> None:
    """As journals and checkpoints record it."""
    assert mask_words(given) == COMMANDS[given]
