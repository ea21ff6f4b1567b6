"""The rental platforms as data, a row each: how it is stopped, billed and saved. How it is recognised: signs.py."""

from __future__ import annotations

from typing import NamedTuple

# Where a machine of no known layout may have a second disk.
DATA_PATHS = ("/workspace", "/data", "/data[0-9]", "/mnt", "/mnt/*", "/media/*", "/scratch")


class Row(NamedTuple):
    """What is known of one platform; an empty text means that it does not apply."""

    id: str
    name: str
    name_zh: str
    kind: str  # container, vm, slurm, wsl, apptainer or unknown
    data_paths: tuple[str, ...] = DATA_PATHS  # where data disks are mounted, best first; * stands for one folder's name
    no_gpu_memory: int | None = None  # a memory limit up to this is the platform's mode without a GPU
    stop_path: str = "not known: stop it by hand, and see in the console that it stopped"
    billed_after_stop: str = "unknown"
    release_clock: str = "unknown"
    image_limit_gb: float | None = None
    saves: str = "unknown"
    save_steps_en: tuple[str, ...] = ("Look for a saved or custom image in the platform's console.",)
    save_steps_zh: tuple[str, ...] = ("在平台控制台查找“保存镜像”或“自定义镜像”。",)


ROWS = {
    row.id: row
    for row in (
        Row(
            "autodl",
            "AutoDL",
            "AutoDL 算力云",
            "container",
            data_paths=("/root/autodl-tmp", "/root/autodl-fs"),
            no_gpu_memory=3 << 30,
            stop_path="/usr/bin/shutdown (full path, no arguments; not on subscription boxes, 包年包月)",
            billed_after_stop="the paid part of the data disk; file storage over 20 GB",
            release_clock="15 days after power-off the box is released and its data gone",
            image_limit_gb=30,
            saves="the system disk only; not /root/autodl-tmp, /root/autodl-fs, /root/autodl-pub",
            save_steps_en=(
                "Copy what must outlive the box out of /root/autodl-tmp: no image holds it.",
                "Power off: /usr/bin/shutdown, or 关机 in the console. It saves only while off.",
                "In the console, choose 保存镜像 (save image) for this instance.",
                "30 GB are free for all your images together; changing the image resets the system disk.",
            ),
            save_steps_zh=(
                "先备份 /root/autodl-tmp 中的数据：镜像不包含数据盘。",
                "关机：执行 /usr/bin/shutdown，或在控制台点击“关机”。只有关机后才能保存镜像。",
                "在控制台该实例处选择“保存镜像”。",
                "所有镜像合计免费 30 GB；更换镜像会重置系统盘。",
            ),
        ),
        Row(
            "matpool",
            "Matpool",
            "矩池云",
            "container",
            data_paths=("/mnt",),
            stop_path="none inside: stop it in the console, or at home with `matpool stop NODE` (unofficial)",
            billed_after_stop="the net disk",
            release_clock="no fixed day is known; at release /root is lost",
            image_limit_gb=5,
            saves="the environment, as a .snap on the net disk; not /mnt",
            save_steps_en=(
                "See that the net disk (5 GB free, snapshots included) has room for it.",
                "In the console, choose 保存环境 (save environment) while the node runs.",
                "Look in the console whether it was saved: a failed save leaves the node running and billed.",
            ),
            save_steps_zh=(
                "确认网盘（免费 5 GB，快照计入其中）空间足够。",
                "节点运行时，在控制台选择“保存环境”。",
                "在控制台确认保存成功：保存失败时节点会继续运行并计费。",
            ),
        ),
        Row(
            "gpushare",
            "GpuShare",
            "恒源云",
            "container",
            data_paths=("/hy-tmp", "/hy-nas", "/hy-netdisk"),
            stop_path="no way inside is proven: stop it in the console (timed: 定时关机)",
            release_clock="10 days after power-off; /hy-tmp is wiped 24 hours after power-off",
            saves="a private image (what it holds is not documented); /hy-tmp is a disk of its own",
            save_steps_en=(
                "Copy data off /hy-tmp with `oss cp`: it is wiped 24 hours after power-off.",
                "In the console, save the instance as a private image.",
            ),
            save_steps_zh=(
                "用 oss cp 备份 /hy-tmp 中的数据：关机 24 小时后会被清空。",
                "在控制台把该实例保存为私有镜像。",
            ),
        ),
        Row(
            "vast",
            "Vast.ai",
            "Vast.ai",
            "container",
            stop_path='vastai stop instance "$CONTAINER_ID" --api-key "$CONTAINER_API_KEY"',
            billed_after_stop="the disk, until the instance is destroyed",
            release_clock="48 hours after the instance's expiry; a stopped one stays and is billed for its disk",
            saves="the container, pushed to your own registry; no volumes",
            save_steps_en=(
                "At home: vastai take snapshot ID --repo REPOSITORY --docker_login_user U --docker_login_pass P",
                "It goes to your own registry: Vast.ai stores no images.",
            ),
            save_steps_zh=(
                "在本地执行：vastai take snapshot ID --repo 仓库 --docker_login_user U --docker_login_pass P",
                "镜像会推送到你自己的镜像仓库：Vast.ai 不保存镜像。",
            ),
        ),
        Row(
            "runpod",
            "RunPod",
            "RunPod",
            "container",
            data_paths=("/workspace",),
            stop_path='runpodctl pod stop "$RUNPOD_POD_ID" (older: runpodctl stop pod); the container disk is wiped',
            billed_after_stop="the volume disk, at double the running rate",
            release_clock="none while there is balance; at balance 0 pods without a network volume are terminated",
            saves="nothing: RunPod saves no image; /workspace stays when the pod stops",
            save_steps_en=(
                "Build the image at home and push it to a registry.",
                "In the console, make a template of it.",
            ),
            save_steps_zh=("在本地构建镜像并推送到镜像仓库。", "在控制台用该镜像创建模板（template）。"),
        ),
        Row(
            "lambda",
            "Lambda",
            "Lambda",
            "vm",
            data_paths=("/lambda/nfs/*", "/home/ubuntu/*"),
            stop_path="none: Lambda only terminates, which destroys the root disk; a power-off may keep billing",
            billed_after_stop="persistent file systems",
            release_clock="none",
            saves="nothing: Lambda saves no image; file systems under /lambda/nfs stay",
            save_steps_en=("Keep what must stay under /lambda/nfs, and set up the next instance anew.",),
            save_steps_zh=("把需要保留的内容放在 /lambda/nfs 下；新实例需重新配置环境。",),
        ),
        Row(
            "aliyun",
            "Alibaba Cloud ECS",
            "阿里云 ECS",
            "vm",
            stop_path=(
                "aliyun ecs StopInstance --InstanceId i-ID --StoppedMode StopCharging"
                " (a plain shutdown may keep billing)"
            ),
            billed_after_stop="disks and the fixed IP address",
            saves="a custom image: a snapshot of the disks, billed per GB",
            save_steps_en=("In the ECS console, choose 创建自定义镜像 (create custom image) for this instance.",),
            save_steps_zh=("在 ECS 控制台该实例处选择“创建自定义镜像”。",),
        ),
        Row(
            "aliyun-pai-dsw",
            "Alibaba Cloud PAI-DSW",
            "阿里云 PAI-DSW",
            "container",
            stop_path="no way inside is known: the console, or the PAI-DSW API's StopInstance",
            saves="the instance's image, by console or API",
            save_steps_en=("In the PAI console, save the instance's image, or stop it with the option SaveImage.",),
            save_steps_zh=("在 PAI 控制台保存该实例的镜像，或在停止时选择保存镜像。",),
        ),
        Row(
            "tencent",
            "Tencent Cloud CVM",
            "腾讯云 CVM",
            "vm",
            stop_path=(
                "tccli cvm StopInstances --InstanceIds '[\"ins-ID\"]' --StoppedMode STOP_CHARGING"
                " (a plain shutdown may keep billing)"
            ),
            billed_after_stop="disks, bandwidth and images",
            saves="a custom image",
            save_steps_en=("In the CVM console, choose 制作镜像 (create image) for this instance.",),
            save_steps_zh=("在云服务器控制台该实例处选择“制作镜像”。",),
        ),
        Row(
            "huawei",
            "Huawei Cloud ECS",
            "华为云 ECS",
            "vm",
            stop_path="the console, or the API's os-stop; whether a shutdown inside counts is not documented",
            billed_after_stop="disks and the fixed IP address; everything for local-disk, P1, P2 and bare-metal types",
            saves="a custom image",
            save_steps_en=("In the ECS console, choose 创建镜像 (create image) for this instance.",),
            save_steps_zh=("在弹性云服务器控制台该实例处选择“创建镜像”。",),
        ),
        Row(
            "aws",
            "AWS EC2",
            "AWS EC2",
            "vm",
            stop_path="sudo shutdown -h now (unless the instance is set to terminate on shutdown)",
            billed_after_stop="EBS disks",
            release_clock="none",
            saves="an AMI: a snapshot of the EBS disks, billed per GB",
            save_steps_en=("In the EC2 console, choose Create image for this instance.",),
            save_steps_zh=("在 EC2 控制台该实例处选择“创建映像”（Create image）。",),
        ),
        Row(
            "slurm",
            "Slurm",
            "Slurm 集群",
            "slurm",
            stop_path="end the job: exit, or scancel $SLURM_JOB_ID; never power a node off",
            billed_after_stop="",
            release_clock="",
            saves="nothing: a job has no image",
            save_steps_en=("Build the .sif elsewhere: apptainer build box.sif docker://IMAGE",),
            save_steps_zh=("在别处构建 .sif：apptainer build box.sif docker://镜像",),
        ),
        Row(
            "apptainer",
            "Apptainer / Singularity",
            "Apptainer / Singularity",
            "apptainer",
            stop_path="leave the container: exit; never power a node off",
            billed_after_stop="",
            release_clock="",
            saves="nothing: the .sif is read-only",
            save_steps_en=("Build the .sif elsewhere: apptainer build box.sif docker://IMAGE",),
            save_steps_zh=("在别处构建 .sif：apptainer build box.sif docker://镜像",),
        ),
        Row(
            "wsl",
            "WSL",
            "WSL（适用于 Linux 的 Windows 子系统）",
            "wsl",
            data_paths=(),
            stop_path="in Windows: wsl --shutdown; this is nobody's rented machine",
            billed_after_stop="",
            release_clock="",
            saves="the distribution, exported from Windows",
            save_steps_en=("In Windows: wsl --export NAME FILE.tar",),
            save_steps_zh=("在 Windows 中执行：wsl --export 名称 文件.tar",),
        ),
        Row("lanyun", "LanYun", "蓝耘", "container", stop_path="no way inside is known: stop it in the console"),
        Row("unknown", "unknown", "未知", "unknown"),
    )
}
