# Installs wheels of the lock and sorts the files into one directory per layer. Reads: epoch, python, backend, wheels, layers, last.
export UV_CACHE_DIR=/opt/uv-cache UV_LINK_MODE=hardlink UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
[ ! -e /run/secrets/ca ] || export SSL_CERT_FILE=/run/secrets/ca
[ ! -e /run/secrets/index ] || UV_DEFAULT_INDEX=$(cat /run/secrets/index)
[ ! -e /run/secrets/index ] || export UV_DEFAULT_INDEX
# shellcheck disable=SC2086  # what to grep for is a word or two
grep $wheels /requirements.lock > /wheels.lock
/opt/uv/bin/uv venv -q --python "/usr/bin/python$python" /opt/venv
# shellcheck disable=SC2086  # the backend is two words, or none
/opt/uv/bin/uv pip install --python /opt/venv/bin/python --require-hashes --no-deps --no-build $backend -r /wheels.lock
rm -rf "$UV_CACHE_DIR"

# Symbols go from torch's and triton's own libraries only: NVIDIA's files are not ours to change.
site=/opt/venv/lib/python$python/site-packages
cd "$site"
find torch/lib torch/bin torch/_C* functorch triton/_C -type f \( -name '*.so*' -o -path 'torch/bin/*' \) \
    ! -name 'libcu*' ! -name 'libnv*' ! -name 'libnccl*' -print0 2>/dev/null | xargs -0 -r -n 1 -P "$(nproc)" strip --strip-unneeded
find /opt/venv -name __pycache__ -prune -exec rm -rf {} +

# One line of $layers is a layer: its name, then what it takes from site-packages. What nobody takes is the $last one.
echo "$layers" | while read -r layer paths; do
    for path in $paths; do
        [ -e "$path" ] || continue
        mkdir -p "/layers/$layer$site/$(dirname "$path")"
        mv "$path" "/layers/$layer$site/$path"
    done
done
if [ -n "$last" ]; then
    mkdir -p "/layers/$last/opt"
    mv /opt/venv "/layers/$last/opt/venv"
fi
find /layers -exec touch -hd "@$epoch" {} +
