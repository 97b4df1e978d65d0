"""What stage 2 learns from: examples, their order over the epochs, and the packs of each step.

`Supervision` is a torch data set: a number gives an Example, or the reason why that sample cannot
be one. It holds line numbers only; a sample is read, decoded and tokenised in a data worker when it
is its turn. Which samples make up a step follows from the seed and the step's number alone, so that
a run resumes within an epoch by counting.
"""

from __future__ import annotations

import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from jhima.data import scalecua
from jhima.data.platforms import system_turn, where
from jhima.data.scalecua import Broken, DataSet, Row
from jhima.data.stored_coordinates import boxes_in_place, boxes_to_json, to_pixels
from jhima.models.vision import decode, image_key
from jhima.policy import Policy
from jhima.prompts import read_plan
from jhima.training.packing import Example, Pack, Picture, pack


@dataclass(eq=False)
class Supervision(Dataset):
    """The samples of a role (eqs. 3 and 4).

    decomposer: (x, o_0) -> d, one per annotated trajectory. actor: (x, o_t, h_t, d) -> a_t, one per
    step of annotated trajectories, and everything else that the data sets hold. `left_out` counts
    what is missing from the start; whoever reads the samples counts those that turn out broken
    then. Holds 8 bytes per sample.
    """

    policy: Policy
    data_sets: list[DataSet]
    annotations: dict[str, scalecua.Annotation] | None  # None: all trajectories, without d
    role: str
    held_back: float = 0.0  # share of trajectories and of other samples for evaluation only
    part: str = "train"  # or "held back"
    max_length: int = 30720  # tokens of an example

    def __post_init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._keys = [scalecua.trajectory_keys(data_set) for data_set in self.data_sets]
        sources, lines = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for source, data_set in enumerate(self.data_sets):
            selected = self._select(data_set, self._keys[source])
            lines.append(selected.astype(np.int32))
            sources.append(np.full(len(selected), source, np.int32))
        self.source: NDArray[np.int32] = np.concatenate(sources)  # [N] which data set
        self.line: NDArray[np.int32] = np.concatenate(lines)  # [N] which line of it

    def _select(self, data_set: DataSet, keys: list[str]) -> NDArray[np.int64]:
        """The lines of a data set that are samples of this role and part. keys: of trajectories."""
        self.left_out += data_set.lines.left_out
        if data_set.style.kind != "step":
            if self.role == "decomposer" or data_set.style.kind == "unknown":
                return np.zeros(0, np.int64)
            in_part = self._in_part(data_set, len(data_set.lines))
            lines = data_set.numbers(len(data_set.lines))
            return lines[in_part[lines]]
        in_part = self._in_part(data_set, len(keys))
        annotated = np.ones(len(keys), bool)
        if self.annotations is not None:
            annotated = np.array([key in self.annotations for key in keys], bool)
        self.left_out["trajectory without annotation"] += int((in_part & ~annotated).sum())
        if self.role == "decomposer":
            return self._first_steps(data_set, in_part & annotated)
        return self._all_steps(data_set, in_part & annotated)

    def _in_part(self, data_set: DataSet, count: int) -> NDArray[np.bool_]:
        """Which of `count` trajectories or samples belong to this part: the same ones each time."""
        order = np.random.default_rng(zlib.crc32(data_set.name.encode())).permutation(count)
        held_back = np.zeros(count, bool)
        held_back[order[: round(self.held_back * count)]] = True
        return held_back if self.part == "held back" else ~held_back

    def _first_steps(self, data_set: DataSet, use: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The lines of o_0 of the trajectories to use [trajectories]."""
        first = data_set.lines.firsts()
        whole = data_set.lines.step[first] == 0
        self.left_out["trajectory without its first step"] += int((use & ~whole).sum())
        trajectories = data_set.numbers(len(use))
        return first[trajectories[(use & whole)[trajectories]]]

    def _all_steps(self, data_set: DataSet, use: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The lines of all steps of the trajectories to use [trajectories]."""
        lines = data_set.numbers(len(data_set.lines))
        trajectory = data_set.lines.trajectory[lines]  # -1: a broken line, which is counted already
        return lines[(trajectory >= 0) & np.append(use, False)[trajectory]]

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, number: int) -> Example | str:
        data_set, line = self.data_sets[self.source[number]], int(self.line[number])
        try:
            row = scalecua.read_row(data_set.lines[line])
            if data_set.style.kind == "step":
                key = self._keys[self.source[number]][data_set.lines.trajectory[line]]
                example = self._step(data_set, row, key)
            else:
                example = conversation(self.policy, data_set, row)
        except Broken as reason:
            return str(reason)
        if len(example) > self.max_length:
            return f"longer than {self.max_length} tokens"
        return example

    def _step(self, data_set: DataSet, row: Row, key: str) -> Example:
        policy, step = self.policy, scalecua.read_step(row)
        picture = read_picture(data_set.root / step.image)
        plan, subtasks = "", None
        if self.annotations is not None:
            plan = policy.prompts.plan_text(self.annotations[key].subtasks)
            subtasks = read_plan(plan)
        if self.role == "decomposer":
            prompt = policy.prompts.decomposer(step.task, b"", where=where(data_set.style))
            reply = plan
        else:
            prompt = policy.prompts.actor(step.task, subtasks, step.history, b"")
            prompt = replace(prompt, system=system_turn(data_set.style, policy.prompts))
            reply = scalecua.in_grammar(step.reply)
            reply = _in_pixels(to_pixels, reply, picture, "coordinate outside 0-1")
        before, after = policy.prompt_ids(prompt), policy.response_ids(reply)
        return Example(before + after, [False] * len(before) + [True] * len(after), [picture])


