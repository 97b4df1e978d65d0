"""The pocket arena's commands.

python -m jhima.pocket serve      browse the five sites as a person
python -m jhima.pocket tasks      print the tasks as a WebArena-Lite-v2 task file
python -m jhima.pocket check      is every task solvable, and none solved by doing nothing?
python -m jhima.pocket demos      the oracle's trajectories in ScaleCUA's format, with screenshots
python -m jhima.pocket teacher    an OpenAI-compatible teacher and judge
python -m jhima.pocket model      an untrained pocket model, built from code
python -m jhima.pocket pages      pictures of the sites with what they show
python -m jhima.pocket pretrain   the pocket base model, trained on them
python -m jhima.pocket plans      does the plan matter to an actor?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from jhima.pocket import SITES

WEBARENA_PORTS = dict(zip(SITES, (7770, 7780, 9999, 8023, 3000)))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jhima.pocket",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the five sites")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument(
        "--port", type=int, help="the first of five ports, or 0 for free ones (default: WebArena's)"
    )
    serve.add_argument("--full", action="store_true", help="longer lists in shuffled order")
    serve.add_argument(
        "--latency", type=float, default=0.0, help="seconds that every page takes, to measure with"
    )
    serve.add_argument(
        "--json",
        action="store_true",
        help="print one JSON line with the URLs, and stop at end of input",
    )

    tasks = commands.add_parser("tasks", help="print the tasks of a split as JSON")
    tasks.add_argument("split", choices=("train", "eval", "new", "demos", "rl"))

    for name, text in (
        ("check", "solve tasks with the oracle and with the do-nothing agent"),
        ("demos", "record the oracle's trajectories of training tasks"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.add_argument(
            "--tasks",
            nargs="+",
            default=["pocket", "pocket-eval", "pocket-new"] if name == "check" else ["pocket"],
            help="task lists: pocket, pocket-eval, pocket-new or files (default: %(default)s)",
        )
        sub.add_argument("--limit", type=int, help="only the first N tasks")
        sub.add_argument(
            "--full", action="store_true", help="1280x720, longer lists in shuffled order"
        )
        sub.add_argument("--concurrency", type=int, default=8)
        if name == "demos":
            sub.add_argument("--out", type=Path, default=Path("runs/demos"))

    teacher = commands.add_parser("teacher", help="serve the teacher and judge")
    teacher.add_argument("--port", type=int, default=8399, help="0: any free one")
    teacher.add_argument(
        "--json",
        action="store_true",
        help="print one JSON line with the URL, and stop at end of input",
    )

    pages = commands.add_parser(
        "pages", help="collect pictures of the sites with what they show, to pre-train on"
    )
    pages.add_argument("--out", type=Path, default=Path("runs/pages"))
    pages.add_argument("--count", type=int, default=12000)
    pages.add_argument("--concurrency", type=int, default=8)
    pages.add_argument("--seed", type=int, default=0)

    pre = commands.add_parser(
        "pretrain", help="train the pocket base model on collected pages (needs a GPU)"
    )
    pre.add_argument("--pages", type=Path, default=Path("runs/pages"))
    pre.add_argument(
        "--model",
        type=Path,
        default=Path("checkpoints/pocket-untrained"),
        help="what `model` wrote",
    )
    pre.add_argument("--out", type=Path, default=Path("checkpoints/pocket-base"))
    pre.add_argument("--steps", type=int, default=10000)
    pre.add_argument(
        "--batch", type=int, default=32, help="pictures a step; each gets ten lessons or so"
    )
    pre.add_argument("--lr", type=float, default=1e-3)
    pre.add_argument("--seed", type=int, default=0)
    pre.add_argument("--workers", type=int, default=12, help="processes that prepare batches")

    model = commands.add_parser("model", help="write an untrained pocket model")
    model.add_argument("--out", type=Path, default=Path("checkpoints/pocket-untrained"))
    model.add_argument("--hidden", type=int, default=192)
    model.add_argument("--layers", type=int, default=3)

    plans = commands.add_parser(
        "plans", help="an actor's success under the oracle's plan, none, and another task's"
    )
    plans.add_argument("--actor", type=Path, required=True, help="SFT checkpoint")
    plans.add_argument("--adapter", type=Path, help="its adapter after RL, e.g. runs/rl/actor")
    plans.add_argument("--tasks", nargs="+", default=["pocket-eval"], help="(default: %(default)s)")
    plans.add_argument(
        "--shortest",
        type=int,
        default=6,
        help="only tasks of N moves or more (default: %(default)s)",
    )
    plans.add_argument("--limit", type=int, help="only the first N of them")
    plans.add_argument(
        "--full", action="store_true", help="1280x720, longer lists in shuffled order"
    )
    plans.add_argument(
        "--T", type=int, default=15, help="steps an episode, at most (default: %(default)s)"
    )
    plans.add_argument(
        "--tokens", type=int, default=64, help="token budget of an action (default: %(default)s)"
    )
    plans.add_argument("--concurrency", type=int, default=12)
    plans.add_argument("--seed", type=int, default=0)

    args = parser.parse_args()
    run = {
        "serve": _serve,
        "tasks": _tasks,
        "check": _check,
        "demos": _demos,
        "teacher": _teacher,
        "pages": _pages,
        "pretrain": _pretrain,
        "model": _model,
        "plans": _plans,
    }[args.command]
    try:
        run(args)
    except ValueError as error:
        sys.exit(f"python -m jhima.pocket {args.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"python -m jhima.pocket {args.command}: stopped")


def _serve(args: argparse.Namespace) -> None:
    from jhima.pocket.sites.app import listen, make_app
    from jhima.webarena.sites import ACCOUNTS

    ports = (
        WEBARENA_PORTS
        if args.port is None
        else {s: args.port and args.port + i for i, s in enumerate(SITES)}
    )
    urls, _ = listen(make_app(args.full, args.latency), ports, args.host)
    if args.json:
        print(json.dumps({"urls": urls}), flush=True)
        sys.stdin.read()  # the parent closes it, or dies
        return
    for site, url in urls.items():
        user, password = ACCOUNTS.get(site, ("", ""))
        print(f"{site:15} {url}" + (f"   sign in as {user} / {password}" if user else ""))
    print("Ctrl-C stops.")
    _wait_for_interrupt()


def _teacher(args: argparse.Namespace) -> None:
    from jhima.pocket.teacher import MODEL, serve_teacher

    with serve_teacher(args.port) as url:
        if args.json:
            print(json.dumps({"url": url, "model": MODEL}), flush=True)
            sys.stdin.read()
        else:
            print(f"{MODEL} at {url}\nCtrl-C stops.")
            _wait_for_interrupt()


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass


def _tasks(args: argparse.Namespace) -> None:
    from jhima.pocket.tasks.generate import task_list

    print(json.dumps(task_list(args.split), indent=1))


def _check(args: argparse.Namespace) -> None:
    from jhima.pocket.play.check import check

    failed = asyncio.run(check(args.tasks, args.limit, args.full, args.concurrency))
    sys.exit(1 if failed else 0)


def _demos(args: argparse.Namespace) -> None:
    from jhima.pocket.play.check import record

    asyncio.run(record(args.out, args.tasks, args.limit, args.full, args.concurrency))


def _pages(args: argparse.Namespace) -> None:
    from jhima.pocket.pretraining.pages import collect

    asyncio.run(collect(args.out, args.count, args.concurrency, args.seed))


def _pretrain(args: argparse.Namespace) -> None:
    from jhima.pocket.pretraining.pretrain import PretrainOptions, pretrain

    pretrain(
        PretrainOptions(
            pages=args.pages,
            model=args.model,
            out=args.out,
            steps=args.steps,
            batch=args.batch,
            lr=args.lr,
            seed=args.seed,
            workers=args.workers,
        )
    )


def _model(args: argparse.Namespace) -> None:
    from jhima.pocket.pretraining.corpus import corpus
    from jhima.pocket.pretraining.model import build

    parameters = build(args.out, corpus(), args.hidden, args.layers)
    print(f"{args.out}: an untrained Qwen2.5-VL with {parameters:,} parameters")


def _plans(args: argparse.Namespace) -> None:
    from jhima.pocket.play.plans import compare
    from jhima.policy import check_checkpoint

    check_checkpoint(args.actor)
    asyncio.run(
        compare(
            args.actor,
            args.adapter,
            args.tasks,
            args.shortest,
            args.limit,
            args.full,
            args.concurrency,
            args.T,
            args.tokens,
            args.seed,
        )
    )


if __name__ == "__main__":
    main()
