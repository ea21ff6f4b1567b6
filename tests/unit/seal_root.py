"""A root filesystem with one or more of everything that `crab seal` looks for, and things it must leave."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hermitcrab.box import seal
from hermitcrab.box.seal.rows import MB

# Joined here, so that no scanner takes this file for a leak.
HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"
GITHUB = "ghp_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
WANDB = "0123456789abcdef" * 2 + "01234567"
DASHES = "-----"
PRIVATE = (
    f"{DASHES}BEGIN OPENSSH PRIVATE KEY{DASHES}\n{'b3BlbnNzaC1rZXkt' * 8}\n{DASHES}END OPENSSH PRIVATE KEY{DASHES}\n"
)
CORE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00" + bytes(40)
VARIABLES = {"HF_HOME": "/opt/hf", "UV_CACHE_DIR": "/opt/uv-cache", "NETRC": "/opt/my-netrc"}


class Plant(NamedTuple):
    """A file that belongs to a row; what is left of it when it is edited."""

    row: str
    path: str
    text: str | bytes | int = "x"  # a number is a size
    left: str | None = None  # None: nothing, or an empty file


DOCKER = {"auths": {"reg.example": {"auth": "dXNlcjpwYXNz"}}, "credsStore": "pass", "proxies": {}}
PLANTS = (
    Plant("run-state", "/run/hermitcrab/run-7/state.json"),
    Plant("run-state", "/run/hermitcrab-deadline"),
    Plant("run-state", "/var/lib/hermitcrab/deadline.json", '{"at": 1}'),
    Plant("run-state", "/root/.local/state/hermitcrab/armed/0123456789abcdef.json", '{"pid": 1, "boot": "x"}'),
    Plant("run-state", "/home/me/.local/state/hermitcrab/poweroff", "hermitcrab: powered off\n"),
    Plant("run-state", "/workspace/.hermitcrab-poweroff", "hermitcrab: powered off\n"),
    Plant("machine-id", "/etc/machine-id", "0123456789abcdef0123456789abcdef\n", ""),
    Plant("dbus-machine-id", "/var/lib/dbus/machine-id", "0123456789abcdef0123456789abcdef\n"),
    Plant("random-seed", "/var/lib/systemd/random-seed"),
    Plant("cloud-init", "/var/lib/cloud/instances/i-1/user-data.txt", "password: p\n"),
    Plant("leases", "/var/lib/dhcp/dhclient.eth0.leases"),
    Plant("vpn-state", "/var/lib/tailscale/tailscaled.state"),
    Plant("host-keys", "/etc/ssh/ssh_host_ed25519_key", PRIVATE),
    Plant("host-keys", "/etc/ssh/ssh_host_ed25519_key.pub"),
    Plant("authorized-keys", "/root/.ssh/authorized_keys", "ssh-ed25519 AAAA me\n"),
    Plant("ssh-keys", "/root/.ssh/id_ed25519", PRIVATE),
    Plant("ssh-keys", "/home/me/.ssh/keys/work", PRIVATE),
    Plant("gpg-keys", "/root/.gnupg/private-keys-v1.d/A.key"),
    Plant("age-keys", "/root/.config/sops/age/keys.txt", "AGE-SECRET-KEY-1QQQQ\n"),
    Plant("vpn-keys", "/etc/wireguard/wg0.conf"),
    Plant("huggingface-token", "/root/.cache/huggingface/token", HF),
    Plant("huggingface-token", "/home/me/.huggingface/token", HF),
    Plant("huggingface-token", "/opt/hf/token", HF),
    Plant("modelscope-token", "/root/.modelscope/credentials/session"),
    Plant("netrc", "/root/.netrc", f"machine api.wandb.ai\n  login user\n  password {WANDB}\n"),
    Plant("netrc", "/opt/my-netrc", "machine x password y\n"),
    Plant("wandb", "/root/.config/wandb/settings", f"[default]\napi_key = {WANDB}\n"),
    Plant("trackers", "/root/.comet.config", "[comet]\napi_key = abcdefgh1\n"),
    Plant("git-credentials", "/root/.git-credentials", f"https://me:{GITHUB}@git.example\n"),
    Plant("git-credentials", "/home/me/.config/git/credentials", f"https://me:{GITHUB}@git.example\n"),
    Plant(
        "git-remotes",
        "/root/code/.git/config",
        f'[remote "origin"]\n\turl = https://{GITHUB}@git.example/me/code\n\tfetch = +refs/*\n',
        '[remote "origin"]\n\turl = https://git.example/me/code\n\tfetch = +refs/*\n',
    ),
    Plant("forges", "/root/.config/gh/hosts.yml", f"oauth_token: {GITHUB}\n"),
    Plant("assistants", "/root/.codex/auth.json", "{}"),
    Plant("rclone", "/root/.config/rclone/rclone.conf", "[s3]\nsecret_access_key = x\n"),
    Plant("aws", "/root/.aws/credentials", "[default]\naws_secret_access_key = x\n"),
    Plant("aws-config", "/root/.aws/config", "[default]\nregion = eu\naws_secret_access_key = x\n"),
    Plant("gcloud", "/root/.config/gcloud/credentials.db"),
    Plant("gcloud", "/root/.config/gcloud/application_default_credentials.json", "{}"),
    Plant("azure", "/root/.azure/msal_token_cache.json", "{}"),
    Plant("aliyun", "/root/.aliyun/config.json", "{}"),
    Plant("aliyun", "/root/.ossutilconfig", "accessKeySecret=x\n"),
    Plant("tencent", "/root/.tccli/default.credential", "{}"),
    Plant("huawei", "/root/.obsutilconfig", "sk=x\n"),
    Plant("net-disks", "/root/.bypy/bypy.json", "{}"),
    Plant(
        "docker",
        "/root/.docker/config.json",
        json.dumps(DOCKER),
        json.dumps({key: DOCKER[key] for key in ("credsStore", "proxies")}, indent="\t") + "\n",
    ),
    Plant("containers", "/root/.config/containers/auth.json", "{}"),
    Plant("kaggle", "/root/.kaggle/kaggle.json", '{"username": "me", "key": "x"}'),
    Plant("conda-token", "/root/.continuum/anaconda-client/tokens/x.token"),
    Plant(
        "package-logins",
        "/root/.condarc",
        "channels:\n  - https://conda.example/t/ab-12345678-9abc/main\nssl_verify: true\n",
        "channels:\n  - https://conda.example/main\nssl_verify: true\n",
    ),
    Plant(
        "package-logins",
        "/root/.config/pip/pip.conf",
        "[global]\nindex-url = https://me:pass@index.example/simple\ntimeout = 9\n",
        "[global]\nindex-url = https://index.example/simple\ntimeout = 9\n",
    ),
    Plant("package-logins", "/root/.npmrc", "color=false\n//r.example/:_authToken=abc\n", "color=false\n"),
    Plant("publishing", "/root/.pypirc", "[pypi]\npassword = x\n"),
    Plant("renting", "/root/.config/vastai/vast_api_key"),
    Plant("renting", "/etc/rp_environment", 'export RUNPOD_API_KEY="x"\n'),
    Plant("tunnels", "/root/.cloudflared/cert.pem"),
    Plant("jupyter-secrets", "/root/.local/share/jupyter/jupyter_cookie_secret"),
    Plant("box-environment", "/root/.config/hermitcrab/session.sh", "export RUNPOD_POD_ID=x\n"),
    Plant(
        "etc-environment",
        "/etc/environment",
        'PATH="/usr/bin"\nCONTAINER_API_KEY="abc"\nGPU_COUNT=1\n',
        'PATH="/usr/bin"\nCONTAINER_API_KEY=\nGPU_COUNT=1\n',
    ),
    Plant("env-files", "/root/code/.env", "OPENAI_API_KEY=abcdef\nDEBUG=1\n"),
    Plant("env-files", "/srv/app/prod.env", "DATABASE=postgres://u:secret@db.example/x\n"),
    Plant(
        "shell-settings",
        "/root/.bashrc",
        f"alias ll='ls -l'\nexport HF_TOKEN={HF}\n[ -z \"$PS1\" ] && return\n",
        "alias ll='ls -l'\nexport HF_TOKEN=\n[ -z \"$PS1\" ] && return\n",
    ),
    Plant("key-files", "/root/code/deploy.pem", PRIVATE),
    Plant("token-in-file", "/root/code/login.py", f"login('{HF}')\n", f"login('{HF}')\n"),
    Plant("shell-history", "/root/.bash_history", f"export HF_TOKEN={HF}\n"),
    Plant("shell-history", "/home/me/.zsh_history"),
    Plant("tool-history", "/root/.python_history"),
    Plant("tool-history", "/root/.ipython/profile_default/history.sqlite"),
    Plant("known-hosts", "/root/.ssh/known_hosts"),
    Plant("pip", "/root/.cache/pip/http-v2/a/b"),
    Plant("uv", "/root/.cache/uv/archive-v0/a/b.py"),
    Plant("uv", "/root/.cache/uv/environments-v2/x/pyvenv.cfg"),
    Plant("uv", "/opt/uv-cache/wheels-v5/x.whl"),
    Plant("conda", "/root/miniconda3/pkgs/torch.conda"),
    Plant("huggingface", "/root/.cache/huggingface/hub/models--a/blobs/x"),
    Plant("huggingface", "/opt/hf/hub/models--a/blobs/x"),
    Plant("modelscope", "/root/.cache/modelscope/hub/m"),
    Plant("torch", "/root/.cache/torch/hub/checkpoints/resnet.pth"),
    Plant("compiled", "/root/.triton/cache/x/y.cubin"),
    Plant("npm", "/root/.npm/_cacache/x"),
    Plant("rust-go", "/root/.cargo/registry/cache/x"),
    Plant("other-caches", "/root/.cache/matplotlib/fontlist.json"),
    Plant("trash", "/root/.local/share/Trash/files/old.pt"),
    Plant("apt-lists", "/var/lib/apt/lists/example_Packages"),
    Plant("package-caches", "/var/cache/apt/archives/tmux.deb"),
    Plant("ldconfig", "/var/cache/ldconfig/aux-cache"),
    Plant("journal", "/var/log/journal/0123/system.journal"),
    Plant("old-logs", "/var/log/syslog.1"),
    Plant("old-logs", "/var/log/apt/term.log.2.gz"),
    Plant("logs", "/var/log/auth.log", "sshd: accepted\n", ""),
    Plant("logs", "/var/log/apt/history.log", "installed\n", ""),
    Plant("crashes", "/var/crash/python.crash"),
    Plant("core-files", "/root/code/core.4711", CORE),
    Plant("jupyter", "/root/.local/share/jupyter/runtime/jpserver-1.json", '{"token": "x"}'),
    Plant("temp", "/tmp/build/x.o"),
    Plant("temp", "/var/tmp/y"),
    Plant("editor-servers", "/root/.vscode-server/bin/x"),
    Plant("tensorboard", "/root/tf-logs/events.1"),
    Plant("run-logs", "/root/code/wandb/run-1/files/x"),
    Plant("checkpoints", "/root/code/out/last.pt"),
    Plant("checkpoints", "/root/code/model.safetensors"),
    Plant("data-sets", "/root/code/data/train.bin", 101 * MB),
    Plant("big-files", "/root/code/dump.tar", 101 * MB),
    Plant("environments", "/tmp/work/.venv/pyvenv.cfg"),
)
# What must be there afterwards, byte for byte, whatever is included.
INNOCENT = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/bash\n",
    "/etc/hermitcrab/manifest.json": "{}",
    "/etc/ssh/sshd_config": "PasswordAuthentication no\n",
    "/etc/ssh/sshd_config.d/50-box.conf": "PermitRootLogin no\n",
    "/opt/venv/pyvenv.cfg": "home = /usr/bin\n",
    "/opt/venv/lib/python3.11/site-packages/torch/lib/big.pt": "torch's own",
    "/opt/venv/lib/python3.11/site-packages/torch/test.pem": PRIVATE,
    "/usr/lib/python3.11/test/keycert.pem": PRIVATE,
    "/root/miniconda3/conda-meta/history": "",
    "/root/miniconda3/bin/python": "python",
    "/root/.ssh/id_ed25519.pub": "ssh-ed25519 AAAA me\n",
    "/root/.ssh/config": "Host *\n",
    "/root/.gitconfig": '[user]\n\tname = me\n[url "ssh://me@git.example/"]\n\tinsteadOf = x\n',
    "/root/.profile": "export PATH=/opt/venv/bin:$PATH\nexport TOKENIZERS_PARALLELISM=1\nexport HF_TOKEN=$(cat x)\n",
    "/home/me/.config/pip/pip.conf": "[global]\nindex-url = https://index.example/simple\n",
    "/root/code/.env.example": "OPENAI_API_KEY=your-key-here\nHF_TOKEN=\n",
    "/root/code/train.py": "import torch\n",
    "/root/code/cert.pem": f"{DASHES}BEGIN CERTIFICATE{DASHES}\nAAAA\n{DASHES}END CERTIFICATE{DASHES}\n",
    "/root/code/core": "a file of this name\n",
    "/root/code/data.csv": "1,2\n",
    "/root/autodl-tmp/last.pt": "on the data disk",
    "/root/autodl-tmp/.env": "HF_TOKEN=x1234567\n",
    "/root/autodl-tmp/.cache/pip/x": "on the data disk",
    "/var/lib/dpkg/status": "Package: tmux\n",
}
MOUNTS = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 9:0 / /root/autodl-tmp rw - xfs /dev/md0 rw,prjquota\n"


def put(root: Path, path: str, text: str | bytes | int = "x") -> Path:
    """Write a file, its folders too."""
    target = Path(f"{root}{path}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, int):
        with target.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, text)
    else:
        target.write_bytes(text.encode() if isinstance(text, str) else text)
    return target


def make_root(folder: Path) -> Path:
    """Make the filesystem without anything to clean."""
    root = folder / "root"
    for path, text in INNOCENT.items():
        put(root, path, text)
    put(root, "/proc/self/mountinfo", MOUNTS)
    for empty in ("/tmp", "/var/tmp", "/var/log", "/run", "/dev"):
        Path(f"{root}{empty}").mkdir(parents=True, exist_ok=True)
    return root


def tree(root: Path) -> dict[str, tuple[int, str]]:
    """Tell of each path its kind and mode, and what is in it."""
    told = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            text = os.readlink(path) if stat.S_ISLNK(mode) else b""
            if stat.S_ISREG(mode) and os.path.getsize(path) < MB:
                with open(path, "rb") as file:
                    text = hashlib.sha256(file.read()).digest()
            told[os.fsdecode(path)[len(str(root)) :]] = (mode, text.hex())
    return told


def call(capsys: pytest.CaptureFixture[str], root: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run `crab seal` with --json on a root."""
    capsys.readouterr()
    status = seal.main([*options, "--json"], root, VARIABLES)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, told


def found(told: dict[str, Any], decision: str = "") -> set[tuple[str, str]]:
    """Return row and path of what was found."""
    return {(item["row"], item["path"]) for item in told["items"] if decision in {"", item["decision"]}}
