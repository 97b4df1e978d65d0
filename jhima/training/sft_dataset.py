"""What stage 2 learns from: samples as examples, their order over the epochs, and the packs of each step.

`Supervision` is a torch data set: a number gives an Example, or the reason why that sample cannot be one. Nothing is
held but line numbers; a sample is read, decoded and tokenised in a data worker when it is its turn. Which samples make
up a step follows from the seed and the step's number alone, so that a run resumes in mid-epoch by counting.
"""

from __future__ import annotations

import io
import math
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from jhima.data.platforms import system_turn
from jhima.data.scalecua import (
    MIN_SIDE,
    Annotation,
    Broken,
    DataSet,
    Row,
    in_grammar,
    read_row,
    read_step,
    trajectory_keys,
)
from jhima.data.stored_coordinates import boxes_in_place, boxes_to_json, to_pixels
from jhima.models.vision import decode, image_key
from jhima.policy import Policy
from jhima.prompts import read_plan
from jhima.training.packing import Example, Pack, Picture, pack


class Supervision(Dataset):
    """The samples of a role (eqs. 3 and 4).

    decomposer: (x, o_0) -> d, one for each annotated trajectory. actor: (x, o_t, h_t, d) -> a_t, one for each step of
    annotated trajectories (annotations None: of all, without d), and everything else that the data sets hold.

    held_back: the share of trajectories, and of samples that belong to none, that only evaluation sees. `part`:
    "train" or "held back". `left_out` counts what is missing from the start; samples that turn out broken when they
    are read are counted by who reads them. Holds 8 bytes a sample.
    """

    def __init__(
        self,
        policy: Policy,
        data_sets: list[DataSet],
        annotations: dict[str, Annotation] | None,
        role: str,
        held_back: float = 0.0,
        part: str = "train",
        max_length: int = 30720,
    ) -> None:
        self.policy, self.data_sets, self.annotations, self.role = (
            policy,
            data_sets,
            annotations,
            role,
        )
        self.max_length, self.left_out = max_length, Counter()
        self._keys = [trajectory_keys(d) for d in data_sets]
        where, line = [], []
        for number, data_set in enumerate(data_sets):
            found = self._numbers(data_set, self._keys[number], held_back, part)
            where.append(np.full(len(found), number, np.int32))
            line.append(found.astype(np.int32))
        self._where: NDArray[np.int32] = np.concatenate(
            where or [np.zeros(0, np.int32)]
        )  # [N]: which data set
        self._line: NDArray[np.int32] = np.concatenate(
            line or [np.zeros(0, np.int32)]
        )  # [N]: which line of it

    def _numbers(
        self, data_set: DataSet, keys: list[str], held_back: float, part: str
    ) -> NDArray[np.int64]:
        """The lines of one data set that are samples."""
        lines, steps = data_set.lines, data_set.style.kind == "step"
        if self.role == "decomposer" and not steps:
            return np.zeros(0, np.int64)
        units = len(keys) if steps else len(lines)  # what is held back as a whole
        chosen = np.zeros(units, bool)
        order = np.random.default_rng(zlib.crc32(data_set.name.encode())).permutation(units)
        chosen[order[: round(held_back * units)]] = True
        chosen = chosen if part == "held back" else ~chosen
        if not steps:
            return data_set.numbers(units)[chosen[data_set.numbers(units)]]
        annotated = np.array(
            [self.annotations is None or key in self.annotations for key in keys], bool
        )
        self.left_out += lines.left_out
        self.left_out["trajectory without annotation"] += int((chosen & ~annotated).sum())
        use = chosen & annotated
        if self.role == "decomposer":
            first = lines.firsts()
            whole = lines.step[first] == 0
            self.left_out["trajectory without its first step"] += int((use & ~whole).sum())
            numbers = data_set.numbers(units)
            return first[numbers[(use & whole)[numbers]]]
        numbers = data_set.numbers(len(lines))
        of = lines.trajectory[numbers]  # -1: broken, and counted above
        return numbers[(of >= 0) & np.append(use, False)[of]]

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, number: int) -> Example | str:
        data_set, line = self.data_sets[self._where[number]], int(self._line[number])
        try:
            row = read_row(data_set.lines[line])
            if data_set.style.kind != "step":
                example = conversation(self.policy, data_set, row)
            else:
                key = self._keys[self._where[number]][data_set.lines.trajectory[line]]
                example = self._step(
                    data_set, row, self.annotations[key] if self.annotations is not None else None
                )
        except Broken as reason:
            return str(reason)
        return (
            example if len(example) <= self.max_length else f"longer than {self.max_length} tokens"
        )

    def _step(self, data_set: DataSet, row: Row, annotation: Annotation | None) -> Example:
        policy, step = self.policy, read_step(row)
        picture = read_picture(data_set.root / step.image)
        plan = policy.prompts.plan_text(annotation.subtasks) if annotation else ""
        if self.role == "decomposer":
            prompt, reply = policy.prompts.decomposer(step.task, b""), plan
        else:
            prompt = policy.prompts.actor(
                step.task, read_plan(plan) if annotation else None, step.history, b""
            )
            prompt = replace(prompt, system=system_turn(data_set.style, policy.prompts))
            reply = _pixels(in_grammar(step.reply), picture)
        before, after = policy.prompt_ids(prompt), policy.response_ids(reply)
        return Example(before + after, [False] * len(before) + [True] * len(after), [picture])


