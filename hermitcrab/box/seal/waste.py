"""The table of what is waste in a saved image; what is secret stands in secrets.py.

Where two rows fit one path, the first one has it: the particular before the general.
"""

from __future__ import annotations

from hermitcrab.box.seal.edits import holds_id, is_core
from hermitcrab.box.seal.rows import MB, Row
from hermitcrab.box.seal.secrets import SECRET_ROWS

_LOG_ENDS = ("*.gz", "*.xz", "*.zst", "*.bz2", "*.old", "*.[0-9]", "*.[0-9][0-9]", "*-20[0-9][0-9][0-9][0-9][0-9][0-9]")
_CONDAS = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda", "/opt/miniconda3", "/opt/miniforge3")

STATE_ROWS = (
    Row(
        "run-state",
        "state",
        "hermitcrab's runs and armed deadlines: nothing may be armed in a new box",
        ("/run/hermitcrab*", "/var/lib/hermitcrab/deadline*", "/var/lib/hermitcrab/armed*", "/var/lib/hermitcrab/run*"),
    ),
    Row("machine-id", "identity", "the machine's id", ("/etc/machine-id",), clean="truncate", holds=holds_id),
    Row("dbus-machine-id", "identity", "the machine's id", ("/var/lib/dbus/machine-id",), holds=holds_id),
    Row(
        "random-seed",
        "identity",
        "the seed of the random numbers",
        ("/var/lib/systemd/random-seed", "/var/lib/systemd/credential.secret", "/var/lib/urandom/random-seed"),
    ),
    Row(
        "cloud-init",
        "identity",
        "what cloud-init knows of this instance, its user data too",
        (
            *("/var/lib/cloud/instance", "/var/lib/cloud/instances/*", "/var/lib/cloud/data/*"),
            *("/var/lib/cloud/sem/*", "/run/cloud-init/*"),
        ),
    ),
    Row(
        "leases",
        "identity",
        "network leases",
        ("/var/lib/dhcp/*.leases", "/var/lib/dhclient/*.leases", "/var/lib/NetworkManager/*.lease"),
    ),
    Row("vpn-state", "identity", "this machine's place in a private network", ("/var/lib/tailscale/*", "/var/lib/zerotier-one/identity.secret")),
)

HISTORY_ROWS = (
    Row(
        "shell-history",
        "history",
        "what was typed into shells",
        tuple(f"~/.{name}_history" for name in ("bash", "zsh", "sh", "ash", "ksh", "tcsh"))
        + ("~/.history", "~/.histfile", "~/.zhistory", "~/.zsh_sessions/*", "~/.local/share/fish/fish_history"),
    ),
    Row(
        "tool-history",
        "history",
        "what was typed into or looked at with other programs",
        tuple(f"~/.{name}_history" for name in ("python", "node_repl", "sqlite", "mysql", "psql", "rediscli", "irb", "gdb"))
        + ("~/.lesshst", "~/.local/state/less/history", "~/.viminfo", "~/.local/share/nvim/shada/*", "~/.local/state/nvim/shada/*")
        + ("~/.ipython/profile_*/history.sqlite*", "~/.ipython/profile_*/db/*", "~/.wget-hsts", "~/.local/share/mc/history")
        + ("~/.local/share/recently-used.xbel", "~/.python_history-*", "~/.sudo_as_admin_successful"),
    ),
    Row("known-hosts", "history", "the machines that were reached from here", ("~/.ssh/known_hosts", "~/.ssh/known_hosts.old")),
)

