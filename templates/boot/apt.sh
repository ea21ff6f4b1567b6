# apt-get on a machine that others use too: a fresh VM's own updater, a platform's start script.
# Waits for locks of both kinds, mends what an interrupted dpkg left once, removes no lock and ends nobody.
# Reads: work, verbose, rights; apt_options: what a CA or a mirror asks for; guard: a folder of programs that come first.

apt_get() { # apt-get with these words
    deadline=$(($(date +%s) + ${HERMITCRAB_APT_WAIT:-900})) told='' mended=''
    until apt_once "$@"; do
        if held; then
            [ "$(date +%s)" -lt "$deadline" ] || die "the package system is still in use by $(holder): run this again later"
            [ -n "$told" ] || say "waiting for $(holder), which holds the package system's lock"
            told=yes
            sleep "${HERMITCRAB_APT_PAUSE:-3}"
        elif [ -z "$mended" ] && grep -q 'dpkg was interrupted' "$work/apt.out"; then
            say 'dpkg was interrupted before: finishing what it began'
            mended=yes
            quietly dpkg --force-confdef --force-confold --configure -a
        else
            return 1
        fi
    done
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
        ${guard:+"PATH=$guard:$PATH"} "$@" </dev/null >"$work/apt.out" 2>&1
    status=$?
    [ -z "${log-}" ] || { printf '+ %s\n' "$*" && cat "$work/apt.out"; } >>"$log" 2>/dev/null || :
    [ -z "${verbose-}" ] || cat "$work/apt.out"
    return "$status"
}

held() { # does somebody hold the lock of dpkg, of the lists or of the archives?
    grep -qE 'Could not get lock|Unable to acquire the dpkg|Unable to lock|is another process using it' "$work/apt.out"
}

holder() { # its name as apt tells it; older ones do not
    found=$(sed -n 's/.*[Hh]eld by process \([0-9]* ([^)]*)\).*/\1/p' "$work/apt.out" | head -n 1)
    printf '%s\n' "${found:-another package manager}"
}

apt_says() { # why it failed, in one line
    found=$(grep -E '^(E|Err):' "$work/apt.out" | grep -vE 'Some index files failed|have been ignored' | head -n 1)
    printf '%s\n' "${found:-$(tail -n 1 "$work/apt.out")}"
}
