"""How each rental platform is recognised, as data: `platform.py` goes through STEPS in order.

The first step whose rules all hold wins, so schedulers come first, and last what only the host tells.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One thing to look for; `look` names a function of platform.LOOKS."""

    look: str
    what: str
    holds: str = ""


class Step(NamedTuple):
    """A way to recognise a platform: all rules must hold."""

    platform: str
    confidence: str  # high, medium, low or none
    rules: tuple[Rule, ...]


STEPS = (
    # The job's own environment only, before all else: a job may inherit other platforms' variables.
    Step("slurm", "high", (Rule("own env", "SLURM_JOB_ID"),)),
    Step("runpod", "high", (Rule("env", "RUNPOD_POD_ID"),)),
    Step("autodl", "high", (Rule("env", "AutoDLContainerUUID"),)),
    Step("vast", "high", (Rule("env", "CONTAINER_API_KEY"), Rule("env", "VAST_CONTAINERLABEL"))),
    Step("runpod", "high", (Rule("line", "/etc/rp_environment", "export RUNPOD_POD_ID="),)),
    Step("autodl", "high", (Rule("text", "/init/others/help", "AutoDL"),)),
    Step("autodl", "high", (Rule("hostname", r"autodl-container-[0-9a-z]+-[0-9a-f]{8}"),)),
    Step("vast", "medium", (Rule("file", "/.launch"), Rule("file", "/root/onstart.sh"))),
    Step("vast", "medium", (Rule("file", "/.launch"), Rule("dir", "/etc/vast_boot.d"))),
    Step("gpushare", "high", (Rule("dir", "/hy-tmp"), Rule("dir", "/hy-public"))),
    Step("gpushare", "medium", (Rule("dir", "/hy-tmp"),)),
    Step("gpushare", "medium", (Rule("hostname", r"I[0-9a-f]{15,}"),)),
    Step("matpool", "medium", (Rule("dir", "/public/script"), Rule("dir", "/root/miniconda3/envs/myconda"))),
    Step("autodl", "medium", (Rule("file", "/etc/network_turbo"), Rule("mount", "/root/autodl-tmp"))),
    Step("apptainer", "high", (Rule("dir", "/.singularity.d"),)),
    Step("apptainer", "high", (Rule("own env", "APPTAINER_CONTAINER"),)),
    # Some sites set this one outside of containers, too.
    Step("apptainer", "medium", (Rule("own env", "APPTAINER_BIND"),)),
    # From here on the host speaks, also to a container that somebody else rents out on it.
    Step("wsl", "high", (Rule("kernel", "microsoft"),)),
    Step("aliyun", "high", (Rule("dmi", "Alibaba"),)),
    Step("tencent", "high", (Rule("dmi", "Tencent"),)),
    Step("huawei", "medium", (Rule("dmi", "Huawei"),)),  # also a Huawei server in a laboratory
    Step("aws", "high", (Rule("dmi", "Amazon"),)),
    Step("lambda", "medium", (Rule("dir", "/lambda/nfs"),)),
    # Scripts for AutoDL make this folder elsewhere, but hardly ever mount a disk there.
    Step("autodl", "low", (Rule("mount", "/root/autodl-tmp"),)),
)

# Seen on that platform and elsewhere: named on an unknown machine, and never enough.
CLUES = (
    Step("lanyun", "none", (Rule("file", "/etc/network_turbo"),)),
    Step("autodl", "none", (Rule("file", "/etc/network_turbo"),)),
    Step("autodl", "none", (Rule("dir", "/root/autodl-tmp"),)),
    Step("autodl", "none", (Rule("env", "AutoDLRegion"),)),
    Step("runpod", "none", (Rule("env", "RUNPOD_DC_ID"),)),
    Step("vast", "none", (Rule("env", "VAST_CONTAINERLABEL"),)),
    Step("vast", "none", (Rule("env", "VAST_TCP_PORT_22"),)),
    Step("gpushare", "none", (Rule("dir", "/hy-public"),)),
    Step("gpushare", "none", (Rule("dir", "/hy-nas"),)),
    Step("matpool", "none", (Rule("dir", "/public/script"),)),
    Step("matpool", "none", (Rule("mount", "/mnt"),)),
)
