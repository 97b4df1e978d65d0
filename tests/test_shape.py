"""The code stays small and plain: no figure of benchmarks/code_shape.py is over its limit."""

from __future__ import annotations

import pytest

from benchmarks import code_shape


@pytest.mark.parametrize("figure", code_shape.figures(), ids=lambda figure: figure.name)
def test_no_figure_is_over_its_limit(figure):
    assert figure.value <= figure.limit, figure.note
