# Fetches uv, by the pip that Debian keeps for its own use. Reads: uv_version, uv_sha256.
[ ! -e /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca
[ ! -e /run/secrets/index ] || PIP_INDEX_URL=$(cat /run/secrets/index)
[ ! -e /run/secrets/index ] || export PIP_INDEX_URL
echo "uv==$uv_version --hash=sha256:$uv_sha256" > /tmp/uv.lock
PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) python3 -m pip install -q --no-cache-dir --no-compile --no-deps \
    --disable-pip-version-check --root-user-action ignore --require-hashes --target /opt/uv -r /tmp/uv.lock
