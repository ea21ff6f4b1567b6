# apt-get on a machine that others use too: a fresh VM's own updater, a platform's start script.
# Waits for locks of both kinds, mends what an interrupted dpkg left once, removes no lock and ends nobody.
# Reads: work, log, verbose, rights; apt_options: what a CA or a mirror asks for.
guarded=''

apt_get() { # apt-get with these words
    deadline=$(($(date +%s) + ${HERMITCRAB_APT_WAIT:-900})) told='' mended=''
    until apt_once "$@"; do
        if held; then
            wait_turn || return 1
        elif [ -z "$mended" ] && grep -q 'dpkg was interrupted' "$work/apt.out"; then
            say 'dpkg was interrupted before: finishing what it began'
            mended=yes
            quietly dpkg --force-confdef --force-confold --configure -a || ! held || mended=''
            [ -n "$mended" ] || wait_turn || return 1
        else
            return 1
        fi
    done
}

apt_install() { # apt-get install, with stand-ins for what starts services or reloads systemd: a reload takes the card
    # away from running containers. They lie not below /tmp, which may be noexec.
    guard=${HERMITCRAB_GUARD:-/var/lib/hermitcrab/guard} stand_ins='systemctl deb-systemd-invoke invoke-rc.d'
    # shellcheck disable=SC2016,SC2086  # of the inner shell; words
    ${rights-} sh -c 'mkdir -p "$0" && cd "$0" || exit
        for name; do printf "#!/bin/sh\nexit 0\n" >"$name" && chmod 755 "$name" || exit; done' \
        "$guard" $stand_ins </dev/null || return 1
    guarded=$guard: && apt_get install --no-install-recommends "$@"
    installed=$? guarded=''
    # shellcheck disable=SC2016,SC2086
    ${rights-} sh -c 'cd "$0" && rm "$@" && cd / && rmdir "$0" && rmdir "${0%/*}" 2>/dev/null' "$guard" $stand_ins </dev/null
    return "$installed"
}

wait_turn() { # a while; no longer than until the deadline
    found=$(holder)
    if [ "$(date +%s)" -ge "$deadline" ]; then
        printf '%s\n' "the package system is still in use by $found: run this again later" >"$work/apt.out"
        return 1
    fi
    [ -n "$told" ] || say "waiting for $found, which holds the package system's lock"
    told=yes
    sleep "${HERMITCRAB_APT_PAUSE:-3}"
}

apt_once() { # `update` succeeds also where it could fetch nothing: not here
    # shellcheck disable=SC2086  # a list of options
    quietly apt-get -q -y -o APT::Update::Error-Mode=any -o DPkg::Use-Pty=false -o Dpkg::Options::=--force-confdef \
        -o Dpkg::Options::=--force-confold ${apt_options-} "$@" || return 1
    [ "$1" != update ] || ! grep -q '^Err:' "$work/apt.out"
}

quietly() { # as nobody at a terminal would run it; what it says goes to the log
    # shellcheck disable=SC2086  # words
    ${rights-} env LC_ALL=C DEBIAN_FRONTEND=noninteractive DEBIAN_PRIORITY=critical TZ="${TZ:-UTC}" \
        UCF_FORCE_CONFFOLD=1 NEEDRESTART_MODE=l NEEDRESTART_SUSPEND=1 APT_LISTCHANGES_FRONTEND=none \
        "PATH=$guarded$PATH" "$@" </dev/null >"$work/apt.out" 2>&1
    status=$?
    [ -z "${log-}" ] || { printf '+ %s\n' "$*" && cat "$work/apt.out"; } >>"$log" 2>/dev/null || :
    [ -z "${verbose-}" ] || cat "$work/apt.out"
    return "$status"
}

held() { # does somebody hold the lock of dpkg, of the lists or of the archives?
    grep -qE 'Could not get lock|Unable to acquire the dpkg|Unable to lock|locked by another process|is another process using it' \
        "$work/apt.out"
}

holder() { # its name as apt tells it; dpkg knows its number, older ones nothing
    found=$(sed -n -e 's/.*[Hh]eld by process \([0-9]* ([^)]*)\).*/\1/p' \
        -e 's/.*by another process with pid \([0-9]*\).*/process \1/p' "$work/apt.out" | head -n 1)
    printf '%s\n' "${found:-another package manager}"
}

apt_says() { # why it failed, in one line: what could not be fetched and why, what dpkg stumbled over, or the first error
    found=$(sed -n -e '/^Err:/{N;s/\n   */: /;s/\n.*//;p;q;}' \
        -e '/^Errors were encountered while processing/{n;s/^ */dpkg cannot set up /p;q;}' "$work/apt.out")
    [ -n "$found" ] ||
        found=$(grep -E '^(E|Err):' "$work/apt.out" | grep -vE 'Some index files failed|have been ignored' | head -n 1)
    case $found in
    *[Cc]ertificate*) found="${found%.}; name your network's CA bundle with --ca FILE" ;;
    esac
    printf '%s\n' "${found:-$(tail -n 1 "$work/apt.out")}"
}
