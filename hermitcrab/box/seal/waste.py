"""The table of what is waste in a saved image; what is secret stands in secrets.py.

Where two rows fit one path, the first one has it: the particular before the general.
"""

from __future__ import annotations

from hermitcrab.box.seal.edits import holds_id, is_core
from hermitcrab.box.seal.rows import MB, Row, paths
from hermitcrab.box.seal.secrets import SECRET_ROWS

STATE_ROWS = (
    Row(
        "run-state",
        "state",
        "hermitcrab's runs and records of deadlines: nothing may be armed in a new box",
        paths(
            "/run/hermitcrab* /var/lib/hermitcrab/deadline* /var/lib/hermitcrab/armed* /var/lib/hermitcrab/run*",
            "~/.local/state/hermitcrab/* $XDG_STATE_HOME/hermitcrab/* /workspace/.hermitcrab-poweroff",
        ),
    ),
    Row("machine-id", "identity", "the machine's id", paths("/etc/machine-id"), clean="truncate", holds=holds_id),
    Row("dbus-machine-id", "identity", "the machine's id", paths("/var/lib/dbus/machine-id"), holds=holds_id),
    Row(
        "random-seed",
        "identity",
        "the seed of the random numbers",
        paths("/var/lib/systemd/random-seed /var/lib/systemd/credential.secret /var/lib/urandom/random-seed"),
    ),
    Row(
        "cloud-init",
        "identity",
        "what cloud-init knows of this instance, its user data too",
        paths(
            "/var/lib/cloud/instances/* /var/lib/cloud/data/* /var/lib/cloud/sem/*",
            "/run/cloud-init/*",
        ),
    ),
    Row(
        "leases",
        "identity",
        "network leases",
        paths("/var/lib/dhcp/*.leases /var/lib/dhclient/*.leases /var/lib/NetworkManager/*.lease"),
    ),
    Row(
        "vpn-state",
        "identity",
        "this machine's place in a private network",
        paths("/var/lib/tailscale/* /var/lib/zerotier-one/identity.secret"),
    ),
)

HISTORY_ROWS = (
    Row(
        "shell-history",
        "history",
        "what was typed into shells",
        paths(
            "~/.bash_history ~/.zsh_history ~/.sh_history ~/.ash_history ~/.ksh_history ~/.tcsh_history",
            "~/.history ~/.histfile ~/.zhistory ~/.zsh_sessions/* ~/.local/share/fish/fish_history",
        ),
    ),
    Row(
        "tool-history",
        "history",
        "what was typed into or looked at with other programs",
        paths(
            "~/.python_history ~/.node_repl_history ~/.sqlite_history ~/.mysql_history ~/.psql_history",
            "~/.rediscli_history ~/.irb_history ~/.gdb_history ~/.lesshst ~/.local/state/less/history ~/.viminfo",
            "~/.local/share/nvim/shada/* ~/.local/state/nvim/shada/* ~/.ipython/profile_*/history.sqlite*",
            "~/.ipython/profile_*/db/* ~/.wget-hsts ~/.local/share/mc/history ~/.local/share/recently-used.xbel",
            "~/.python_history-* ~/.sudo_as_admin_successful",
        ),
    ),
    Row(
        "known-hosts",
        "history",
        "the machines that were reached from here",
        paths("~/.ssh/known_hosts ~/.ssh/known_hosts.old"),
    ),
)

