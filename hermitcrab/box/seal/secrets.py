"""The table of secrets: who could be impersonated by whoever gets the saved image."""

from __future__ import annotations

from hermitcrab.box.seal.edits import holds_login, holds_private_key, holds_secret, holds_token
from hermitcrab.box.seal.rows import Row, paths

KEY_ROWS = (
    Row(
        "host-keys",
        "key",
        "the SSH server's own keys",
        paths(
            "/etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub /etc/ssh/ssh_host_*_key-cert.pub",
            "/etc/dropbear/dropbear_*_host_key",
        ),
    ),
    Row("authorized-keys", "key", "who may log in", paths("~/.ssh/authorized_keys ~/.ssh/authorized_keys2")),
    Row("ssh-keys", "key", "private SSH keys", paths("~/.ssh/* ~/.ssh/*/*"), holds=holds_private_key),
    Row("gpg-keys", "key", "private GPG keys", paths("~/.gnupg/private-keys-v1.d/* ~/.gnupg/secring.gpg")),
    Row("age-keys", "key", "private age keys", paths("~/.config/sops/age/keys.txt ~/.age/*"), holds=holds_private_key),
    Row("vpn-keys", "key", "private keys of WireGuard", paths("/etc/wireguard/*.conf /etc/wireguard/*.key")),
)

TOKEN_ROWS = (
    Row(
        "huggingface-token",
        "token",
        "Hugging Face",
        paths(
            "~/.cache/huggingface/token ~/.cache/huggingface/stored_tokens ~/.huggingface/token $HF_HOME/token",
            "$HF_HOME/stored_tokens $HF_TOKEN_PATH $XDG_CACHE_HOME/huggingface/token",
            "$XDG_CACHE_HOME/huggingface/stored_tokens",
        ),
    ),
    Row(
        "modelscope-token",
        "token",
        "ModelScope",
        paths("~/.modelscope/credentials ~/.cache/modelscope/credentials $MODELSCOPE_CACHE/credentials"),
    ),
    Row("netrc", "token", "logins by host, W&B's too", paths("~/.netrc ~/_netrc $NETRC ~/.swanlab/.netrc")),
    Row(
        "wandb",
        "token",
        "W&B",
        paths("~/.config/wandb/settings ~/.config/wandb/credentials.json ~/.wandb/credentials.json"),
        holds=holds_secret,
    ),
    Row(
        "trackers",
        "token",
        "experiment trackers",
        paths("~/.comet.config ~/.mlflow/credentials ~/clearml.conf ~/.neptune/*"),
        holds=holds_login,
    ),
    Row(
        "git-credentials",
        "token",
        "Git",
        paths("~/.git-credentials ~/.config/git/credentials ~/.cache/git/credential/*"),
    ),
    Row(
        "git-remotes",
        "token",
        "logins in Git's addresses",
        paths("~/.gitconfig ~/.config/git/config /etc/gitconfig **/.git/config **/.gitmodules"),
        clean="logins",
    ),
    Row(
        "forges",
        "token",
        "GitHub, GitLab and Copilot",
        paths("~/.config/gh/hosts.yml ~/.config/glab-cli/config.yml ~/.config/github-copilot/*.json ~/.config/hub"),
    ),
    Row(
        "assistants",
        "token",
        "coding assistants",
        paths("~/.claude/.credentials.json ~/.codex/auth.json ~/.gemini/oauth_creds.json ~/.vscode/cli/token.json"),
    ),
    Row("rclone", "token", "rclone", paths("~/.config/rclone/rclone.conf* ~/.rclone.conf $RCLONE_CONFIG")),
    Row(
        "aws",
        "token",
        "AWS",
        paths(
            "~/.aws/credentials ~/.aws/sso/cache/* ~/.aws/cli/cache/* $AWS_SHARED_CREDENTIALS_FILE ~/.s3cfg",
            "~/.passwd-s3fs /etc/passwd-s3fs ~/.mc/config.json",
        ),
    ),
    Row("aws-config", "token", "AWS, if it holds keys", paths("~/.aws/config $AWS_CONFIG_FILE"), holds=holds_login),
    Row(
        "gcloud",
        "token",
        "Google Cloud",
        paths(
            "~/.config/gcloud/credentials.db ~/.config/gcloud/access_tokens.db ~/.config/gcloud/*.json",
            "~/.config/gcloud/legacy_credentials ~/.boto ~/.gsutil/credstore* $GOOGLE_APPLICATION_CREDENTIALS",
        ),
    ),
    Row(
        "azure",
        "token",
        "Azure",
        paths(
            "~/.azure/accessTokens.json ~/.azure/msal_token_cache* ~/.azure/service_principal*",
            "~/.azure/azureProfile.json ~/.azcopy/*",
        ),
    ),
    Row(
        "aliyun",
        "token",
        "Alibaba Cloud",
        paths(
            "~/.aliyun/config.json ~/.ossutilconfig* ~/.alibabacloud/credentials* ~/.passwd-ossfs", "/etc/passwd-ossfs"
        ),
    ),
    Row(
        "tencent",
        "token",
        "Tencent Cloud",
        paths("~/.tccli/*.credential ~/.cos.conf ~/.cos.yaml ~/.passwd-cosfs /etc/passwd-cosfs"),
    ),
    Row("huawei", "token", "Huawei Cloud", paths("~/.hcloud/config.json ~/.obsutilconfig")),
    Row(
        "net-disks",
        "token",
        "net disks",
        paths(
            "~/.bypy/*.json ~/.config/BaiduPCS-Go/pcs_config.json ~/.config/aliyunpan/aliyunpan_config.json",
            "~/.aliyunpan/*.json",
        ),
    ),
    Row(
        "docker",
        "token",
        "logins of Docker; its other settings stay",
        paths("~/.docker/config.json $DOCKER_CONFIG/config.json"),
        clean="auths",
    ),
    Row(
        "containers",
        "token",
        "logins of other container tools",
        paths(
            "~/.config/containers/auth.json ~/.apptainer/docker-config.json ~/.apptainer/remote.yaml",
            "~/.singularity/docker-config.json ~/.singularity/remote.yaml ~/.ngc/config ~/.kube/config",
        ),
    ),
    Row(
        "kaggle",
        "token",
        "Kaggle",
        paths(
            "~/.kaggle/kaggle.json ~/.kaggle/access_token ~/.config/kaggle/kaggle.json",
            "$KAGGLE_CONFIG_DIR/kaggle.json",
        ),
    ),
    Row(
        "conda-token",
        "token",
        "conda",
        paths(
            "~/.anaconda/keyring ~/.continuum/anaconda-client/tokens/* ~/.local/share/*/anaconda-client/*.token",
            "~/.config/binstar/*.token ~/.conda/*.token",
        ),
    ),
    Row(
        "package-logins",
        "token",
        "logins in the addresses of package indexes",
        paths(
            "~/.condarc ~/.conda/.condarc ~/.config/conda/.condarc /etc/conda/.condarc ~/.config/pip/pip.conf",
            "~/.pip/pip.conf /etc/pip.conf ~/.config/uv/uv.toml /etc/uv/uv.toml ~/.npmrc /etc/apt/sources.list",
            "/etc/apt/sources.list.d/*",
        ),
        clean="logins",
    ),
    Row(
        "publishing",
        "token",
        "package registries",
        paths(
            "~/.pypirc ~/.config/pypoetry/auth.toml ~/.local/share/uv/credentials/* ~/.cargo/credentials*",
            "~/.gem/credentials ~/.yarnrc.yml /etc/apt/auth.conf /etc/apt/auth.conf.d/*",
        ),
    ),
    Row(
        "renting",
        "token",
        "rental platforms",
        paths(
            "~/.vast_api_key ~/.config/vastai/vast_api_key ~/.runpod/config.toml ~/.runpod.yaml",
            "~/.lambda_cloud/lambda_keys ~/.dstack/config.yml /etc/rp_environment",
        ),
    ),
    Row(
        "tunnels",
        "token",
        "tunnels",
        paths(
            "~/.cloudflared/*.json ~/.cloudflared/cert.pem ~/.config/ngrok/ngrok.yml ~/.ngrok2/ngrok.yml",
            "~/.vscode-cli/token.json",
        ),
    ),
    Row(
        "jupyter-secrets",
        "token",
        "Jupyter's cookies",
        paths(
            "~/.local/share/jupyter/jupyter_cookie_secret ~/.local/share/jupyter/notebook_secret",
            "~/.jupyter/migrated_cookie_secret",
        ),
    ),
    Row(
        "box-environment",
        "token",
        "the environment that this platform gave",
        paths("~/.config/hermitcrab/session.sh"),
    ),
    Row(
        "etc-environment",
        "token",
        "keys among the machine's variables",
        paths("/etc/environment /etc/security/pam_env.conf"),
        clean="values",
    ),
    Row(
        "env-files",
        "token",
        "files of variables, with keys",
        paths("**/.env **/.env.* **/*.env **/.envrc"),
        holds=holds_secret,
    ),
)

