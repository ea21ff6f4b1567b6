"""Secrets of many kinds, as their own programs would write them into a box; each can be told from all others."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

# Joined here, so that no scanner takes this file for a leak.
DASHES: Final = "-----"
BODY: Final = "b3BlbnNzaC1rZXkt" * 4 + "{0}"
KEY: Final = f"{DASHES}BEGIN OPENSSH PRIVATE KEY{DASHES}\n{BODY}\n{DASHES}END OPENSSH PRIVATE KEY{DASHES}\n"
HF: Final = "hf_" + "{0}"
GITHUB: Final = "ghp_" + "{0}"
REMOTE: Final = f'[remote "o"]\n\turl = https://{GITHUB}@git.example/me\n'
DOCKER: Final = '{"auths": {"reg.example": {"auth": "{0}"}}, "credsStore": "pass"}'
INDEX: Final = "[global]\nindex-url = https://me:{0}@index.example/simple\n"


class Plant(NamedTuple):
    """A file with a secret at {0}; the row that must find it, and what must outlive it."""

    row: str
    path: str
    text: str = "{0}\n"
    left: str = ""

    @property
    def secret(self) -> str:
        """What must be nowhere afterwards."""
        return hashlib.sha256(f"{self.row} {self.path}".encode()).hexdigest()[:32]

    @property
    def content(self) -> str:
        """The file."""
        return self.text.replace("{0}", self.secret)


# Those that `crab seal --yes` takes by itself.
TAKEN: Final = (
    Plant("run-state", "/var/lib/hermitcrab/deadline.json", '{"at": 1, "token": "{0}"}'),
    Plant("machine-id", "/etc/machine-id"),
    Plant("dbus-machine-id", "/var/lib/dbus/machine-id"),
    Plant("ssh-keys", "/root/.ssh/id_ed25519", KEY),
    Plant("ssh-keys", "/home/me/.ssh/keys/work", KEY),
    Plant("gpg-keys", "/root/.gnupg/private-keys-v1.d/A.key"),
    Plant("age-keys", "/root/.config/sops/age/keys.txt", "AGE-SECRET-KEY-1{0}\n"),
    Plant("vpn-keys", "/etc/wireguard/wg0.conf", "[Interface]\nPrivateKey = {0}\n"),
    Plant("huggingface-token", "/root/.cache/huggingface/token", HF),
    Plant("modelscope-token", "/root/.modelscope/credentials/session"),
    Plant("netrc", "/root/.netrc", "machine api.wandb.ai\n  login user\n  password {0}\n"),
    Plant("wandb", "/root/.config/wandb/settings", "[default]\napi_key = {0}\n"),
    Plant("git-credentials", "/root/.git-credentials", f"https://me:{GITHUB}@git.example\n"),
    Plant(
        "git-remotes",
        "/root/code/.git/config",
        f'[remote "o"]\n\turl = https://{GITHUB}@git.example/me\n',
        "git.example/me",
    ),
    Plant("forges", "/root/.config/gh/hosts.yml", f"oauth_token: {GITHUB}\n"),
    Plant("assistants", "/root/.codex/auth.json", '{"key": "{0}"}'),
    Plant("rclone", "/root/.config/rclone/rclone.conf", "[s3]\nsecret_access_key = {0}\n"),
    Plant("aws", "/root/.aws/credentials", "[default]\naws_secret_access_key = {0}\n"),
    Plant("gcloud", "/root/.config/gcloud/application_default_credentials.json", '{"refresh_token": "{0}"}'),
    Plant("azure", "/root/.azure/msal_token_cache.json", '{"secret": "{0}"}'),
    Plant("aliyun", "/root/.ossutilconfig", "accessKeySecret={0}\n"),
    Plant("tencent", "/root/.tccli/default.credential", '{"secretKey": "{0}"}'),
    Plant(
        "docker",
        "/root/.docker/config.json",
        DOCKER,
        "credsStore",
    ),
    Plant("kaggle", "/root/.kaggle/kaggle.json", '{"username": "me", "key": "{0}"}'),
    Plant("conda-token", "/root/.continuum/anaconda-client/tokens/x.token"),
    Plant(
        "package-logins",
        "/etc/pip.conf",
        INDEX,
        "index.example",
    ),
    Plant("publishing", "/root/.pypirc", "[registry]\npassword = {0}\n"),
    Plant("renting", "/root/.config/vastai/vast_api_key"),
    Plant("tunnels", "/root/.config/ngrok/ngrok.yml", "authtoken: {0}\n"),
    Plant("jupyter-secrets", "/root/.local/share/jupyter/jupyter_cookie_secret"),
    Plant("jupyter", "/root/.local/share/jupyter/runtime/jpserver-1.json", '{"token": "{0}"}'),
    Plant("etc-environment", "/etc/environment", 'GPU_COUNT=1\nCONTAINER_API_KEY="{0}"\n', "GPU_COUNT=1"),
    Plant("env-files", "/root/code/.env", "OPENAI_API_KEY={0}\n"),
    Plant("shell-history", "/root/.bash_history", f"export HF_TOKEN={HF}\n"),
    Plant("tool-history", "/root/.python_history", "login('{0}')\n"),
    Plant("known-hosts", "/root/.ssh/known_hosts", "cluster.example ssh-ed25519 {0}\n"),
    Plant("huggingface", "/root/.cache/huggingface/hub/models--me--private/blobs/{0}"),
    Plant("pip", "/root/.cache/pip/http-v2/a"),
    Plant("apt-lists", "/var/lib/apt/lists/index.example_Packages"),
    Plant("logs", "/var/log/auth.log", "password {0} accepted\n"),
    Plant("trash", "/root/.local/share/Trash/files/old.env"),
    Plant("temp", "/tmp/login/{0}"),
)
# Those that are asked about, because they may be the user's work: --include takes them.
ASKED: Final = (
    Plant("shell-settings", "/root/.bashrc", f"alias ll='ls -l'\nexport HF_TOKEN={HF}\n", "alias ll="),
    Plant("key-files", "/root/code/deploy.pem", KEY),
    Plant("checkpoints", "/root/code/out/last.pt"),
)
# Told by name and never touched: its owner edits it.
NAMED: Final = Plant("token-in-file", "/root/code/login.py", f"login('{HF}')\n")
# What a saved image shall still have.
WORK: Final = {
    "/root/code/train.py": "import torch\n",
    "/root/code/data/train.csv": "1,2\n",
    "/root/.ssh/config": "Host *\n",
    "/etc/hermitcrab/hooks.d/10-mine": "#!/bin/sh\ntouch /run/hooked\n",
}
