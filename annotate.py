"""Stage 1 (section 3.2): a teacher model turns GUI trajectories into ordered subtasks.

    python annotate.py --data DATA/meta.json --out runs/annotations.jsonl --estimate
                                what it would cost
    python annotate.py --data DATA/meta.json --out runs/annotations.jsonl [--batch]
                                needs OPENAI_API_KEY
    python annotate.py --data runs/demos/meta.json --out runs/annotations.jsonl \\
        --base-url http://127.0.0.1:8399/v1 --model pocket-teacher
                                a local teacher
    python annotate.py --out runs/annotations.jsonl --stats
                                the paper's Table 3

The teacher sees each trajectory's task, first screenshot, and actions with the screenshots that
followed. Its reply is read strictly and becomes one line of the output: {trajectory, platform,
task, analysis, subtasks, unnecessary, odd, tokens, reply, failed}. A reply that cannot be read is
asked for once more, then recorded as failed with its text. The output only ever grows; the same
command annotates what is missing.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from jhima import cli
from jhima.data import teacher
from jhima.data.openai_batch import annotate_batches
from jhima.data.scalecua import Broken, DataSet, locate_trajectories, read_lines, read_meta
from jhima.data.teacher import AnnotationRun, Output
from jhima.models.openai_client import Api, ApiFailure, Client, Unreachable

SAMPLED = 50  # trajectories that the estimate is made from


@dataclass
class Options:
    """The options of annotate.py."""

    out: Path
    """JSON lines, appended to"""
    data: Path | None = None
    """ScaleCUA meta file that names the trajectories (needed unless --stats)"""
    base_url: str | None = None
    """OpenAI-compatible endpoint (None: OpenAI's)"""
    model: str = "gpt-5.2-codex"
    """the teacher, as in the paper"""
    api: Api | None = None
    """(None: responses at OpenAI, chat elsewhere)"""
    limit: int | None = None
    """annotate at most so many trajectories (None: all)"""
    concurrency: int = 8
    """requests (or batches) in flight"""
    retries: int = 8
    """attempts at a request whose failures may pass"""
    timeout: float = 300.0
    """seconds that one attempt may take"""
    prices: tuple[float, float] | None = None
    """dollars per million tokens in and out, for estimate and progress bar; look yours up
    (None: 1.75 14 at OpenAI, 0 elsewhere)"""
    estimate: bool = False
    """say what it would cost, and send nothing"""
    batch: bool = False
    """use OpenAI's Batch API: half the price, within a day"""
    poll: float = 60.0
    """seconds between looks at batches"""
    stats: bool = False
    """print the statistics of what --out holds (Table 3)"""


def main() -> None:
    options = cli.parse(Options, __doc__)
    try:
        # ---- 1. What is there, and what is missing ----
        if options.stats:
            print(statistics(options.out))
            return
        check(options)
        data_sets = read_meta(options.data, steps_only=True)
        output = Output(options.out)
    except (ValueError, OSError) as error:
        sys.exit(f"annotate.py: {error}")
    every = locate_trajectories(data_sets)
    missing = [key for key in every if key not in output.done][: options.limit]
    broken = sum((data_set.lines.left_out for data_set in data_sets), Counter())
    if broken:
        print("lines that are no steps:", ", ".join(counted(broken)))

    # ---- 2. What it will cost ----
    prices = options.prices or ((0.0, 0.0) if options.base_url else (1.75, 14.0))
    if missing:
        print(estimate([every[key] for key in missing], prices, options.batch))
    if options.estimate:
        return

    # ---- 3. The teacher's replies (section 3.2) ----
    if missing and not (options.base_url or os.environ.get("OPENAI_API_KEY")):
        sys.exit(
            "annotate.py: no OPENAI_API_KEY in the environment (a local teacher needs --base-url)"
        )
    api = options.api or ("chat" if options.base_url else "responses")
    try:
        client = Client(options.base_url, options.model, options.retries, options.timeout, api=api)
        run = AnnotationRun(client, output, every)
        with closing(output):
            if missing and options.batch:
                asyncio.run(annotate_batches(run, missing, options.concurrency, options.poll))
            elif missing:
                asyncio.run(annotate_all(run, missing, options.concurrency, prices))
    except ApiFailure as failure:
        sys.exit(
            f"annotate.py: the teacher {options.model} cannot be asked: {failure}; "
            "run the same command to go on"
        )
    except (ValueError, OSError) as error:  # a full disk, or batches of another teacher
        sys.exit(f"annotate.py: {error}")

    # ---- 4. What the output holds now, and what is left ----
    count = len(output.done & every.keys())
    print(f"{options.out}: {count} of {len(every)} trajectories, {output.failed} failed")
    for line in counted(run.left_out):
        print(f"left for another run: {line}")


def check(options: Options) -> None:
    """Raises ValueError where an option is missing or cannot be."""
    if options.data is None:
        raise ValueError("--data is needed (or --stats)")
    for name in ("concurrency", "retries", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name}: expected at least 1, got {value}")


def counted(reasons: Counter[str]) -> list[str]:
    return [f"{count} {reason}" for reason, count in sorted(reasons.items())]


def estimate(
    trajectories: list[tuple[DataSet, int]], prices: tuple[float, float], batch: bool
) -> str:
    """Tokens and dollars for all `trajectories`, from a sample of them."""
    count = len(trajectories)
    sampled = []
    for data_set, number in trajectories[:: math.ceil(count / SAMPLED)]:
        try:
            sampled.append(teacher.estimate_tokens(*teacher.load(data_set, number)))
        except (Broken, OSError):
            continue
    tokens_in = sum(sampled) / max(1, len(sampled)) * count
    tokens_out = teacher.OUTPUT_TOKENS * count
    dollars, note = cost([tokens_in, tokens_out], prices), ""
    if batch:
        dollars, note = dollars / 2, ", halved for --batch"
    return (
        f"about {tokens_in:,.0f} tokens in and {tokens_out:,} out for {count:,} trajectories "
        f"(from {len(sampled)} of them): ${dollars:,.2f} "
        f"at ${prices[0]:g} and ${prices[1]:g} per million{note}"
    )


def cost(tokens: list[float], prices: tuple[float, float]) -> float:
    """Dollars for [tokens in, tokens out] at prices per million."""
    return sum(used * price for used, price in zip(tokens, prices)) / 1e6


async def annotate_all(
    run: AnnotationRun, missing: list[str], concurrency: int, prices: tuple[float, float]
) -> None:
    """Annotates the trajectories `missing`, keys of run.every, with so many requests in flight."""
    keys, output = iter(missing), run.output
    with tqdm(total=len(missing), desc="annotate", unit="trajectory") as bar:

        async def worker() -> None:
            for key in keys:
                try:
                    output.add(await teacher.annotate(run.client, *run.every[key]))
                except (Broken, Unreachable) as reason:
                    run.left_out[str(reason)] += 1
                dollars = f"${cost(output.tokens, prices):.2f}"
                bar.set_postfix(
                    tokens=f"{sum(output.tokens):,}", cost=dollars, failed=output.failed
                )
                bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(worker())
        except* (ApiFailure, OSError) as failures:
            raise failures.exceptions[0] from None


def statistics(out: Path) -> str:
    """The paper's Table 3 for a file of annotations, and how many could not be made."""
    subtasks: dict[str, list[int]] = {}  # by platform, of each trajectory how many
    unnecessary: Counter[str] = Counter()  # trajectories with unnecessary actions, by platform
    failed, odd = 0, Counter()
    for position, row in read_lines(out):
        try:
            odd.update(row.get("odd", []))
            if row["failed"]:
                failed += 1
                continue
            for name in (row.get("platform", "Web"), "Total"):
                subtasks.setdefault(name, []).append(len(row["subtasks"]))
                unnecessary[name] += row["unnecessary"] is not None
        except (KeyError, TypeError):
            raise ValueError(f"{position}: expected a line of annotate.py") from None
    total = subtasks.pop("Total", [])
    lines = [
        f"{'Platform':<12}{'# Examples':>12}{'Avg. # Subtasks':>18}{'Unnecessary Actions':>22}"
    ]
    for name, counts in [*sorted(subtasks.items()), ("Total", total)]:
        examples = max(1, len(counts))
        average, share = sum(counts) / examples, unnecessary[name] / examples
        lines.append(f"{name:<12}{len(counts):>12,}{average:>18.2f}{share:>22.1%}")
    oddities = [f"; {reason}: {count}" for reason, count in sorted(odd.items())]
    lines.append(f"failed: {failed}" + "".join(oddities))
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
