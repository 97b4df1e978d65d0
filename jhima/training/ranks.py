"""Several ranks, one run: a folder that all of them see, and equal work."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from jhima.policy import Sample
from jhima.training.watchdog import everywhere, leave

PATIENCE = (
    90.0  # seconds for a host to see a new file: NFS may remember for a minute that there was none
)


# ---- one folder ----


def check_shared(out: Path) -> None:
    """Ends the run where a host does not see the `out` that rank 0 writes to: episodes and optimizer shards meet there."""
    mark = out / "args.json"  # which rank 0 has written, or found
    expected = everywhere(_stamp(mark))[0]
    deadline = time.monotonic() + PATIENCE
    while not (seen := _stamp(mark) == expected) and time.monotonic() < deadline:
        time.sleep(0.5)
    blind = {host for host, sees in everywhere((socket.gethostname(), seen)) if not sees}
    if blind:
        if dist.get_rank() == 0:
            print(
                f"{out} is another folder on {', '.join(sorted(blind))} than where rank 0 runs; hosts must share --out, "
                f"by NFS for example",
                file=sys.stderr,
                flush=True,
            )
        leave()
        sys.exit(1)


def _stamp(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None


def check_agreed(what: str, value: object) -> None:
    """Ends the run where `value` differs between ranks. Compared as text, in which NaN equals itself."""
    found = everywhere(repr(value))
    odd = [rank for rank, text in enumerate(found) if text != found[0]]
    if odd:
        raise RuntimeError(
            f"ranks {odd} and rank 0 see different {what}: is --out on a file system that all hosts see alike?"
        )


# ---- equal work ----


def tokens(s: Sample) -> int:
    return len(s.prompt_ids) + len(s.response_ids)


def balanced(played: Sequence[Sequence[Sample]]) -> list[list[Sample]]:
    """Samples by the rank that played them -> by the rank that trains on them, equal in tokens: the loads differ by a
    sample at most.

    A rank keeps what it played up to an equal share, for it has the screenshots' features; the rest goes to the least
    loaded, longest first. Each rank's lie in order of length.
    """
    fair = sum(tokens(s) for own in played for s in own) / len(played)
    shares, load, rest = [[] for _ in played], [0] * len(played), []

    def give(s: Sample, rank: int) -> None:
        shares[rank].append(s)
        load[rank] += tokens(s)

    for rank, own in enumerate(played):
        for s in sorted(own, key=tokens, reverse=True):
            if load[rank] + tokens(s) <= fair:
                give(s, rank)
            else:
                rest.append(s)
    for s in sorted(rest, key=tokens, reverse=True):
        give(s, load.index(min(load)))
    return [sorted(share, key=tokens, reverse=True) for share in shares]
