"""Checks that all ranks share --out and agree, and balances samples by tokens."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import torch.distributed as dist

from jhima.policy import Sample
from jhima.training.watchdog import everywhere, leave

# Seconds for a host to see a new file: NFS may remember for a minute that there was none.
PATIENCE = 90.0


# ---- one folder ----


def check_shared(out: Path) -> None:
    """Ends the run where a host does not see the `out` that rank 0 writes to.

    Episodes and optimizer shards of all ranks meet in that folder.
    """
    mark = out / "args.json"  # rank 0 has written it, or found it
    expected = everywhere(_stamp(mark))[0]
    deadline = time.monotonic() + PATIENCE
    while _stamp(mark) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    shared = _stamp(mark) == expected
    blind = sorted({host for host, sees in everywhere((socket.gethostname(), shared)) if not sees})
    if not blind:
        return
    if dist.get_rank() == 0:
        print(
            f"{out} is another folder on {', '.join(blind)} than where rank 0 runs; "
            "hosts must share --out, by NFS for example",
            file=sys.stderr,
            flush=True,
        )
    leave()
    sys.exit(1)


def _stamp(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None


def check_agreed(name: str, value: object) -> None:
    """Raises RuntimeError where `value` differs between ranks.

    Compared as text, in which NaN equals itself.
    """
    texts = everywhere(repr(value))
    odd = [rank for rank, text in enumerate(texts) if text != texts[0]]
    if odd:
        raise RuntimeError(
            f"ranks {odd} and rank 0 see different {name}: "
            "is --out on a file system that all hosts see alike?"
        )


# ---- equal work ----


def tokens(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.response_ids)


def balanced(played: list[list[Sample]]) -> list[list[Sample]]:
    """Deals samples to the ranks that train on them: loads differ by one sample's tokens at most.

    played: the samples by the rank that played them. Returns them by the rank that trains on them,
    each rank's longest first. A rank keeps what it played up to an equal share, for it has the
    screenshots' features; the rest goes, longest first, to the rank with the least load.
    """
    fair = sum(sum(map(tokens, own)) for own in played) / len(played)
    shares: list[list[Sample]] = [[] for _ in played]
    loads = [0] * len(played)
    rest = []
    for rank, own in enumerate(played):
        for sample in sorted(own, key=tokens, reverse=True):
            if loads[rank] + tokens(sample) <= fair:
                shares[rank].append(sample)
                loads[rank] += tokens(sample)
            else:
                rest.append(sample)
    for sample in sorted(rest, key=tokens, reverse=True):
        rank = loads.index(min(loads))
        shares[rank].append(sample)
        loads[rank] += tokens(sample)
    return [sorted(share, key=tokens, reverse=True) for share in shares]