def conversation(policy: Policy, data_set: DataSet, row: Row) -> Example:
    """A grounding sample or a chat in Qwen2.5-VL's chat format; its replies are to be learned.

    Coordinates become pixels where there is exactly one image that they can belong to; with several
    images they stay as they are, as in ScaleCUA.
    """
    pictures = [read_picture(data_set.root / image) for image in row.images]
    newline, assistant = policy.text_ids("\n"), policy.text_ids("assistant\n")
    ids: list[int] = []
    learn: list[bool] = []
    system = row.system
    if system is None:
        system = system_turn(data_set.style, policy.prompts)
    if system:
        ids += [policy.im_start, *policy.text_ids("system\n" + system), policy.im_end, *newline]
    for human, gpt in row.turns:
        if data_set.style.kind == "click":
            gpt = scalecua.in_grammar(gpt)
            if len(pictures) == 1:
                gpt = _in_pixels(to_pixels, gpt, pictures[0], "coordinate outside 0-1")
        elif data_set.style.kind == "box" and len(pictures) == 1:
            human = _in_pixels(boxes_in_place, human, pictures[0], "box outside 0-1000")
            gpt = _in_pixels(boxes_to_json, gpt, pictures[0], "box outside 0-1000")
        ids.append(policy.im_start)
        for number, text in enumerate(("user\n" + human).split("<image>")):
            if number:
                ids += [policy.vision_start, policy.image_pad, policy.vision_end]
            ids += policy.text_ids(text)
        ids += [policy.im_end, *newline, policy.im_start, *assistant]
        learn += [False] * (len(ids) - len(learn))
        ids += policy.response_ids(gpt)
        learn += [True] * (len(ids) - len(learn))
        ids += newline
    learn += [False] * (len(ids) - len(learn))
    return Example(ids, learn, pictures)


def read_picture(path: Path) -> Picture:
    """An image file, decoded and resized to the model's grid. Raises Broken."""
    try:
        data = path.read_bytes()
        if min(Image.open(io.BytesIO(data)).size) >= scalecua.MIN_SIDE:
            # Not through decode's cache, which would hold hundreds of pictures for nothing.
            return Picture(image_key(data), decode.__wrapped__(data))
    except FileNotFoundError:
        raise Broken("image missing") from None
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError):
        raise Broken("image unreadable") from None
    except ValueError:  # smart_resize's
        raise Broken("image too long for its width") from None
    raise Broken(f"image side below {scalecua.MIN_SIDE}")


def _in_pixels(convert: Callable, text: str, picture: Picture, error: str) -> str:
    """`convert` (of jhima/data/stored_coordinates.py) with a picture's size."""
    height, width, _ = picture.pixels.shape
    try:
        return convert(text, width, height)
    except ValueError:
        raise Broken(error) from None


# ---- order and packs ----


@dataclass(frozen=True)
class Batch:
    """A rank's share of one step."""

    packs: list[Pack]
    samples: int
    tokens: int  # to learn from: the targets
    read: int  # tokens that the model reads
    left_out: Counter[str]  # samples that are missing from it, by reason


@dataclass
class Batches:
    """A batch sampler: for each step from `start` on, the numbers of this rank's samples.

    Every epoch goes once through a fresh shuffle of the samples; its last step may hold fewer. A
    rank whose share of it is empty gets an empty list.
    """

    count: int  # samples
    per_step: int  # on all ranks together
    epochs: int
    seed: int
    rank: int = 0
    world: int = 1
    start: int = 0

    @property
    def per_epoch(self) -> int:
        return math.ceil(self.count / self.per_step)

    def __len__(self) -> int:
        return self.epochs * self.per_epoch - self.start

    def __iter__(self) -> Iterator[list[int]]:
        order, shuffled = None, -1  # the epoch's order, and which epoch that is
        for number in range(self.start, self.epochs * self.per_epoch):
            epoch, step = divmod(number, self.per_epoch)
            if epoch != shuffled:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
                shuffled = epoch
            samples = order[step * self.per_step : (step + 1) * self.per_step]
            yield samples[self.rank :: self.world].tolist()


def make_batch(samples: list[Example | str], image_pad: int, micro: int, max_length: int) -> Batch:
    """Packs of up to `micro` examples and `max_length` tokens, in order.

    samples: a rank's samples of one step, as Supervision gives them.
    """
    examples = [sample for sample in samples if isinstance(sample, Example)]
    groups: list[list[Example]] = []
    room = 0  # tokens that still fit into the last group
    for example in examples:
        if not groups or len(groups[-1]) == micro or len(example) > room:
            groups.append([])
            room = max_length
        groups[-1].append(example)
        room -= len(example)
    packs = [pack(group, image_pad) for group in groups]
    return Batch(
        packs=packs,
        samples=len(examples),
        tokens=sum(len(p.target) for p in packs),
        read=sum(map(len, examples)),
        left_out=Counter(sample for sample in samples if isinstance(sample, str)),
    )
