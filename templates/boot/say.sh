# What people read: on the terminal, and in the log. Nothing here fails.
# Reads: quiet, verbose, log, work.

say() { # a line for the user, unless --quiet
    note "$1"
    [ -n "${quiet-}" ] || printf '%s\n' "$1"
}

note() { # a line for the log
    [ -z "${log-}" ] || printf '%s\n' "$1" >>"$log" 2>/dev/null || :
}

die() { # the reason, the exit status
    note "failed: $1"
    printf 'bootstrap: %s\n' "$1" >&2
    exit "${2:-1}"
}
