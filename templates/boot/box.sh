# Whose shell this is and what it may do. Nothing is asked: a password prompt in a pipe would hang for ever.

find_path() { # a plain user's lacks what dpkg needs; none at all is the shell's own
    PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    export PATH
}

find_home() { # HOME may be missing (`env -i`, cron, some platforms), or be /
    case ${HOME-} in
    '' | / | /tmp) HOME=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6) ;;
    esac
    case ${HOME-} in
    '' | / | /tmp) [ "$(id -u)" != 0 ] || HOME=/root ;;
    esac
    [ -n "${HOME-}" ] && [ -d "$HOME" ] || die "no home folder: set HOME to a folder of yours"
    export HOME
}

find_rights() { # sets may: root, sudo or user; and rights, the words that give a command root's rights
    rights='' may=root
    [ "$(id -u)" != 0 ] || return 0
    for rights in 'sudo -n -E' 'sudo -n'; do
        may=sudo
        # shellcheck disable=SC2086  # words
        $rights true </dev/null >/dev/null 2>&1 && return 0
    done
    rights='' may=user
}

find_distro() { # sets distro (debian, ubuntu, or another's id), release and has_apt
    distro=unknown release='' has_apt=''
    if [ -r /etc/os-release ]; then
        # shellcheck source=/dev/null
        distro=$(. /etc/os-release && printf '%s\n' "${ID-unknown}")
        # shellcheck source=/dev/null
        release=$(. /etc/os-release && printf '%s\n' "${VERSION_ID-}")
        # shellcheck source=/dev/null
        case " $distro $(. /etc/os-release && printf '%s\n' "${ID_LIKE-}") " in
        *' debian '* | *' ubuntu '*) has_apt=yes ;;
        esac
    fi
    command -v apt-get >/dev/null 2>&1 || has_apt=''
}

open_log() { # sets log; a log that cannot be written is none
    [ -z "$dry_run" ] || return 0
    if [ "$may" = root ]; then
        log=/var/log/hermitcrab-bootstrap.log
    else
        log=${XDG_STATE_HOME:-$HOME/.local/state}/hermitcrab/bootstrap.log
        mkdir -p "${log%/*}" 2>/dev/null
    fi
    { printf '\n'; date -u '+== bootstrap %Y-%m-%dT%H:%M:%SZ'; } 2>/dev/null >>"$log" || log=''
}

open_work() { # sets work: a folder that goes with this shell
    work=''
    for folder in "${TMPDIR:-/tmp}" /tmp /var/tmp "$HOME"; do
        case $folder in *[!A-Za-z0-9._/-]*) continue ;; esac # its name stands in lists of words
        work=$(mktemp -d "$folder/hermitcrab.XXXXXX" 2>/dev/null) && break
        work=''
    done
    [ -n "$work" ] || die "no folder for temporary files: neither TMPDIR nor /tmp, /var/tmp or $HOME can be written"
    # shellcheck disable=SC2154  # set by find_rights
    trap 'rm -rf "$work" 2>/dev/null || $rights rm -rf "$work"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}