CACHE_ROWS = (
    Row(
        "pip",
        "cache",
        "pip's cache",
        paths("~/.cache/pip $PIP_CACHE_DIR/http* $PIP_CACHE_DIR/wheels $XDG_CACHE_HOME/pip"),
    ),
    Row("uv", "cache", "uv's cache", paths("~/.cache/uv $UV_CACHE_DIR/*-v[0-9]* $XDG_CACHE_HOME/uv")),
    Row(
        "conda",
        "cache",
        "conda's downloaded packages",
        paths(
            "~/miniconda3/pkgs/* ~/anaconda3/pkgs/* ~/miniforge3/pkgs/* ~/mambaforge/pkgs/* /opt/conda/pkgs/*",
            "/opt/miniconda3/pkgs/* /opt/miniforge3/pkgs/* ~/.conda/pkgs/*",
        ),
    ),
    Row(
        "huggingface",
        "cache",
        "downloaded models and data sets of Hugging Face",
        paths(
            "~/.cache/huggingface $HF_HOME/hub $HF_HOME/datasets $HF_HOME/xet $HF_HOME/modules",
            "$HF_HUB_CACHE/models--* $HF_HUB_CACHE/datasets--* $XDG_CACHE_HOME/huggingface",
        ),
    ),
    Row(
        "modelscope",
        "cache",
        "downloaded models of ModelScope",
        paths("~/.cache/modelscope $MODELSCOPE_CACHE/hub $MODELSCOPE_CACHE/models"),
    ),
    Row(
        "torch",
        "cache",
        "torch's downloaded and compiled files",
        paths("~/.cache/torch ~/.cache/torch_extensions $TORCH_HOME/hub"),
    ),
    Row(
        "compiled",
        "cache",
        "compiled GPU kernels",
        paths("~/.nv/ComputeCache ~/.triton/cache ~/.triton/dump ~/.triton/override"),
    ),
    Row("npm", "cache", "npm's cache", paths("~/.npm/_cacache ~/.npm/_logs ~/.npm/_npx")),
    Row(
        "rust-go",
        "cache",
        "downloads of cargo and Go",
        paths("~/.cargo/registry/cache ~/.cargo/registry/src ~/go/pkg/mod/cache"),
    ),
    Row("other-caches", "cache", "everything else in the cache folder", paths("~/.cache/*")),
    Row("trash", "cache", "the trash", paths("~/.local/share/Trash/* ~/.Trash/*")),
    Row("apt-lists", "list", "apt's package lists", paths("/var/lib/apt/lists/*")),
    Row(
        "package-caches",
        "list",
        "downloads of the package managers",
        paths(
            "/var/cache/apt/* /var/cache/dnf/* /var/cache/yum/* /var/cache/apk/* /var/cache/debconf/*-old",
            "/var/lib/dpkg/*-old",
        ),
    ),
    Row("ldconfig", "cache", "ldconfig's own notes", paths("/var/cache/ldconfig/aux-cache /var/cache/man/*")),
    Row("journal", "log", "the journal", paths("/var/log/journal/* /run/log/journal/*")),
    Row(
        "old-logs",
        "log",
        "rotated logs",
        paths(
            "/var/log/*.gz /var/log/*.xz /var/log/*.zst /var/log/*.bz2 /var/log/*.old /var/log/*.[0-9]",
            "/var/log/*.[0-9][0-9] /var/log/*-20[0-9][0-9][0-9][0-9][0-9][0-9] /var/log/*/*.gz /var/log/*/*.xz",
            "/var/log/*/*.zst /var/log/*/*.bz2 /var/log/*/*.old /var/log/*/*.[0-9] /var/log/*/*.[0-9][0-9]",
            "/var/log/*/*-20[0-9][0-9][0-9][0-9][0-9][0-9]",
        ),
    ),
    Row("logs", "log", "logs", paths("/var/log/*"), clean="truncate"),
    Row(
        "crashes",
        "temp",
        "memory of programs that crashed",
        paths("/var/crash/* /var/lib/systemd/coredump/* /var/lib/apport/coredump/*"),
    ),
    Row("core-files", "temp", "memory of programs that crashed", paths("**/core **/core.[0-9]*"), holds=is_core),
    Row("jupyter", "temp", "Jupyter's running servers and their tokens", paths("~/.local/share/jupyter/runtime/*")),
    Row("temp", "temp", "temporary files", paths("/tmp/* /var/tmp/*")),  # noqa: S108 - what is cleaned
)

DATA_ROWS = (
    Row(
        "editor-servers",
        "data",
        "servers that editors left",
        paths("~/.vscode-server ~/.cursor-server ~/.windsurf-server ~/.trae-server"),
        ask=True,
    ),
    Row("tensorboard", "data", "TensorBoard logs", paths("~/tf-logs/*"), ask=True),
    Row(
        "run-logs",
        "data",
        "logs of training runs",
        paths("**/wandb/ **/mlruns/ **/swanlog/ **/lightning_logs/"),
        ask=True,
    ),
    Row(
        "checkpoints", "data", "checkpoints", paths("**/*.pt **/*.pth **/*.ckpt **/*.safetensors **/*.distcp"), ask=True
    ),
    Row(
        "data-sets",
        "data",
        "data sets",
        paths("**/data/ **/dataset/ **/datasets/ **/imagenet*/ **/coco/"),
        ask=True,
        at_least=100 * MB,
    ),
    Row("big-files", "data", "big files", paths("**/*"), ask=True, at_least=100 * MB),
)

# A virtual environment in a place of waste: given by scan.py, since only the walk can see it.
ENVIRONMENT = Row("environments", "data", "Python environments in a cache or temporary folder", (), ask=True)

ROWS = (*STATE_ROWS, *SECRET_ROWS, *HISTORY_ROWS, *CACHE_ROWS, *DATA_ROWS)