ASKED_ROWS = (
    Row(
        "shell-settings",
        "token",
        "keys in your shell's settings",
        paths(
            "~/.bashrc ~/.bash_profile ~/.bash_login ~/.bash_aliases ~/.profile ~/.zshrc ~/.zshenv ~/.zprofile",
            "~/.xonshrc ~/.config/fish/config.fish ~/.tmux.conf ~/.pam_environment ~/.ssh/environment",
            "/etc/profile /etc/bash.bashrc /etc/zsh/zshrc /etc/profile.d/* /etc/default/*",
        ),
        clean="values",
        ask=True,
    ),
    Row(
        "key-files",
        "key",
        "private keys in other places",
        paths("**/*.pem **/*.key **/*.ppk **/id_* **/*_rsa **/*_ed25519 /etc/ssl/private/*"),
        ask=True,
        holds=holds_private_key,
    ),
    Row(
        "token-in-file",
        "token",
        "files that spell out a token: edit them",
        paths(
            "**/*.py **/*.sh **/*.ipynb **/*.yaml **/*.yml **/*.json **/*.toml **/*.ini **/*.cfg **/*.conf",
            "**/*.txt **/*.md",
        ),
        clean="name",
        ask=True,
        holds=holds_token,
    ),
)

SECRET_ROWS = (*KEY_ROWS, *TOKEN_ROWS, *ASKED_ROWS)
