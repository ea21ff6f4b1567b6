"""How each platform is stopped, a row each. A platform without a row is never stopped from inside.

What a stop costs on (`billed_after_stop`) and how it is done by hand (`stop_path`) stand in box/platforms.py.
"""

from __future__ import annotations

from typing import NamedTuple


class Call(NamedTuple):
    """A command or a request; ``{id}`` and the like stand for the platform's values."""

    argv: tuple[str, ...] = ()
    as_root: bool = False  # by sudo, which must ask nothing, where we are not root
    method: str = ""
    url: str = ""
    body: str = ""  # JSON
    auth: str = ""  # the header Authorization
    says: str = ""  # a text that decides alone whether the answer is good; else status and JSON do
    names: str = ""  # the id that a good answer is about
    timeout: float = 30.0
    hide: str = ""  # the key, once it is known: never shown


class Way(NamedTuple):
    """One way to stop, and the read-only call that shows that it is open; without one, that the program is there."""

    name: str
    stop: Call
    proof: Call | None = None


class Value(NamedTuple):
    """Something that the calls need: from a variable, or from the machine's metadata server."""

    name: str
    variables: tuple[str, ...] = ()
    url: str = ""
    form: str = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
    prefix: str = ""  # is cut off


class Stop(NamedTuple):
    """How one platform is stopped, and what that means."""

    platform: str
    ways: tuple[Way, ...]  # in the order to try
    kind: str = "container"  # what platform.detect() must say, too
    confidence: str = "high"
    values: tuple[Value, ...] = ()
    ends: str = "the GPU"
    keeps: tuple[str, ...] = ("/",)  # what is still there afterwards, by mount point; "/" is everything
    destroys: bool = False
    settle: float = 120.0  # seconds that an accepted stop may take
    caution: str = ""  # what cannot be seen from inside


KEY = r"[!-~]{8,500}"
VAST = "https://console.vast.ai/api/v0/instances/{id}/"
RUNPOD = "https://rest.runpod.io/v1/pods/{id}"
LAMBDA = "https://cloud.lambda.ai/api/v1"
ALIYUN = "http://100.100.100.200/latest/meta-data"
TENCENT = "http://metadata.tencentyun.com/latest/meta-data"
ALIYUN_STOP = (
    *("aliyun", "ecs", "StopInstance", "--RegionId", "{region}", "--InstanceId", "{id}"),
    *("--StoppedMode", "StopCharging"),
)
TENCENT_WHICH = ("--region", "{region}", "--InstanceIds", '["{id}"]')

STOPS = {
    row.platform: row
    for row in (
        Stop(
            "autodl",
            (Way("the platform's own shutdown", Call(("/usr/bin/shutdown",), timeout=120)),),
            ends="compute",
            caution="a subscription box (包年包月) is billed on all the same",
        ),
        Stop(
            "vast",
            (
                # The API first: it is what the proof has shown to work, and needs nothing that a user may remove.
                Way(
                    "API",
                    Call(method="PUT", url=VAST, body='{"state": "stopped"}', auth="Bearer {key}"),
                    Call(method="GET", url=f"{VAST}?owner=me", auth="Bearer {key}", names="{id}"),
                ),
                Way(
                    "vastai",
                    # It ends with status 0 when the platform refuses, too: what it says decides.
                    Call(("vastai", "stop", "instance", "{id}", "--api-key", "{key}"), says="stopping instance {id}"),
                    Call(("vastai", "show", "instance", "{id}", "--raw", "--api-key", "{key}"), names="{id}"),
                ),
            ),
            values=(
                Value("id", ("CONTAINER_ID", "VAST_CONTAINERLABEL"), prefix="C.", form="[0-9]{1,20}"),
                Value("key", ("CONTAINER_API_KEY",), form=KEY),
            ),
        ),
        Stop(
            "runpod",
            (
                Way(
                    "API",
                    Call(method="POST", url=f"{RUNPOD}/stop", auth="Bearer {key}"),
                    Call(method="GET", url=RUNPOD, auth="Bearer {key}", names="{id}"),
                ),
                Way(
                    "runpodctl",
                    Call(("runpodctl", "pod", "stop", "{id}")),
                    Call(("runpodctl", "pod", "get", "{id}"), names="{id}"),
                ),
                Way(
                    "runpodctl, older",
                    Call(("runpodctl", "stop", "pod", "{id}")),
                    Call(("runpodctl", "get", "pod", "{id}"), names="{id}"),
                ),
            ),
            values=(Value("id", ("RUNPOD_POD_ID",)), Value("key", ("RUNPOD_API_KEY",), form=KEY)),
            ends="the GPU and the container disk, which is wiped",
            keeps=("/workspace",),
        ),
        Stop(
            "lambda",
            (
                Way(
                    "API",
                    Call(
                        method="POST",
                        url=f"{LAMBDA}/instance-operations/terminate",
                        body='{"instance_ids": ["{id}"]}',
                        auth="Basic {basic}",
                    ),
                    Call(method="GET", url=f"{LAMBDA}/instances", auth="Basic {basic}", names="{id}"),
                ),
            ),
            kind="vm",
            # A folder alone names it; the proof finds this very machine in the account's list.
            confidence="medium",
            values=(Value("key", ("LAMBDA_API_KEY", "LAMBDA_CLOUD_API_KEY"), form=KEY),),
            ends="everything but file systems",
            keeps=("/lambda/nfs/*",),
            destroys=True,
        ),
        Stop(
            "aliyun",
            (
                Way(
                    "aliyun",
                    Call(ALIYUN_STOP),
                    Call((*ALIYUN_STOP, "--DryRun", "true"), says="DryRunOperation"),
                ),
            ),
            kind="vm",
            values=(Value("id", url=f"{ALIYUN}/instance-id"), Value("region", url=f"{ALIYUN}/region-id")),
            ends="compute",
            caution="ignored for classic-network, local-disk and subscription instances; the IP address may change",
        ),
        Stop(
            "tencent",
            (
                Way(
                    "tccli",
                    Call(("tccli", "cvm", "StopInstances", *TENCENT_WHICH, "--StoppedMode", "STOP_CHARGING")),
                    Call(("tccli", "cvm", "DescribeInstances", *TENCENT_WHICH), names="{id}"),
                ),
            ),
            kind="vm",
            values=(Value("id", url=f"{TENCENT}/instance-id"), Value("region", url=f"{TENCENT}/placement/region")),
            ends="compute",
            caution="whether the role's policy allows the stop shows only then; the IP address is released",
        ),
        Stop(
            "aws",
            (Way("shutdown", Call(("shutdown", "-h", "now"), as_root=True), Call(("true",), as_root=True)),),
            kind="vm",
            ends="compute",
            caution="an instance that is set to terminate on shutdown, and a one-time spot one, is destroyed by it",
        ),
    )
}
