# The command line: read whole before anything is done, so that a typo does nothing.

usage() {
    cat <<HELP
hermitcrab $crab_version bootstrap: tmux, git, SSH, a torch that fits this driver and card, and crab.

  curl -fsSL ADDRESS/bootstrap.sh | bash
  curl -fsSL ADDRESS/bootstrap.sh | bash -s -- [options]

  --cuda VERSION    this CUDA instead of the newest that driver and card can use
  --torch VERSION   this torch
  --fresh           install an own torch also where one works already
  --mirror NAME     packages from this mirror; auto (default): the quickest of a short probe; none: as configured
  --ca FILE         trust this certificate (PEM) as well: a network that looks into TLS
  --turbo           use the platform's proxy script for downloads, and only for them
  --dry-run         print the plan, change nothing
  --uninstall       take out what bootstrap put in; packages of the distribution stay
  --yes             accepted for the habit: nothing is ever asked
  --quiet           only warnings, errors and the summary
  --verbose         also what apt, pip and uv say
  --help            this text

A second run changes nothing. Exit status: 0 done, 1 failed, 2 wrong use, 3 done in part (no root),
4 nothing fits this machine. A pipe hides it: look for the stamp, /etc/hermitcrab/bootstrap.json
(without root ~/.config/hermitcrab/bootstrap.json). The log is its neighbour's name in /var/log
(without root ~/.local/state/hermitcrab). HERMITCRAB_APT_WAIT=900 is how many seconds a lock is waited for.
HELP
}

read_options() { # sets one variable per option
    cuda='' torch='' mirror=auto ca=${HERMITCRAB_CA-}
    fresh='' turbo='' dry_run='' uninstall='' quiet='' verbose=''
    while [ $# -gt 0 ]; do
        case $1 in
        --cuda | --torch | --mirror | --ca)
            [ $# -gt 1 ] || wrong "$1 needs a value"
            read_value "$1" "$2"
            shift
            ;;
        --cuda=* | --torch=* | --mirror=* | --ca=*) read_value "${1%%=*}" "${1#*=}" ;;
        --fresh) fresh=yes ;;
        --turbo) turbo=yes ;;
        --dry-run) dry_run=yes ;;
        --uninstall) uninstall=yes ;;
        --yes | -y) ;;
        --quiet | -q) quiet=yes ;;
        --verbose | -v) verbose=yes ;;
        --help | -h)
            usage
            exit 0
            ;;
        *) wrong "unknown option: $1" ;;
        esac
        shift
    done
    [ -z "$ca" ] || [ -r "$ca" ] || wrong "--ca $ca: no such file, or not to be read"
}

read_value() { # the option, its value
    case $2 in
    '' | -*) wrong "$1 needs a value" ;;
    esac
    case $1 in
    --cuda) cuda=$2 ;;
    --torch) torch=$2 ;;
    --mirror) mirror=$2 ;;
    --ca) ca=$(absolute "$2") ;;
    esac
}

absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$(pwd)" "$1" ;;
    esac
}

wrong() {
    printf 'bootstrap: %s; nothing was done (see --help)\n' "$1" >&2
    exit 2
}
