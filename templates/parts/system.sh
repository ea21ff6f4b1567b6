# Makes the installed system the same at every build. Reads: epoch.
# Host keys and the machine id are made at the first start, on the box that will use them.
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /etc/dpkg/dpkg.cfg.d/99mmdebstrap
rm -f /etc/*- /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/cache/debconf/*-old
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /tmp/* /var/tmp/* /root/.cache /root/.wget-hsts
find /usr /etc /opt -name __pycache__ -prune -exec rm -rf {} +
sed -i '/^force-unsafe-io$/d' /etc/dpkg/dpkg.cfg.d/hermitcrab
mkdir -p /run/sshd
# The Engine mounts these while it builds; they are not part of the layer.
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run/secrets -o -path /etc/hosts -o -path /etc/resolv.conf \) \
    -prune -o -newermt "@$epoch" -exec touch -hd "@$epoch" {} +
