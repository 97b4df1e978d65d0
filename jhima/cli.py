"""What the scripts' command lines share: options from a dataclass, one-line errors, progress."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TypeVar

import tyro

Options = TypeVar("Options")


def parse(options: type[Options], description: str | None) -> Options:
    """The command line as an instance of a dataclass, whose field docstrings are the help.

    Flags are written with hyphens. A mistake ends the process with one line that names it. The
    deepspeed launcher adds --local_rank=N, which is accepted and dropped: the scripts read the
    variable LOCAL_RANK, which it sets as well.
    """
    arguments = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    if {"-h", "--help"} & set(arguments):
        print(description.strip(), end="\n\n")  # here, because tyro would join its lines
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            config = (tyro.conf.FlagCreatePairsOff,)
            return tyro.cli(
                options, prog=script_name(), description="", args=arguments, config=config
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
    sys.exit(f"{script_name()}: {_first_message(errors.getvalue())}; --help lists the options")


def script_name() -> str:
    return os.path.basename(sys.argv[0])


def _first_message(box: str) -> str:
    """The message in tyro's box of lines, which ends at its first rule, as one line."""
    rows = []
    for line in box.splitlines()[1:]:
        text = line.strip("│ ")
        if set(text) <= set("─╯╰"):
            break
        rows.append(text)
    return " ".join(rows)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the process with one line where the arguments, or files that they name, are wrong."""
    try:
        yield
    except (OSError, ValueError) as error:
        sys.exit(f"{script_name()}: {error}")


def run(main: Callable[[], None], *expected: type[Exception]) -> None:
    """Runs a script's main: threads, and endings that say how to go on.

    expected: failures that end the run in one line, such as that of a model behind an endpoint.
    Without OMP_NUM_THREADS a CPU process takes one thread: two processes share two cores.
    """
    import torch

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    threads = "8" if torch.cuda.is_available() else "1"
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", threads)))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(f"{script_name()}: stopped; run the same command to go on")
    except (ExceptionGroup, *expected) as error:
        cause = error  # of the rollout's coroutines: show the first cause, not the tree
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, expected):
            sys.exit(f"{script_name()}: {cause}; run the same command to go on")
        raise cause from None
