"""Kills what a process has started and left behind, once that process is gone.

    python -m jhima.serving.reaper PID

Its standard input is a pipe that process PID holds open until it ends, however it ends. vLLM's
engine outlives a parent that is killed and keeps its GPU memory (vllm-project/vllm#55510), so that
the same command could not resume. Browsers, drivers and the pocket sites end by themselves.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

EVERY = 2.0  # seconds between looks at what there is to kill

_reapers: list[subprocess.Popen] = []  # at most one per process


def start() -> None:
    """From now on, this process's children, and theirs, are killed after it."""
    if not _reapers:
        command = [sys.executable, "-m", "jhima.serving.reaper", str(os.getpid())]
        folder = Path(__file__).resolve().parents[2]
        pipe = subprocess.PIPE
        _reapers.append(subprocess.Popen(command, stdin=pipe, cwd=folder, start_new_session=True))


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher's, which is for the others
    parent = psutil.Process(int(sys.argv[1]))
    gone, children = False, []
    while not gone:
        with suppress(psutil.NoSuchProcess):
            children = parent.children(recursive=True) or children
        gone = bool(select.select([sys.stdin], [], [], EVERY)[0])
    for child in children:
        with suppress(psutil.NoSuchProcess):  # psutil notices a number that was given out again
            if child.pid != os.getpid():
                child.kill()


if __name__ == "__main__":
    main()
