"""Is the code still small and plain? The figures that keep it so, each with its limit.

    python benchmarks/code_shape.py

Reads the files with `ast` and imports none of them. A code line is not blank, not a comment and not
part of a docstring; the table also shows the counts with docstrings. tests/test_shape.py asserts
the limits, which are the numbers in `figures` below.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)

# What happens to one token of the actor, from the prompt it answers to the step it contributes to.
# Only the method: no browser, no distribution over ranks, no logging.
TOKEN_TRIP = """
prompt built: jhima/rollout.py actor_policy, jhima/prompts.py Prompts.actor
ids:          jhima/sampler.py LocalSampler.sample, jhima/policy.py Policy.prompt_ids
features:     jhima/models/vision.py vision_features
positions:    jhima/models/positions.py mrope_positions
sampled:      jhima/sampler.py generate
parsed:       jhima/actions.py parse, jhima/reply_reader.py calls, jhima/coordinates.py to_page
stored:       jhima/rollout.py play, jhima/episodes.py save_episode
loaded:       train_rl.py load_groups, jhima/episodes.py load_group
advantage:    jhima/grpo.py actor_advantages
sample:       train_rl.py actor_samples
log-prob:     jhima/policy.py Policy.forward
loss:         train_rl.py objective, jhima/grpo.py policy_loss
step:         train_rl.py update
"""


@dataclass(frozen=True)
class Figure:
    """A count, and the largest value it may have. note: what the table says next to it."""

    name: str
    value: float
    limit: float
    note: str = ""


@dataclass(frozen=True)
class Source:
    """One file: its text, its syntax tree, and the numbers of the lines that docstrings take up."""

    path: Path
    lines: list[str]
    tree: ast.Module
    docstrings: frozenset[int]


@cache
def read(path: Path) -> Source:
    text = path.read_text("utf-8")
    tree = ast.parse(text, str(path))
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings |= set(range(first.lineno, first.end_lineno + 1))
    return Source(path, text.splitlines(), tree, frozenset(docstrings))


def code_lines(paths: Iterable[Path], docstrings: bool = False) -> int:
    """Lines that are neither blank nor comments; with docstrings if asked."""
    count = 0
    for source in map(read, paths):
        for number, line in enumerate(source.lines, 1):
            written = line.strip() and not line.strip().startswith("#")
            count += bool(written and (docstrings or number not in source.docstrings))
    return count


def long_lines(paths: Iterable[Path]) -> list[str]:
    """Where a line is wider than 100 columns, as FILE:LINE."""
    places = []
    for source in map(read, paths):
        for number, line in enumerate(source.lines, 1):
            if len(line) > COLUMNS:
                places.append(f"{source.path.relative_to(ROOT)}:{number}")
    return places


def nested_comprehensions(paths: Iterable[Path]) -> list[str]:
    """Where a comprehension has two generators or contains another one, as FILE:LINE."""
    places = []
    for path, node in nodes(paths):
        if isinstance(node, COMPREHENSIONS):
            inner = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
            if len(node.generators) > 1 or len(inner) > 1:
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return places


def conditional_expressions(paths: Iterable[Path]) -> list[str]:
    """Where an expression is `a if b else c`, as FILE:LINE."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in nodes(paths)
        if isinstance(node, ast.IfExp)
    ]


def nodes(paths: Iterable[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(read(path).tree):
            yield path, node


def import_circles() -> list[str]:
    """Sets of modules of jhima/ that import each other, in functions and for type checkers too."""
    modules = {}
    for path in (ROOT / "jhima").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    imported = {name: imports(path, modules) - {name} for name, path in modules.items()}
    reachable = {name: reach(name, imported) for name in modules}
    circles = set()
    for name in modules:
        circle = {other for other in reachable[name] if name in reachable[other]}
        if circle:
            circles.add(" <-> ".join(sorted(circle)))
    return sorted(circles)


def imports(path: Path, modules: dict[str, Path]) -> set[str]:
    names = set()
    for node in ast.walk(read(path).tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & modules.keys() - {"jhima"}


def reach(name: str, imported: dict[str, set[str]]) -> set[str]:
    """All modules that importing `name` imports, directly or not."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        new = imported[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def token_trip() -> list[str]:
    """The files that TOKEN_TRIP passes, in order and as often as it does.

    Raises ValueError if one of its functions does not exist.
    """
    files = []
    for line in TOKEN_TRIP.strip().splitlines():
        stage, functions = line.split(":")
        for words in functions.split(","):
            file, function = words.split()
            if not (ROOT / file).exists() or function not in functions_of(ROOT / file):
                raise ValueError(f"TOKEN_TRIP, {stage}: {file} has no function {function}")
            files.append(file)
    return files


def functions_of(path: Path) -> set[str]:
    """The functions of a file, and the methods as CLASS.METHOD."""
    names = set()
    for node in read(path).tree.body:
        if isinstance(node, FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, FUNCTIONS)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def figures() -> list[Figure]:
    """All figures. The rates are per 1,000 code lines of the scripts and jhima/."""
    scripts, top = sorted(ROOT.glob("*.py")), sorted((ROOT / "jhima").glob("*.py"))
    package = sorted((ROOT / "jhima").rglob("*.py"))
    core = [*top, ROOT / "train_rl.py"]
    library = [path for path in package if "pocket" not in path.parts]
    everything = scripts + package
    others = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/**/*.py")])

    thousands = code_lines(everything) / 1000
    nested, conditional = nested_comprehensions(everything), conditional_expressions(everything)
    wide, circles, trip = long_lines(everything + others), import_circles(), token_trip()
    changes = sum(before != after for before, after in pairwise(trip))
    return [
        Figure("files in jhima/*.py", len(top), 14),
        Figure("code lines, jhima/*.py and train_rl.py", code_lines(core), 2300, docs(core)),
        Figure(
            "code lines, scripts and jhima/ without pocket/",
            code_lines(scripts + library),
            10500,
            docs(scripts + library),
        ),
        Figure("import circles", len(circles), 0, first(circles)),
        Figure("nested comprehensions per 1,000", len(nested) / thousands, 2, first(nested)),
        Figure("conditional expressions per 1,000", len(conditional) / thousands, 25),
        Figure(f"lines over {COLUMNS} columns", len(wide), 0, first(wide)),
        Figure("files that one actor token passes", len(set(trip)), 12, f"{changes} changes"),
    ]


def docs(paths: list[Path]) -> str:
    return f"{code_lines(paths, docstrings=True):,} with docstrings"


def first(places: list[str]) -> str:
    return ", ".join(places[:3])


def main() -> None:
    rows = figures()
    print("A code line is not blank, not a comment and not part of a docstring.\n")
    print(f"{'':48}{'now':>8}{'limit':>8}")
    for row in rows:
        mark = "   over the limit" if row.value > row.limit else ""
        print(f"{row.name:48}{row.value:>8,.4g}{row.limit:>8,.4g}{mark}   {row.note}".rstrip())
    sys.exit(any(row.value > row.limit for row in rows))


if __name__ == "__main__":
    main()
