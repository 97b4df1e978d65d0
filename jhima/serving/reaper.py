"""Kills what a process has started and left behind, once that process is gone; deletes its files.

    python -m jhima.serving.reaper PID FOLDER

Its standard input is a pipe that process PID holds open until it ends, however it ends. vLLM's
engine outlives a parent that is killed and keeps its GPU memory (vllm-project/vllm#55510), so that
the same command could not resume. Browsers, drivers and the pocket sites end by themselves.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_running: list[subprocess.Popen] = []

EVERY = 2.0  # seconds between looks at what there is to kill


@cache
def start() -> Path:
    """From now on, this process's children, and theirs, are killed after it.

    Returns a folder for its small files, which is deleted then.
    """
    folder = Path(tempfile.mkdtemp(prefix="jhima-"))
    command = [sys.executable, "-m", "jhima.serving.reaper", str(os.getpid()), str(folder)]
    code = Path(__file__).resolve().parents[2]
    # The pipe stays open as long as this process: _running holds it.
    pipe = subprocess.PIPE
    _running.append(subprocess.Popen(command, stdin=pipe, cwd=code, start_new_session=True))
    return folder


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
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
