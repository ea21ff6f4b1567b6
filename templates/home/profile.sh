# hermitcrab: the environment of the image, of the platform and of the data disk, for every shell.
# /etc/profile resets PATH for login shells; this puts the environment of the image back.
if [ -d /opt/venv/bin ]; then
    case ":$PATH:" in
        *:/opt/venv/bin:*) ;;
        *) PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv ;;
    esac
    export PATH VIRTUAL_ENV="${VIRTUAL_ENV:-/opt/venv}"
fi
if [ -r /etc/hermitcrab/constraints.txt ]; then
    export PIP_CONSTRAINT=/etc/hermitcrab/constraints.txt UV_CONSTRAINT=/etc/hermitcrab/constraints.txt
fi
export LANG="${LANG:-C.UTF-8}"
# What the platform gave to PID 1 only, and caches on the data disk; see `crab setup --help`.
if [ -r "${HOME:-}/.config/hermitcrab/session.sh" ]; then . "${HOME:-}/.config/hermitcrab/session.sh"; fi
if [ -r "${HOME:-}/.config/hermitcrab/caches.sh" ]; then . "${HOME:-}/.config/hermitcrab/caches.sh"; fi
# Where a bootstrap without root's rights put the environment.
if [ -r "${HOME:-}/.config/hermitcrab/environment.sh" ]; then . "${HOME:-}/.config/hermitcrab/environment.sh"; fi
# A terminal that this box has never heard of would keep tmux and nano from starting.
if [ -t 0 ] && command -v infocmp >/dev/null && ! infocmp >/dev/null 2>&1; then
    export TERM=xterm-256color
fi
# What a power-off left to say, once for each login; the next `crab train` takes it away.
case $- in
*i*)
    for crab_said in "${XDG_STATE_HOME:-${HOME:-}/.local/state}/hermitcrab/poweroff" /workspace/.hermitcrab-poweroff; do
        if [ -z "${CRAB_TOLD:-}" ] && [ -r "$crab_said" ]; then
            cat "$crab_said" >&2
            export CRAB_TOLD=1
        fi
    done
    unset crab_said
    ;;
esac
