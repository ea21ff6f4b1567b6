# The order of things.

main() {
    set -u
    umask 022
    log='' # not somebody's variable of this name
    read_options "$@"
    find_path
    find_home
    find_rights
    find_distro
    open_log
    open_work
    use_ca
    find_python || get_python
    unpack
    run_python
}

use_ca() { # apt gets it by an option; what comes later has variables for it
    apt_options='-o Dpkg::Options::=--force-unsafe-io'
    [ -n "$ca" ] || return 0
    cat "$ca" >"$work/extra.pem" || die "--ca $ca cannot be read"
    ca=$work/extra.pem
    # Beside the system's own: not every address need be looked into. apt's own user could not enter the work folder.
    cat /etc/ssl/certs/ca-certificates.crt "$ca" >"$work/apt.pem" 2>/dev/null
    apt_options="$apt_options -o Acquire::https::CAInfo=$work/apt.pem -o APT::Sandbox::User=root"
}

run_python() { # the rest of the work, with root's rights where they can be had
    cd "$work/payload" || die "no way into $work" # not a folder of somebody else's: Python imports from where it is
    set -- --may "$may" --distro "$distro" --release "$release" --work "$work" --log "${log-}" --mirror "$mirror" \
        --cuda "$cuda" --torch "$torch" --ca "$ca" --wheel-sha256 "$crab_wheel_sha256" --script "$crab_payload_sha256"
    for flag in "has-apt $has_apt" "fresh $fresh" "turbo $turbo" "dry-run $dry_run" "uninstall $uninstall" \
        "quiet $quiet" "verbose $verbose"; do
        [ "${flag##* }" != yes ] || set -- "$@" "--${flag% *}"
    done
    # shellcheck disable=SC2086  # words
    $rights env "HOME=$HOME" "PATH=$PATH" "PYTHONPATH=$work/payload" "CRAB_APT_OPTIONS=$apt_options" "CRAB_APT_FRESH=${apt_fresh-}" \
        PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=utf-8 \
        "$python" -s -W ignore -m hermitcrab.box.bootstrap "$@" </dev/null
}
