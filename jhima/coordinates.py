"""Pixels: the grid that a model sees, and the way from its coordinates back to the page's.

A screenshot is resized once to multiples of 28 within a pixel budget; the model names points on
that grid (or on one of 0-1000, or of 0-1). Points are mapped to the page first and clamped
afterwards: the grid may be larger than the page (1288 columns for 1280), so its last columns are
legal.
"""

from __future__ import annotations

import math

PATCH, MERGE = 14, 2  # Qwen2.5-VL: 14-px patches, 2x2 patches per token
FACTOR = PATCH * MERGE  # the side of a token's square: 28 px
MIN_PIXELS, MAX_PIXELS = 3136, 2_109_744  # ScaleCUA's training values; 1280x720 lies well inside
OUTSIDE = 0.02  # share of the viewport: a point this far past an edge is clamped, not refused

Size = tuple[int, int]  # (width, height)
Point = tuple[float, float]  # (x, y)


def smart_resize(
    width: int, height: int, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS
) -> Size:
    """(width, height) that Qwen2.5-VL sees: multiples of 28 within the pixel budget.

    Upstream's rule. Raises ValueError for an aspect ratio above 200.

    >>> smart_resize(1280, 720), smart_resize(336, 336)
    ((1288, 728), (336, 336))
    """
    if max(width, height) > 200 * min(width, height):
        limit = "(aspect ratio above 200)"
        raise ValueError(f"an image of {width}x{height} is too long for Qwen2.5-VL {limit}")
    w, h = (max(FACTOR, round(side / FACTOR) * FACTOR) for side in (width, height))
    if w * h > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        w = max(FACTOR, math.floor(width / shrink / FACTOR) * FACTOR)
        h = max(FACTOR, math.floor(height / shrink / FACTOR) * FACTOR)
    elif w * h < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        w, h = (math.ceil(side * grow / FACTOR) * FACTOR for side in (width, height))
    return w, h


def to_page(point: Point, grid: Point, viewport: Size) -> Point | None:
    """A point on the model's grid in CSS pixels, inside the viewport; None if it lies too far out.

    >>> to_page((1288, 364), (1288, 728), (1280, 720))
    (1279.0, 360.0)
    """
    inside = []
    for value, span, side in zip(point, grid, viewport):
        css = value / span * side
        clamped = min(max(css, 0.0), side - 1.0)
        if not abs(css - clamped) <= OUTSIDE * side:  # NaN too
            return None
        inside.append(clamped)
    return inside[0], inside[1]


def to_grid(point: Point, grid: Point, viewport: Size) -> tuple[int, int]:
    """The whole-numbered grid point nearest to a point of the page: what `to_page` maps back."""
    return round(point[0] / viewport[0] * grid[0]), round(point[1] / viewport[1] * grid[1])