def conversation(policy: Policy, data_set: DataSet, row: Row) -> Example:
    """A grounding sample or a chat: Qwen2.5-VL's chat format, of which the replies and their ends are learned.

    Coordinates become pixels where there is exactly one image to tell which; with several, as in ScaleCUA, they stay.
    """
    kind, pictures = (
        data_set.style.kind,
        [read_picture(data_set.root / image) for image in row.images],
    )
    newline = policy.text_ids("\n")
    ids: list[int] = []
    learn: list[bool] = []

    def say(*parts: list[int], learned: bool = False) -> None:
        for part in parts:
            ids.extend(part)
            learn.extend([learned] * len(part))

    system = row.system if row.system is not None else system_turn(data_set.style, policy.prompts)
    if system:
        say([policy.im_start], policy.text_ids("system\n" + system), [policy.im_end], newline)
    for human, gpt in row.turns:
        if kind == "click":
            gpt = in_grammar(gpt)
        if len(pictures) == 1 and kind == "click":
            gpt = _pixels(gpt, pictures[0])
        elif len(pictures) == 1 and kind == "box":
            try:
                human, gpt = (
                    boxes_in_place(human, *_size(pictures[0])),
                    boxes_to_json(gpt, *_size(pictures[0])),
                )
            except ValueError:
                raise Broken("box outside 0-1000") from None
        say([policy.im_start])
        for number, text in enumerate(("user\n" + human).split("<image>")):
            if number:
                say([policy.vision_start, policy.image_pad, policy.vision_end])
            say(policy.text_ids(text) if text else [])
        say([policy.im_end], newline, [policy.im_start], policy.text_ids("assistant\n"))
        say(policy.response_ids(gpt), learned=True)
        say(newline)
    return Example(ids, learn, pictures)


def read_picture(path: Path) -> Picture:
    """An image file, decoded and resized to the model's grid. Raises Broken."""
    try:
        data = path.read_bytes()
        if min(Image.open(io.BytesIO(data)).size) < MIN_SIDE:
            raise Broken(f"image side below {MIN_SIDE}")
        # Without decode's cache, which would hold hundreds of screenshots that an epoch never meets again.
        return Picture(image_key(data), decode.__wrapped__(data))
    except FileNotFoundError:
        raise Broken("image missing") from None
    except Broken:
        raise
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError):
        raise Broken("image unreadable") from None
    except ValueError:
        raise Broken("image too long for its width") from None  # smart_resize


def _size(picture: Picture) -> tuple[int, int]:
    return picture.pixels.shape[1], picture.pixels.shape[0]


def _pixels(reply: str, picture: Picture) -> str:
    try:
        return to_pixels(reply, *_size(picture))
    except ValueError:
        raise Broken("coordinate outside 0-1") from None


# ---- order and packs ----


@dataclass(frozen=True)
class Batch:
    """A rank's share of one step: packs, and what was left out of it by reason."""

    packs: list[Pack]
    samples: int
    tokens: int  # to learn from: the targets
    read: int  # tokens that the model reads
    left_out: Counter


class Batches:
    """A batch sampler: for each step from `start` on, the numbers of this rank's samples.

    Every epoch goes once through a fresh shuffle of the samples; its last step may hold fewer. A rank whose share of
    it is empty gets an empty list.
    """

    def __init__(
        self,
        count: int,
        per_step: int,
        epochs: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
    ) -> None:
        self.count, self.per_step, self.seed = count, per_step, seed
        self.rank, self.world, self.start = rank, world, start
        self.per_epoch = math.ceil(count / per_step)
        self.steps = epochs * self.per_epoch

    def __len__(self) -> int:
        return self.steps - self.start

    def __iter__(self) -> Iterator[list[int]]:
        order, epoch = None, -1
        for step in range(self.start, self.steps):
            if step // self.per_epoch != epoch:
                epoch = step // self.per_epoch
                order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
            at = step % self.per_epoch * self.per_step
            yield order[at : at + self.per_step][self.rank :: self.world].tolist()


def make_batch(found: list[Example | str], image_pad: int, micro: int, max_length: int) -> Batch:
    """Packs of up to `micro` examples and `max_length` tokens, in order."""
    examples = [e for e in found if isinstance(e, Example)]
    groups: list[list[Example]] = []
    for example in examples:
        if (
            not groups
            or len(groups[-1]) == micro
            or sum(map(len, groups[-1])) + len(example) > max_length
        ):
            groups.append([])
        groups[-1].append(example)
    packs = [pack(group, image_pad) for group in groups]
    return Batch(
        packs,
        len(examples),
        sum(len(p.target) for p in packs),
        sum(map(len, examples)),
        Counter(e for e in found if isinstance(e, str)),
    )
