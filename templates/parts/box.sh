# Installs the hermitcrab wheel into a venv of its own and keeps only what came with it. Reads: python.
# By pip, since uv would write down the time at which the wheel was copied.
"python$python" -m venv --without-pip /opt/venv
PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) /opt/venv/bin/python -m pip install -q --no-cache-dir \
    --no-compile --no-deps --disable-pip-version-check --root-user-action ignore --no-index --find-links / hermitcrab
site=/opt/venv/lib/python$python/site-packages
mkdir -p "/box$site" /box/opt/venv/bin
mv "$site"/hermitcrab* "/box$site/"
mv /opt/venv/bin/crab /box/opt/venv/bin/crab
