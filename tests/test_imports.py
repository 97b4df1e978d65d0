"""Imports point one way: every module imports only what stands above it in this table (README
shows the same).
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = """
failures coordinates run_directory grpo prompts cli
reply_reader models
actions policy
episodes browser
sampler data webarena
serving pocket
environment
rollout
training baselines results pocket.play
pocket.pretraining
"""


def folder_of(module: str) -> str:
    """The name under which LAYERS has a module: its folder, or itself at the top of jhima/."""
    parts = module.removeprefix("jhima.").split(".")
    inner = ".".join(parts[:2])
    return inner if inner in LAYERS.split() else parts[0]


def modules() -> dict[str, Path]:
    paths = sorted((ROOT / "jhima").rglob("*.py"))
    dotted = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in dotted.items()}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports anywhere, inside functions and for type checkers
    too.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return {name for name in found if name.split(".")[0] == "jhima"}


def test_imports_point_one_way():
    known = modules()
    level = {name: n for n, line in enumerate(LAYERS.strip().splitlines()) for name in line.split()}
    wrong = []
    for module, path in known.items():
        if module == "jhima" or module.endswith("__main__"):  # commands, like the scripts
            continue
        for other in imports(path, known) - {"jhima", module}:
            here, there = folder_of(module), folder_of(other)
            if here != there and level[there] >= level[here]:
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_there_are_no_import_circles():
    known = modules()
    remaining = {module: imports(path, known) - {module} for module, path in known.items()}
    while free := {module for module, others in remaining.items() if not others & remaining.keys()}:
        for module in free:
            del remaining[module]
    assert not remaining


def test_nothing_in_the_package_imports_a_script():
    scripts = {path.stem for path in ROOT.glob("*.py")}
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not scripts & {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in scripts, path


def test_the_readme_shows_the_same_table():
    assert LAYERS.strip() in (ROOT / "README.md").read_text("utf-8")
