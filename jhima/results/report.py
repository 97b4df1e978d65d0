"""The report of a run for a browser: per task K plans x M episodes with rewards and screenshots.

    python -m jhima.results.report RUN [--out FILE.html]    one page that needs no other file
    python -m jhima.results.report RUN --folder DIR         one page per batch, screenshots as files

Pages open from disk and request nothing but, with --folder, their own screenshots. All text of a
page or a model travels as JSON and is shown as text only (report.js never builds markup from a
string), and the Content-Security-Policy runs this repository's one script and no other. The
verdicts of `python -m jhima.results.subgoals RUN` are shown where there are any.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from jhima import cli
from jhima.results.report_views import Images, in_full, run_view, shown
from jhima.results.run_reader import GroupRecord, read_groups
from jhima.results.subgoals import read_verdicts

EPISODES_IN_FULL = 63  # three tasks at K=3, M=7: tens of MB at 1280x720
FILES = "'self' file:"  # where the images of --folder come from, for the Content-Security-Policy


def write_report(
    run: Path, out: Path, batches: tuple[str, ...] = (), limit: int = EPISODES_IN_FULL
) -> str:
    """Writes the page of `run` to `out`; returns a sentence on what was left out, "" for nothing.

    batches: names of the batch directories to show, by default all; without leading zeros is fine.
    Raises FileNotFoundError for a folder that is no run, ValueError for an unknown batch.
    """
    groups = _chosen_batches(run, batches)
    chosen, total, omitted = in_full(groups, limit), _count(groups), ""
    if len(chosen) < total:
        omitted = (
            f"{len(chosen)} of {total} episodes are here with their steps and screenshots; of the "
            "others only reward, answer and verdict. --limit and --batch choose which, --folder "
            "shows all."
        )
    view = run_view(run, groups, chosen, read_verdicts(run), Images())
    _write_page(out, {**view, "omitted": omitted})
    return omitted


def write_folder(run: Path, out: Path, batches: tuple[str, ...] = ()) -> int:
    """Writes one page per batch of `run` with all of its episodes, an index.html and image files.

    Since a page holds one batch alone, a run of any length can be opened. Returns the number of
    pages. Raises as write_report does.
    """
    groups, verdicts = _chosen_batches(run, batches), read_verdicts(run)
    images = out / "images"
    images.mkdir(parents=True, exist_ok=True)
    pages = []
    for number, name in enumerate(dict.fromkeys(group.batch for group in groups)):
        batch = [group for group in groups if group.batch == name]
        chosen = in_full(batch, _count(batch))
        view = run_view(run, batch, chosen, verdicts, Images(images), figures=False)
        file, success = f"batch-{number:04d}.html", view["success"][-1][1]
        pages.append({"name": shown(name), "file": file, "success": success, **view["counts"]})
        _write_page(out / file, {**view, "omitted": "", "index": "index.html"}, FILES)
    index = run_view(run, groups, set(), verdicts, Images(images))
    _write_page(out / "index.html", {**index, "groups": [], "omitted": "", "pages": pages}, FILES)
    return len(pages)


def _count(groups: list[GroupRecord]) -> int:
    return sum(len(group.episodes) for group in groups)


def _chosen_batches(run: Path, batches: tuple[str, ...]) -> list[GroupRecord]:
    groups = read_groups(run)
    if not batches:
        return groups
    known = {group.batch for group in groups}
    wanted = {name for name in known if name in batches or (name.lstrip("0") or "0") in batches}
    if len(wanted) < len(set(batches)):
        names = ", ".join(sorted(known)) or "no batch"
        raise ValueError(f"--batch {' '.join(batches)}: {run} has {names}")
    return [group for group in groups if group.batch in wanted]


def _write_page(out: Path, data: dict[str, Any], images: str = "data:") -> None:
    endings = (".html", ".css", ".js")
    page, style, script = (Path(__file__).with_suffix(e).read_text("utf-8") for e in endings)
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # Without "<" nothing in the data can end its element. ASCII: lone surrogates do no harm.
    text = text.replace("<", "\\u003c")
    hashes = {"style_hash": _csp_hash(style), "script_hash": _csp_hash(script)}
    page = page.format(style=style, script=script, data=text, images=images, **hashes)
    out.write_text(page, encoding="utf-8", newline="\n")


def _csp_hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


# ---- python -m jhima.results.report ----


@dataclass
class Options:
    run: Positional[Path]
    """run directory of train_rl.py or evaluate.py"""
    out: Path | None = None
    """the page to write; by default RUN/report.html"""
    folder: Path | None = None
    """write one page per batch into this folder, for large runs"""
    batch: tuple[str, ...] = ()
    """only these batches, or evaluation runs; by default all"""
    limit: int = EPISODES_IN_FULL
    """episodes of the one page with their steps and screenshots"""


def main() -> None:
    options = cli.parse(Options, __doc__)
    with cli.one_line_errors():
        if options.folder:
            pages = write_folder(options.run, options.folder, options.batch)
            print(f"{options.folder / 'index.html'}: {pages} pages")
        else:
            out = options.out or options.run / "report.html"
            omitted = write_report(options.run, out, options.batch, options.limit)
            print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
            if omitted:
                print(omitted)


if __name__ == "__main__":
    cli.run(main)
