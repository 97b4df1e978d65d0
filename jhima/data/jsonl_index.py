"""Random access to JSON-lines files by byte offset; their steps grouped into trajectories.

2.5 million samples are tens of gigabytes of text, so a run keeps only 8 bytes per line in memory
and reads a line when its turn comes. This takes one pass over a file, whose result is kept beside
it (FILE.index.npz) where the folder can be written.
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

# From a line to where it belongs: (folder, task, number of previous operations), or the reason
# why it is no step.
Describe = Callable[[bytes], tuple[str, str, int] | str]
Arrays = dict[str, NDArray]  # an index, as it is kept


class Lines:
    """The non-empty lines of one file: len(lines), lines[i] -> bytes.

    With `describe`, also their trajectories. A trajectory is the steps of one folder and one task;
    a step number that occurs again begins another one. Its key is the folder, with #2, #3, ... for
    later trajectories of the same folder. Steps are ordered by number, wherever they stand in the
    file. Raises ValueError for a file that is missing, or a .json that holds no list.
    """

    def __init__(self, path: Path, describe: Describe | None = None) -> None:
        self.path = path
        self._rows: list[bytes] | None = None
        if path.suffix == ".json":  # a JSON list: these are small, and held in memory
            self._rows = _rows(path)
        try:
            status = path.stat()
        except OSError:
            raise ValueError(f"{path}: no such file; expected JSON lines") from None
        self._size = status.st_size
        stamp = np.array([VERSION, status.st_size, status.st_mtime_ns, describe is not None])
        index_path = path.with_name(path.name + ".index.npz")
        arrays = _load(index_path, stamp)
        if arrays is not None:
            self.starts: NDArray[np.int64] = arrays["starts"]  # [n]
        else:
            self.starts = np.zeros(0, np.int64) if self._rows is not None else _starts(path)
            arrays = {"stamp": stamp, "starts": self.starts}
            if describe is not None:
                arrays |= _group(self, describe)
            _save(index_path, arrays)
        self.trajectory = arrays.get("trajectory", np.zeros(0, np.int32))  # [n]; -1: no step
        self.step = arrays.get("step", np.zeros(0, np.int16))  # [n]
        self.keys: list[str] = _unpacked(arrays, "keys") or []
        self.left_out: Counter[str] = Counter(_unpacked(arrays, "left_out"))

    def __len__(self) -> int:
        return len(self.starts if self._rows is None else self._rows)

    def __getitem__(self, i: int) -> bytes:
        if self._rows is not None:
            return self._rows[i]
        start, end = int(self.starts[i]), self._size
        if i + 1 < len(self.starts):
            end = int(self.starts[i + 1])
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


def read_json(path: Path, expected: str) -> object:
    """The JSON value in a file. Raises ValueError, which says what was expected there."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError:
        raise ValueError(f"{path}: no such file; expected {expected}") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON: {error}") from None


def _rows(path: Path) -> list[bytes]:
    rows = read_json(path, "a JSON list of samples")
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a JSON list of samples, got {type(rows).__name__}")
    return [json.dumps(row).encode() for row in rows]


def _starts(path: Path) -> NDArray[np.int64]:
    """The offset of each line that is not empty."""
    parts, end, size = [np.zeros(1, np.int64)], 0, path.stat().st_size
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=f"index {path.name}", delay=2)
    with path.open("rb") as file, bar:
        while chunk := file.read(CHUNK):
            newlines = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            parts.append(newlines + (end + 1))
            end += len(chunk)
            bar.update(len(chunk))
    starts = np.concatenate(parts)
    lengths = np.diff(np.append(starts, end))
    return starts[lengths > 2]  # "\n" and "\r\n" are no lines; nor is the end


def _group(lines: Lines, describe: Describe) -> Arrays:
    """Which trajectory and step each line is, the trajectories' keys, and what was left out."""
    trajectory, step = np.full(len(lines), -1, np.int32), np.zeros(len(lines), np.int16)
    growing: dict[tuple[str, str], int] = {}  # the latest trajectory of each folder and task
    numbers: list[int] = []  # each trajectory's step numbers, as bits
    keys: list[str] = []
    per_folder: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for i in tqdm(range(len(lines)), desc=f"trajectories {lines.path.name}", unit="line", delay=2):
        description = describe(lines[i])
        if isinstance(description, str):
            left_out[description] += 1
            continue
        folder, task, number = description
        current = growing.get((folder, task))
        if current is None or numbers[current] >> number & 1:
            current = growing[folder, task] = len(keys)
            per_folder[folder] += 1
            count = per_folder[folder]
            keys.append(folder if count == 1 else f"{folder}#{count}")
            numbers.append(0)
        numbers[current] |= 1 << number
        trajectory[i], step[i] = current, number
    arrays = {"trajectory": trajectory, "step": step}
    return arrays | {"keys": _packed(keys), "left_out": _packed(left_out)}


def _packed(value: object) -> NDArray[np.uint8]:
    """JSON as an array, so that nothing in the kept file has to be unpickled."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _unpacked(arrays: Arrays, name: str) -> object:
    return json.loads(arrays[name].tobytes()) if name in arrays else None


def _load(path: Path, stamp: NDArray[np.int64]) -> Arrays | None:
    """A kept index; None if there is none, it is damaged, or the file has changed since."""
    try:
        with np.load(path) as kept:
            return dict(kept) if np.array_equal(kept["stamp"], stamp) else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _save(path: Path, arrays: Arrays) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # several ranks may write at once
    try:
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)
    except OSError:  # data on a read-only disk: it is indexed at every start
        part.unlink(missing_ok=True)
