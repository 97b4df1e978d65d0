"""A run over two hosts: two network namespaces with their own loopback, and a cable between them.

With deepspeed's launchers too (pdsh needs pdsh and sshd):

    LAUNCHERS="no_ssh pdsh" python -m pytest tests/training/test_two_hosts.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from samples import ROOT, free_port

ADDRESSES = "10.213.7.1", "10.213.7.2"
SCRIPT = (
    "train_rl.py --decomposer jhima/pocket/base --actor jhima/pocket/base --K 2 --M 2 --T 2 "
    "--plan-tokens 8 --action-tokens 8 --lora-rank 4 --lora-alpha 8 --tasks-per-batch 2 "
    "--limit-batches 2"
).split()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts():
    """The names of two namespaces."""
    names = [f"jhima{os.getpid()}{side}" for side in "ab"]
    with ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            cable = f"link add cable netns {names[0]} type veth peer name cable netns {names[1]}"
            ip(*cable.split())
            for name, address in zip(names, ADDRESSES):
                for words in (
                    f"addr add {address}/24 dev cable",
                    "link set cable up",
                    "link set lo up",
                ):
                    ip("-n", name, *words.split())
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("network namespaces are not permitted here")
        yield names


@contextmanager
def logins(hosts, folder: Path):
    """An ssh server on each host, with keys of its own; yields ssh's options that find them."""
    for name in {"host", "user"} - {
        path.name for path in folder.iterdir()
    }:  # the second launch finds them
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    (folder / "sshd").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
        "PidFile none\nUsePAM no\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    servers = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, "/usr/sbin/sshd", "-D", "-f", folder / "sshd"]
        )
        for name in hosts
    ]
    try:
        options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        yield f"-i {folder}/user {options}"
    finally:
        for server in servers:
            server.terminate()
            server.wait()


@contextmanager
def launch(launcher: str, hosts, folder: Path, out: Path, log: Path):
    """Starts the run as its users would: once per host or, with pdsh, once.

    Yields the launchers' processes.
    """
    port, script = str(free_port()), [*SCRIPT, "--out", str(out)]
    # What a host calls itself has no address on the cable; real hosts' names do.
    env = os.environ | {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
    (folder / "hostfile").write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))
    with ExitStack() as stack:
        file = stack.enter_context(open(log, "a"))
        if launcher == "torchrun":
            # The first host is told that it is the endpoint's, which it would see from its name.
            commands = [
                [
                    "torch.distributed.run",
                    "--nnodes",
                    "2",
                    "--nproc-per-node",
                    "1",
                    "--rdzv-backend",
                    "c10d",
                    "--rdzv-endpoint",
                    f"{ADDRESSES[0]}:{port}",
                    "--rdzv-conf",
                    f"is_host={address == ADDRESSES[0]}",
                    "--local-addr",
                    address,
                ]
                for address in ADDRESSES
            ]
        else:
            deepspeed = [
                "deepspeed.launcher.runner",
                "--hostfile",
                str(folder / "hostfile"),
                "--master_addr",
                ADDRESSES[0],
                "--master_port",
                port,
            ]
            commands = [[*deepspeed, "--no_ssh", "--node_rank", str(number)] for number in range(2)]
            if launcher == "pdsh":
                commands = [[*deepspeed, "--no_ssh_check"]]
                env["PDSH_SSH_ARGS_APPEND"] = stack.enter_context(logins(hosts, folder))
                env["DS_ENV_FILE"] = str(folder / "env")  # ssh passes no variables on
                (folder / "env").write_text(
                    "".join(
                        f"{name}={env[name]}\n"
                        for name in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
                    )
                )
        jobs = [
            subprocess.Popen(
                ["ip", "netns", "exec", host, sys.executable, "-m", *command, *script],
                cwd=ROOT,
                env=env,
                stdout=file,
                stderr=file,
            )
            for host, command in zip(hosts, commands)
        ]
        try:
            yield jobs
        finally:
            for job in jobs:
                job.terminate()  # the launchers end what they have started
                job.wait(60)


@pytest.mark.parametrize("launcher", ["torchrun", *os.environ.get("LAUNCHERS", "").split()])
def test_two_hosts_are_one_job(launcher, hosts, tmp_path):
    """Both play and train a batch; then the second host's rank is killed.

    Its launcher ends, and so does the first host's, which only our watchdog tells: torchrun's
    agents do not tell each other. Then the same command resumes.
    """
    if launcher == "pdsh" and not (shutil.which("pdsh") and Path("/usr/sbin/sshd").exists()):
        pytest.skip("no pdsh, or no sshd")
    out, log = tmp_path / "run", tmp_path / "log"
    with launch(launcher, hosts, tmp_path, out, log) as jobs:
        deadline = time.monotonic() + 120
        while not list(out.glob("rollouts/000001/*/*/episode.json")):
            assert time.monotonic() < deadline and all(job.poll() is None for job in jobs), (
                log.read_text()[-3000:]
            )
            time.sleep(0.05)
        victim = next(
            p
            for p in psutil.process_iter(["cmdline", "environ"])
            if str(out) in (p.info["cmdline"] or ())
            and (p.info["environ"] or {}).get("RANK") == "1"
        )
        victim.kill()
        began = time.monotonic()
        assert all(job.wait(40) for job in jobs), log.read_text()[-3000:]
        print(f"{launcher}: ended after {time.monotonic() - began:.1f} s")
    assert f"rank 1 (process {victim.pid} on " in log.read_text()
    assert json.loads((out / "state.json").read_text()) == {"batches": 1, "processes": 2}
    played = {
        json.loads(path.read_text())["task_id"]
        for path in out.glob("rollouts/000000/*/*/episode.json")
    }
    assert len(played) == 2  # a task each
    if "LAUNCHERS" in os.environ:
        with launch(launcher, hosts, tmp_path, out, log) as jobs:
            assert [job.wait(150) for job in jobs] == [0] * len(jobs), log.read_text()[-3000:]
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 4
