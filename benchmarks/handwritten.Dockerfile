# What a careful person writes by hand for the same content: pinned versions, no caches, lists removed.
ARG BASE
FROM ${BASE}
ARG PACKAGES
ARG WHEELS
RUN --mount=type=secret,id=ca apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${PACKAGES} python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=secret,id=ca python3 -m venv /opt/venv \
 && PIP_CERT=$(ls /run/secrets/ca 2>/dev/null || true) /opt/venv/bin/pip install --no-cache-dir ${WHEELS}
ENV PATH=/opt/venv/bin:$PATH
