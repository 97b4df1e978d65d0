"""The code stays small and plain: no figure of benchmarks/code_shape.py is over its limit."""

from __future__ import annotations

from benchmarks import code_shape

SOURCE = '''"""A docstring
of two lines."""

# a comment
import b


def f(rows):
    """One line."""
    x = [a for row in rows for a in row]

    return x if rows else {k: [v for v in rows] for k in rows}
'''


def test_no_figure_is_over_its_limit():
    over = []
    for figure in code_shape.figures():
        if figure.value > figure.limit:
            over.append(f"{figure.name}: {figure.value:.4g} > {figure.limit}; {figure.note}")
    assert not over


def test_what_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(code_shape, "ROOT", tmp_path)
    (tmp_path / "jhima").mkdir()
    a, b = tmp_path / "jhima" / "a.py", tmp_path / "jhima" / "b.py"
    a.write_text(SOURCE.replace("import b", "from jhima import b"))
    b.write_text("def g():\n    import jhima.a\n\n\nlong = " + "1" * 94 + "\n")
    assert code_shape.code_lines([a]) == 4 and code_shape.code_lines([a], docstrings=True) == 7
    assert code_shape.nested_comprehensions([a, b]) == ["jhima/a.py:10", "jhima/a.py:12"]
    assert code_shape.conditional_expressions([a, b]) == ["jhima/a.py:12"]
    assert code_shape.long_lines([a, b]) == ["jhima/b.py:5"]
    assert code_shape.import_circles() == ["jhima.a <-> jhima.b"]
