"""The pocket arena's commands.

python -m jhima.pocket serve      browse the five sites as a person
python -m jhima.pocket tasks      print the tasks as a WebArena-Lite-v2 task file
python -m jhima.pocket check      is every task solvable, and none solved by doing nothing?
python -m jhima.pocket demos      the oracle's trajectories in ScaleCUA's format, with screenshots
python -m jhima.pocket teacher    an OpenAI-compatible teacher and judge
python -m jhima.pocket model      an untrained pocket model, built from code
python -m jhima.pocket pages      screenshots of the sites with the texts and places of their parts
python -m jhima.pocket pretrain   the pocket base model, trained on them
python -m jhima.pocket plans      does the plan matter to an actor?
"""

# Each command imports what it needs: the server of every rollout starts with `serve`, and must
# not wait for torch.

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jhima import cli
from jhima.pocket import SITES

WEBARENA_PORTS = dict(zip(SITES, (7770, 7780, 9999, 8023, 3000)))


@dataclass
class Serve:
    """serve the five sites"""

    host: str = "127.0.0.1"
    port: int | None = None
    """the first of five ports, 0 for free ones, None for WebArena's"""
    full: bool = False
    """longer lists in shuffled order"""
    latency: float = 0.0
    """seconds that every page takes longer, to measure with"""
    json: bool = False
    """print one JSON line with the URLs, and stop at end of input"""

    def run(self) -> None:
        from jhima.pocket.sites.app import listen, make_app
        from jhima.webarena.sites import ACCOUNTS

        ports = WEBARENA_PORTS
        if self.port == 0:
            ports = dict.fromkeys(SITES, 0)
        elif self.port is not None:
            ports = {site: self.port + i for i, site in enumerate(SITES)}
        urls, _ = listen(make_app(self.full, self.latency), ports, self.host)
        if self.json:
            return _announce({"urls": urls})
        for site, url in urls.items():
            account = ""
            if site in ACCOUNTS:
                account = "   sign in as {} / {}".format(*ACCOUNTS[site])
            print(f"{site:15} {url}{account}")
        _wait_for_interrupt()


@dataclass
class Tasks:
    """print the tasks of a split as JSON"""

    split: tyro.conf.Positional[Literal["train", "eval", "new", "demos", "rl"]]

    def run(self) -> None:
        from jhima.pocket.tasks.generate import task_list

        print(json.dumps(task_list(self.split), indent=1))


@dataclass
class Check:
    """solve tasks with the oracle and with the do-nothing agent"""

    tasks: tuple[str, ...] = ("pocket", "pocket-eval", "pocket-new")
    """task lists: pocket, pocket-eval, pocket-new or files"""
    limit: int | None = None
    """only the first N tasks"""
    full: bool = False
    """1280x720, longer lists in shuffled order"""
    concurrency: int = 8
    """browser contexts at once"""

    def run(self) -> None:
        from jhima.pocket.play.check import check

        wrong = asyncio.run(check(self.tasks, self.limit, self.full, self.concurrency))
        sys.exit(1 if wrong else 0)


@dataclass
class Demos:
    """record the oracle's trajectories of training tasks"""

    tasks: tuple[str, ...] = ("pocket",)
    """task lists: pocket, pocket-eval, pocket-new or files"""
    limit: int | None = None
    """only the first N tasks"""
    full: bool = False
    """1280x720, longer lists in shuffled order"""
    concurrency: int = 8
    """browser contexts at once"""
    out: Path = Path("runs/demos")

    def run(self) -> None:
        from jhima.pocket.play.check import record

        asyncio.run(record(self.out, self.tasks, self.limit, self.full, self.concurrency))


@dataclass
class Teacher:
    """serve the teacher and judge"""

    port: int = 8399
    """0: any free one"""
    json: bool = False
    """print one JSON line with the URL, and stop at end of input"""

    def run(self) -> None:
        from jhima.pocket.teacher import MODEL, serve_teacher

        with serve_teacher(self.port) as url:
            if self.json:
                return _announce({"url": url, "model": MODEL})
            print(f"{MODEL} at {url}")
            _wait_for_interrupt()


@dataclass
class Model:
    """write an untrained pocket model"""

    out: Path = Path("checkpoints/pocket-untrained")
    hidden: int = 192
    layers: int = 3

    def run(self) -> None:
        from jhima.pocket.pretraining.corpus import corpus
        from jhima.pocket.pretraining.model import build

        parameters = build(self.out, corpus(), self.hidden, self.layers)
        print(f"{self.out}: an untrained Qwen2.5-VL with {parameters:,} parameters")


@dataclass
class Pages:
    """collect screenshots of the sites with what they show, to pre-train on"""

    out: Path = Path("runs/pages")
    count: int = 12000
    concurrency: int = 8
    """browser contexts at once"""
    seed: int = 0

    def run(self) -> None:
        from jhima.pocket.pretraining.pages import collect

        asyncio.run(collect(self.out, self.count, self.concurrency, self.seed))


@dataclass
class Pretrain:
    """train the pocket base model on collected pages (needs a GPU)"""

    pages: Path = Path("runs/pages")
    """what `pages` collected"""
    model: Path = Path("checkpoints/pocket-untrained")
    """what `model` wrote"""
    out: Path = Path("checkpoints/pocket-base")
    steps: int = 10000
    batch: int = 32
    """pictures per step; each gets about ten lessons"""
    lr: float = 1e-3
    seed: int = 0
    workers: int = 12
    """processes that prepare batches"""

    def run(self) -> None:
        from jhima.pocket.pretraining.pretrain import PretrainOptions, pretrain

        pretrain(PretrainOptions(**vars(self)))


@dataclass
class Plans:
    """an actor's success under the oracle's plan, under none, and under another task's"""

    actor: Path
    """SFT checkpoint"""
    adapter: Path | None = None
    """its adapter after RL, e.g. runs/rl/actor"""
    tasks: tuple[str, ...] = ("pocket-eval",)
    """task lists: pocket, pocket-eval, pocket-new or files"""
    shortest: int = 6
    """only tasks of N moves or more"""
    limit: int | None = None
    """only the first N of them"""
    full: bool = False
    """1280x720, longer lists in shuffled order"""
    T: int = 15
    """steps per episode, at most"""
    tokens: int = 64
    """token budget per action"""
    concurrency: int = 12
    """browser contexts at once"""
    seed: int = 0

    def run(self) -> None:
        from jhima.models.checkpoint_files import check_checkpoint
        from jhima.pocket.play.plans import compare

        check_checkpoint(self.actor)
        asyncio.run(compare(**vars(self)))


Command = Serve | Tasks | Check | Demos | Teacher | Model | Pages | Pretrain | Plans


def _announce(message: dict) -> None:
    """Tells the parent process in one line of JSON, and returns when the parent is gone."""
    print(json.dumps(message), flush=True)
    sys.stdin.read()


def _wait_for_interrupt() -> None:
    print("Ctrl-C stops.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass


def main() -> None:
    sys.argv[0] = "python -m jhima.pocket"  # the name in help and messages
    command = cli.parse(Command, __doc__)
    try:
        with cli.one_line_errors():
            command.run()
    except KeyboardInterrupt:
        sys.exit(f"{cli.script_name()}: stopped")


if __name__ == "__main__":
    main()
