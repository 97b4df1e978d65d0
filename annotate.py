"""Stage 1 (section 3.2): a teacher model turns GUI trajectories into ordered subtasks.

    python annotate.py --data DATA/meta.json --out runs/annotations.jsonl --estimate         # what it would cost
    python annotate.py --data DATA/meta.json --out runs/annotations.jsonl [--batch]          # needs OPENAI_API_KEY
    python annotate.py --data runs/demos/meta.json --out runs/annotations.jsonl \\
        --base-url http://127.0.0.1:8399/v1 --model pocket-teacher                           # a local teacher
    python annotate.py --out runs/annotations.jsonl --stats                                  # the paper's Table 3

Every trajectory's task, first screenshot and actions with the screenshots that followed go to the teacher; its reply
is read strictly, and becomes one line of the output: {trajectory, platform, task, analysis, subtasks, unnecessary,
odd, tokens, reply, failed}. A reply that cannot be read is asked for once more, then recorded as failed with its text.
The output only ever grows; running the same command again annotates what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import openai
from tqdm import tqdm

from jhima.data.openai_batch import Where, annotate_batches
from jhima.data.scalecua import Broken, read_lines, read_meta, trajectory_keys
from jhima.data.teacher import (
    OUTPUT_TOKENS,
    Output,
    Refused,
    Unreachable,
    annotate,
    estimate_tokens,
    load,
)

SAMPLED = 50  # trajectories that the estimate is made from


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        help="ScaleCUA meta file that names the trajectories (needed unless --stats)",
    )
    add("--out", type=Path, required=True, help="JSON lines, appended to")
    add("--base-url", help="OpenAI-compatible endpoint (default: OpenAI's)")
    add(
        "--model",
        default="gpt-5.2-codex",
        help="the teacher (default: %(default)s, as in the paper)",
    )
    add(
        "--api",
        choices=("chat", "responses"),
        help="(default: responses at OpenAI, chat elsewhere)",
    )
    add("--limit", type=int, help="annotate at most N trajectories")
    add(
        "--concurrency",
        type=int,
        default=8,
        help="requests (or batches) in flight (default: %(default)s)",
    )
    add(
        "--retries",
        type=int,
        default=8,
        help="tries of a request that fails for a time (default: %(default)s)",
    )
    add(
        "--timeout",
        type=float,
        default=300.0,
        help="seconds that one try may take (default: %(default)s)",
    )
    add(
        "--prices",
        type=float,
        nargs=2,
        metavar=("IN", "OUT"),
        help="dollars a million tokens, for estimate and bar; look yours up (default: 1.75 14 at OpenAI, 0 elsewhere)",
    )
    add("--estimate", action="store_true", help="say what it would cost, and send nothing")
    add("--batch", action="store_true", help="use OpenAI's Batch API: half the price, within a day")
    add(
        "--poll",
        type=float,
        default=60.0,
        help="seconds between looks at batches (default: %(default)s)",
    )
    add("--stats", action="store_true", help="print the statistics of what --out holds (Table 3)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        if args.stats:
            print(statistics(args.out))
            return
        if args.data is None:
            raise ValueError("--data is needed (or --stats)")
        for name in ("concurrency", "retries"):
            if getattr(args, name) < 1:
                raise ValueError(f"--{name}: expected at least 1, got {getattr(args, name)}")
        args.prices = args.prices or ((0.0, 0.0) if args.base_url else (1.75, 14.0))
        data_sets = read_meta(args.data, steps_only=True)
        output = Output(args.out)
    except (ValueError, OSError) as error:
        sys.exit(f"annotate.py: {error}")
    every = {
        key: (data_set, number)
        for data_set in data_sets
        for number, key in enumerate(trajectory_keys(data_set))
    }
    todo = dict([item for item in every.items() if item[0] not in output.done][: args.limit])
    broken = sum((data_set.lines.left_out for data_set in data_sets), Counter())
    if broken:
        print(
            "lines that are no steps:",
            ", ".join(f"{count} {reason}" for reason, count in sorted(broken.items())),
        )
    if todo:
        print(estimate(list(todo.values()), args.prices, args.batch))
    if args.estimate:
        return
    try:
        left_out = asyncio.run(annotate_all(args, output, every, todo)) if todo else Counter()
    except KeyboardInterrupt:
        sys.exit("annotate.py: stopped; run the same command to go on")
    except Refused as error:
        sys.exit(
            f"annotate.py: the teacher {args.model} cannot be asked: {error}; run the same command to go on"
        )
    finally:
        output.close()
    print(
        f"{args.out}: {len(output.done & every.keys())} of {len(every)} trajectories, {output.failed} failed"
    )
    for reason, count in sorted(left_out.items()):
        print(f"left for another run: {count} {reason}")


def estimate(todo: list[Where], prices: tuple[float, float], batch: bool) -> str:
    """Tokens and dollars for `todo`, from a sample of it."""
    tokens = []
    for data_set, number in todo[:: -(-len(todo) // SAMPLED)]:
        try:
            tokens.append(estimate_tokens(*load(data_set, number)))
        except (Broken, OSError):
            continue
    mean = sum(tokens) / max(1, len(tokens))
    dollars = cost([mean * len(todo), OUTPUT_TOKENS * len(todo)], prices) * (0.5 if batch else 1)
    return (
        f"about {mean * len(todo):,.0f} tokens in and {OUTPUT_TOKENS * len(todo):,} out for {len(todo):,} trajectories "
        f"(from {len(tokens)} of them): ${dollars:,.2f} at ${prices[0]:g} and ${prices[1]:g} a million"
        + (", halved for --batch" if batch else "")
    )


def cost(tokens: list[float], prices: tuple[float, float]) -> float:
    """Dollars for (tokens in, tokens out)."""
    return sum(used * price for used, price in zip(tokens, prices)) / 1e6


async def annotate_all(
    args: argparse.Namespace, output: Output, every: dict[str, Where], todo: dict[str, Where]
) -> Counter:
    """Annotates `todo`, a part of `every`, into `output`; returns what was left undone, by reason."""
    key = os.environ.get("OPENAI_API_KEY") or ("none" if args.base_url else "")
    if not key:
        sys.exit(
            "annotate.py: no OPENAI_API_KEY in the environment (a local teacher needs --base-url)"
        )
    api = args.api or ("chat" if args.base_url else "responses")
    client = openai.AsyncOpenAI(
        base_url=args.base_url, api_key=key, max_retries=0, timeout=args.timeout
    )
    if args.batch:
        return await annotate_batches(
            client, output, every, list(todo), args.model, api, args.concurrency, args.poll
        )
    left_out: Counter[str] = Counter()
    queue = iter(todo.values())
    with tqdm(total=len(todo), desc="annotate", unit="trajectory") as bar:

        async def worker() -> None:
            for data_set, number in queue:
                try:
                    output.add(
                        await annotate(
                            client, data_set, number, args.model, api, args.retries, args.timeout
                        )
                    )
                except Unreachable as error:
                    left_out[str(error)] += 1
                except (Broken, OSError) as error:
                    left_out[str(error) if isinstance(error, Broken) else "image missing"] += 1
                bar.set_postfix(
                    tokens=f"{sum(output.tokens):,}",
                    cost=f"${cost(output.tokens, args.prices):.2f}",
                    failed=output.failed,
                )
                bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(args.concurrency):
                    group.create_task(worker())
        except* Refused as refused:
            raise refused.exceptions[0] from None
    return left_out


def statistics(out: Path) -> str:
    """The paper's Table 3 for a file of annotations, and how many could not be made."""
    rows: dict[str, list[tuple[int, bool]]] = {}
    failed, odd = 0, Counter()
    for place, row in read_lines(out):
        try:
            odd.update(row.get("odd", []))
            if row["failed"]:
                failed += 1
            else:
                found = len(row["subtasks"]), row["unnecessary"] is not None
                rows.setdefault(row.get("platform", "Web"), []).append(found)
        except (KeyError, TypeError):
            raise ValueError(f"{place}: expected a line of annotate.py") from None
    table = [
        f"{'Platform':<12}{'# Examples':>12}{'Avg. # Subtasks':>18}{'Unnecessary Actions':>22}"
    ]
    for name, found in [*sorted(rows.items()), ("Total", sum(rows.values(), []))]:
        count = max(1, len(found))
        table.append(
            f"{name:<12}{len(found):>12,}{sum(n for n, _ in found) / count:>18.2f}"
            f"{sum(u for _, u in found) / count:>22.1%}"
        )
    table.append(
        f"failed: {failed}"
        + "".join(f"; {reason}: {count}" for reason, count in sorted(odd.items()))
    )
    return "\n".join(table)


if __name__ == "__main__":
    main()
