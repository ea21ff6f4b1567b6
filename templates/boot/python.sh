# The rest is Python, of which every box has one or can get one.

find_python() { # sets python: the first of 3.8 or later that can unpack and speak TLS
    python=''
    for candidate in /usr/bin/python3 python3 python "${CONDA_PREFIX:-/nowhere}/bin/python" /root/miniconda3/bin/python \
        /opt/conda/bin/python /opt/miniconda3/bin/python "$HOME/miniconda3/bin/python" "$HOME/anaconda3/bin/python"; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        "$candidate" -I -c 'import bz2, hashlib, ssl, sys, tarfile; sys.exit(sys.version_info < (3, 8))' \
            </dev/null >/dev/null 2>&1 || continue
        python=$candidate
        return 0
    done
    return 1
}

get_python() { # by apt, the only package that comes before the plan
    [ -z "$dry_run" ] || die 'there is no Python 3.8 or later here: a real run would install python3 first, then choose' 1
    [ "$may" != user ] || die 'there is no Python 3.8 or later here, and no right to install one: ask for python3' 3
    [ -n "$has_apt" ] || die "there is no Python 3.8 or later here, and $distro $release is not served: install one" 1
    say 'installing python3'
    apt_get update || die "the package archive cannot be read: $(apt_says)"
    apt_fresh=yes
    # With the certificates, or nothing that comes later could trust an index.
    apt_install --no-remove python3 ca-certificates || die "python3 cannot be installed: $(apt_says)"
    find_python || die 'python3 was installed, and does not work'
}

unpack() { # the payload into the work folder, checked first
    payload | "$python" -I -W ignore -c '
import base64, bz2, hashlib, io, sys, tarfile
try:
    data = base64.b85decode(sys.stdin.buffer.read().translate(None, b" \t\r\n"))
except ValueError as error:
    sys.exit(f"this copy is damaged ({error}): fetch it anew")
if hashlib.sha256(data).hexdigest() != sys.argv[2]:
    sys.exit("this copy is damaged (its checksum is wrong): fetch it anew")
with tarfile.open(fileobj=io.BytesIO(bz2.decompress(data)), ignore_zeros=True) as archive:
    archive.extractall(sys.argv[1])
' "$work/payload" "$crab_payload_sha256" 2>"$work/unpack.out" ||
        die "$(tail -n 1 "$work/unpack.out"), $work"
}
