"""Tries each site of a sites.json, as one table: does it answer, log in, reset, and serve REST?

python -m jhima.webarena.try_sites sites.json [--reset]     exit status 1 if something does not work
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from jhima.browser.chromium import Browsers
from jhima.browser.lease import Lease
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.webarena.login import log_in
from jhima.webarena.replicas import Replica, Replicas, load_replicas, problem_of
from jhima.webarena.task_functions import Shop, shopping_get_latest_order_url

SECONDS = 20.0


async def try_sites(replicas: list[Replica], reset: bool) -> tuple[list[list[str]], list[str]]:
    """A row per site (its URL, answers, logs in, resets, REST), and a line per problem."""
    rows, problems = [], []
    async with Replicas(replicas) as arena, Browsers() as browsers:
        for replica in replicas:
            restored = await arena.reset(replica) if reset and replica.needs_reset else None
            for name, site in replica.sites.items():
                lease = replica.lease(Task("try", (name,), site.url, "", {"eval_types": []}))
                row = [name, site.url]
                shop = Shop(lease, SECONDS)
                tries = (
                    _answers(replica, name),
                    _logs_in(browsers, lease, name) if site.login else None,
                    shopping_get_latest_order_url(shop) if name == "shopping" else None,
                )
                for work in tries:
                    row.append("-")
                    if work:
                        try:
                            await work
                            row[-1] = "yes"
                        except EnvironmentFailure as failure:
                            row[-1] = "NO"
                            problems.append(f"{name}: {failure.detail}")
                row.insert(4, _resets(replica, name, restored))
                rows.append(row)
            if restored is False:
                problems.append(f"{replica}: the reset failed")
    return rows, problems


def _resets(replica: Replica, name: str, restored: bool | None) -> str:
    """A row's word on the reset; restored: whether it worked, None if it was not tried."""
    if restored is not None:
        return "yes" if restored else "NO"
    return "not tried" if replica.reset or replica.sites[name].reset else "none"


async def _answers(replica: Replica, name: str) -> None:
    if problem := await problem_of(replica, name, SECONDS):
        raise EnvironmentFailure("site", problem.removeprefix(f"{name}: "))


async def _logs_in(browsers: Browsers, lease: Lease, name: str) -> None:
    async with browsers.session(lease) as session:
        await log_in(session, lease, name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tries each site of a sites.json.")
    parser.add_argument("sites", type=Path)
    parser.add_argument("--reset", action="store_true", help="reset the sites, too")
    args = parser.parse_args()
    try:
        replicas = load_replicas(args.sites)
    except ValueError as error:
        sys.exit(str(error))
    rows, problems = asyncio.run(try_sites(replicas, args.reset))
    rows.insert(0, ["site", "address", "answers", "logs in", "resets", "REST"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