CACHE_ROWS = (
    Row("pip", "cache", "pip's cache", ("~/.cache/pip", "$PIP_CACHE_DIR/http*", "$PIP_CACHE_DIR/wheels", "$XDG_CACHE_HOME/pip")),
    Row("uv", "cache", "uv's cache", ("~/.cache/uv", "$UV_CACHE_DIR/*-v[0-9]*", "$XDG_CACHE_HOME/uv")),
    Row("conda", "cache", "conda's downloaded packages", (*(f"{base}/pkgs/*" for base in _CONDAS), "~/.conda/pkgs/*")),
    Row(
        "huggingface",
        "cache",
        "downloaded models and data sets of Hugging Face",
        (
            *("~/.cache/huggingface", "$HF_HOME/hub", "$HF_HOME/datasets", "$HF_HOME/xet", "$HF_HOME/modules"),
            *("$HF_HUB_CACHE/models--*", "$HF_HUB_CACHE/datasets--*", "$HF_DATASETS_CACHE/*", "$XDG_CACHE_HOME/huggingface"),
        ),
    ),
    Row("modelscope", "cache", "downloaded models of ModelScope", ("~/.cache/modelscope", "$MODELSCOPE_CACHE/hub", "$MODELSCOPE_CACHE/models")),
    Row("torch", "cache", "torch's downloaded and compiled files", ("~/.cache/torch", "~/.cache/torch_extensions", "$TORCH_HOME/hub")),
    Row("compiled", "cache", "compiled GPU kernels", ("~/.nv/ComputeCache", "~/.triton/cache", "~/.triton/dump", "~/.triton/override")),
    Row("npm", "cache", "npm's cache", ("~/.npm/_cacache", "~/.npm/_logs", "~/.npm/_npx")),
    Row("rust-go", "cache", "downloads of cargo and Go", ("~/.cargo/registry/cache", "~/.cargo/registry/src", "~/go/pkg/mod/cache")),
    Row("other-caches", "cache", "everything else in the cache folder", ("~/.cache/*",)),
    Row("trash", "cache", "the trash", ("~/.local/share/Trash/*", "~/.Trash/*")),
    Row("apt-lists", "list", "apt's package lists", ("/var/lib/apt/lists/*",)),
    Row(
        "package-caches",
        "list",
        "downloads of the package managers",
        ("/var/cache/apt/*", "/var/cache/dnf/*", "/var/cache/yum/*", "/var/cache/apk/*", "/var/cache/debconf/*-old", "/var/lib/dpkg/*-old"),
    ),
    Row("ldconfig", "cache", "ldconfig's own notes", ("/var/cache/ldconfig/aux-cache", "/var/cache/man/*")),
    Row("journal", "log", "the journal", ("/var/log/journal/*", "/run/log/journal/*")),
    Row("old-logs", "log", "rotated logs", tuple(f"{where}/{end}" for where in ("/var/log", "/var/log/*") for end in _LOG_ENDS)),
    Row("logs", "log", "logs", ("/var/log/*",), clean="truncate"),
    Row(
        "crashes",
        "temp",
        "memory of programs that crashed",
        ("/var/crash/*", "/var/lib/systemd/coredump/*", "/var/lib/apport/coredump/*"),
    ),
    Row("core-files", "temp", "memory of programs that crashed", ("**/core", "**/core.[0-9]*"), holds=is_core),
    Row("jupyter", "temp", "Jupyter's running servers and their tokens", ("~/.local/share/jupyter/runtime/*",)),
    Row("temp", "temp", "temporary files", ("/tmp/*", "/var/tmp/*")),  # noqa: S108 - they are what is cleaned
)

DATA_ROWS = (
    Row("editor-servers", "data", "servers that editors left", ("~/.vscode-server", "~/.cursor-server", "~/.windsurf-server", "~/.trae-server"), ask=True),
    Row("tensorboard", "data", "TensorBoard logs", ("~/tf-logs/*",), ask=True),
    Row("run-logs", "data", "logs of training runs", ("**/wandb/", "**/mlruns/", "**/swanlog/", "**/lightning_logs/"), ask=True),
    Row("checkpoints", "data", "checkpoints", ("**/*.pt", "**/*.pth", "**/*.ckpt", "**/*.safetensors", "**/*.distcp"), ask=True),
    Row("data-sets", "data", "data sets", ("**/data/", "**/dataset/", "**/datasets/", "**/imagenet*/", "**/coco/"), ask=True, at_least=100 * MB),
    Row("big-files", "data", "big files", ("**/*",), ask=True, at_least=100 * MB),
)
# A virtual environment in a place of waste: given by scan.py, since only the walk can see it.
ENVIRONMENT = Row("environments", "data", "Python environments in a cache or temporary folder", (), ask=True)

ROWS = (*STATE_ROWS, *SECRET_ROWS, *HISTORY_ROWS, *CACHE_ROWS, *DATA_ROWS)
