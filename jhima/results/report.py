"""The report of a run for a browser: every task's K plans x M episodes, with rewards, advantages and screenshots.

    python -m jhima.results.report RUN [--out FILE.html] [--batch B ...] [--limit N]     one self-contained page
    python -m jhima.results.report RUN --folder DIR [--batch B ...]                      a page a batch, screenshots as files

Pages open from disk and request nothing but, with --folder, their own screenshots. All that a page or a model wrote
travels as JSON, is shown as text only (report.js never builds markup from a string), and the Content-Security-Policy
runs this repository's one script and no other. What `python -m jhima.results.subgoals RUN` had judged is shown too.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from jhima.results.report_views import Images, clip, in_full, run_view
from jhima.results.run_reader import GroupRecord, read_groups
from jhima.results.subgoals import read_verdicts

EPISODES_IN_FULL = 63  # three tasks at K=3, M=7: tens of MB at 1280x720


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src {images}; \
style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rollouts</title>
<style>{style}</style>
</head>
<body>
<nav id="side" aria-label="Tasks"></nav>
<main id="main"></main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(
    run: Path, out: Path, batches: list[str] | None = None, limit: int = EPISODES_IN_FULL
) -> str:
    """Write the page of `run` to `out`; returns the sentence that says what was left out ('' when all is there).

    batches: names of the batch directories to show, all when None; leading zeros may be left out.
    Raises FileNotFoundError for a folder that is no run, ValueError for a batch that does not exist.
    """
    groups = _chosen_batches(Path(run), batches)
    chosen, total = in_full(groups, limit), sum(len(group.episodes) for group in groups)
    omitted = (
        ""
        if len(chosen) == total
        else (
            f"{len(chosen)} of {total} episodes are here with their steps and screenshots; of the others only reward, "
            "answer and verdict. --limit and --batch choose which, --folder shows all."
        )
    )
    _write_page(
        out,
        {**run_view(Path(run), groups, chosen, read_verdicts(run), Images()), "omitted": omitted},
    )
    return omitted


def write_folder(run: Path, out: Path, batches: list[str] | None = None) -> None:
    """Write a page for each batch of `run`, with all of its episodes, an index.html, and their screenshots as files.

    A page holds one batch alone, so a run of any length can be opened. Raises as write_report does.
    """
    groups, verdicts, images = (
        _chosen_batches(Path(run), batches),
        read_verdicts(run),
        out / "images",
    )
    images.mkdir(parents=True, exist_ok=True)
    pages = []
    for number, name in enumerate(dict.fromkeys(group.batch for group in groups)):
        here = [group for group in groups if group.batch == name]
        chosen = in_full(here, sum(len(group.episodes) for group in here))
        view = run_view(Path(run), here, chosen, verdicts, Images(images), figures=False)
        pages.append(
            {
                "name": clip(name),
                "file": f"batch-{number:04d}.html",
                "success": view["success"][-1][1],
                **view["counts"],
            }
        )
        _write_page(
            out / pages[-1]["file"], {**view, "omitted": "", "index": "index.html"}, "'self' file:"
        )
    index = run_view(Path(run), groups, set(), verdicts, Images(images))
    _write_page(
        out / "index.html", {**index, "groups": [], "omitted": "", "pages": pages}, "'self' file:"
    )


def _chosen_batches(run: Path, batches: list[str] | None) -> list[GroupRecord]:
    groups = read_groups(run)
    if not batches:
        return groups
    known = {group.batch for group in groups}
    wanted = {name for name in known if name in batches or (name.lstrip("0") or "0") in batches}
    if len(wanted) < len(set(batches)):
        raise ValueError(
            f"--batch {' '.join(batches)}: {run} has {', '.join(sorted(known)) or 'no batch'}"
        )
    return [group for group in groups if group.batch in wanted]


def _write_page(out: Path, data: dict[str, Any], images: str = "data:") -> None:
    here = Path(__file__)
    style = here.with_suffix(".css").read_text(encoding="utf-8")
    script = here.with_suffix(".js").read_text(encoding="utf-8")
    # "<" cannot occur in the data, so nothing in it can end its element; ASCII only, so lone surrogates do no harm.
    safe_json = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = PAGE.format(
        style=style,
        script=script,
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
        images=images,
        data=safe_json,
    )
    Path(out).write_text(page, encoding="utf-8", newline="\n")


def _csp_hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jhima.results.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="output folder of train_rl.py or evaluate.py"
    )
    parser.add_argument("--out", type=Path, help="the page to write (default: RUN/report.html)")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="write a page a batch into DIR, for large runs"
    )
    parser.add_argument(
        "--batch", nargs="+", metavar="B", help="only these batches, or evaluation runs"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=EPISODES_IN_FULL,
        help="episodes of the one page with their steps and screenshots (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    out = options.out or options.run / "report.html"
    try:
        if options.folder:
            write_folder(options.run, options.folder, options.batch)
            print(
                f"{options.folder / 'index.html'}: {len(list(options.folder.glob('batch-*.html')))} pages"
            )
        else:
            omitted = write_report(options.run, out, options.batch, options.limit)
            print(f"{out}: {out.stat().st_size / 1e6:.1f} MB", omitted, sep="\n" if omitted else "")
    except (OSError, ValueError) as error:
        sys.exit(f"jhima.results.report: {error}")


if __name__ == "__main__":
    main()
