# Installs $packages without what they only recommend. Reads: packages.
export DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1
[ ! -e /run/secrets/ca ] || set -- -o Acquire::https::CAInfo=/run/secrets/ca
# shellcheck disable=SC2086  # a list of package names
apt-get "$@" install -qq -y --no-install-recommends $packages
