"""Counts the tasks of a list or file: what can be scored, and what changes a site.

python -m jhima.webarena FILE_OR_NAME      exit status 1 if a task cannot be scored
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from jhima.environment import NAMES, task_rows
from jhima.episodes import Task
from jhima.webarena.task_files import needs_judge, parse_task


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts a list's tasks by site and evaluators.")
    parser.add_argument("tasks", help=f"a task file, or one of {', '.join(NAMES)}")
    name = parser.parse_args().tasks
    try:
        label, prefix, rows = task_rows(name)
    except ValueError as error:
        sys.exit(str(error))
    tasks, problems = [], []
    for number, row in enumerate(rows):
        try:
            tasks.append(parse_task(row, prefix, f"{label}: task {number}"))
        except ValueError as error:
            problems.append(str(error))
    print(table(tasks))
    judged, changing = sum(map(needs_judge, tasks)), sum(task.changes for task in tasks)
    print(
        f"{label}: {len(rows)} tasks, {len(tasks)} can be scored "
        f"({judged} need the LLM judge, {changing} change a site's state)"
    )
    if problems:
        sys.exit("\n".join(problems))


def table(tasks: list[Task]) -> str:
    """Tasks by site (rows) and evaluators (columns), and how many of them change a site's state."""
    count: Counter[tuple[str, str]] = Counter()
    changing: Counter[str] = Counter()
    for task in tasks:
        site = "+".join(task.sites)
        count[site, "+".join(task.eval["eval_types"])] += 1
        changing[site] += task.changes
    sites, kinds = sorted({site for site, _ in count}), sorted({kind for _, kind in count})
    lines = [["site", *kinds, "all", "changing"]]
    for site in sites:
        row = [count[site, kind] for kind in kinds]
        lines.append([site, *map(str, row), str(sum(row)), str(changing[site])])
    totals = [sum(count[site, kind] for site in sites) for kind in kinds]
    lines.append(["all", *map(str, totals), str(sum(totals)), str(changing.total())])
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = []
    for name, *cells in lines:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:])]
        text.append("  ".join([name.ljust(widths[0]), *padded]))
    return "\n".join(text)


main()
