"""Random access to JSON-lines files by byte offset, and the grouping of their steps into trajectories.

2.5 million samples are tens of gigabytes of text: a run keeps 8 bytes a line in memory and reads a line when it is
its turn. The one pass over a file that this takes is kept beside it (FILE.index.npz), where the folder allows it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

VERSION, CHUNK = 1, 1 << 26

# What tells where a line belongs: (folder, task, number of previous operations), or the reason why it is no step.
Describe = Callable[[bytes], tuple[str, str, int] | str]


class Lines:
    """The non-empty lines of one file: len(lines), lines[i] -> bytes. With `describe`, also their trajectories.

    A trajectory is the steps of one folder and one task; a step number that comes again begins another. Its key is
    the folder, with #2, #3, ... for the second and later ones of a folder. Steps are ordered by number, wherever they
    stand in the file. Raises ValueError for a file that is missing, or a .json that holds no list.
    """

    def __init__(self, path: Path, describe: Describe | None = None) -> None:
        self.path = path
        self._rows: list[bytes] | None = None
        if path.suffix == ".json":  # a JSON list: small ones exist; it is held in memory
            self._rows = _rows(path)
        try:
            status = path.stat()
        except OSError:
            raise ValueError(f"{path}: no such file; expected JSON lines") from None
        self._size = status.st_size
        stamp = np.array([VERSION, status.st_size, status.st_mtime_ns, describe is not None])
        kept = path.with_name(path.name + ".index.npz")
        found = _load(kept, stamp)
        if found is None:
            starts = np.zeros(0, np.int64) if self._rows is not None else _starts(path)
            found = {"stamp": stamp, "starts": starts}
            self.starts = starts
            if describe is not None:
                found |= _group(self, describe)
            _save(kept, found)
        self.starts: NDArray[np.int64] = found["starts"]  # [n]
        self.trajectory = found.get("trajectory", np.zeros(0, np.int32))  # [n]; -1: no step
        self.step = found.get("step", np.zeros(0, np.int16))  # [n]
        self.keys: list[str] = json.loads(found["keys"].tobytes()) if "keys" in found else []
        self.left_out = Counter(
            json.loads(found["left_out"].tobytes()) if "left_out" in found else {}
        )

    def __len__(self) -> int:
        return len(self.starts) if self._rows is None else len(self._rows)

    def __getitem__(self, i: int) -> bytes:
        if self._rows is not None:
            return self._rows[i]
        start = int(self.starts[i])
        end = int(self.starts[i + 1]) if i + 1 < len(self.starts) else self._size
        return os.pread(self._file, end - start, start)  # no shared position: safe after a fork

    @cached_property
    def _file(self) -> int:
        return os.open(self.path, os.O_RDONLY)

    def steps(self, trajectory: int) -> NDArray[np.int64]:
        """The line numbers of a trajectory, in the order of its steps."""
        return self._order[self._bounds[trajectory] : self._bounds[trajectory + 1]]

    def firsts(self) -> NDArray[np.int64]:
        """The line number of each trajectory's first step."""
        return self._order[self._bounds[:-1]]

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.lexsort((self.step, self.trajectory))

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        return np.searchsorted(self.trajectory, np.arange(len(self.keys) + 1), sorter=self._order)


def _rows(path: Path) -> list[bytes]:
    try:
        rows = json.loads(path.read_text("utf-8"))
    except OSError:
        raise ValueError(f"{path}: no such file; expected a JSON list of samples") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected a JSON list of samples: {error}") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a JSON list of samples, found {type(rows).__name__}")
    return [json.dumps(row).encode() for row in rows]


def _starts(path: Path) -> NDArray[np.int64]:
    """The offset of each line that is not empty."""
    found, at = [np.zeros(1, np.int64)], 0
    with (
        path.open("rb") as file,
        tqdm(
            total=path.stat().st_size, unit="B", unit_scale=True, desc=f"index {path.name}", delay=2
        ) as bar,
    ):
        while chunk := file.read(CHUNK):
            found.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + (at + 1))
            at += len(chunk)
            bar.update(len(chunk))
    starts = np.concatenate(found)
    return starts[
        np.diff(np.append(starts, at)) > 2
    ]  # "\n" and "\r\n" are no lines; nor is the end


def _group(lines: Lines, describe: Describe) -> dict[str, NDArray]:
    trajectory, step = np.full(len(lines), -1, np.int32), np.zeros(len(lines), np.int16)
    current: dict[
        tuple[str, str], int
    ] = {}  # the trajectory of a folder and task that is still growing
    seen: list[int] = []  # its step numbers, a bit each
    keys: list[str] = []
    of_folder: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    for i in tqdm(range(len(lines)), desc=f"trajectories {lines.path.name}", unit="line", delay=2):
        place = describe(lines[i])
        if isinstance(place, str):
            left_out[place] += 1
            continue
        folder, task, number = place
        at = current.get((folder, task))
        if at is None or seen[at] >> number & 1:
            at = current[folder, task] = len(keys)
            seen.append(0)
            count = of_folder[folder] = of_folder.get(folder, 0) + 1
            keys.append(folder if count == 1 else f"{folder}#{count}")
        seen[at] |= 1 << number
        trajectory[i], step[i] = at, number
    keys, left_out = (np.frombuffer(json.dumps(v).encode(), np.uint8) for v in (keys, left_out))
    return {"trajectory": trajectory, "step": step, "keys": keys, "left_out": left_out}


def _load(path: Path, stamp: NDArray[np.int64]) -> dict[str, NDArray] | None:
    """An index that was kept, unless the file has changed since; a damaged one is made again."""
    try:
        with np.load(path) as kept:
            return dict(kept) if np.array_equal(kept["stamp"], stamp) else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _save(path: Path, found: dict[str, NDArray]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # several ranks may write at once
    try:
        with part.open("wb") as file:
            np.savez(file, **found)
        part.replace(path)
    except OSError:  # data on a read-only disk: it is indexed at every start
        part.unlink(missing_ok=True)
