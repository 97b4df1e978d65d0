"""Pixels: the grid that a model sees, and from its coordinates back to the page's.

A screenshot is resized once to multiples of 28 within a pixel budget; the model names points on that grid (or on one
of 0-1000, or of 0-1). Points are mapped to the page first and clamped then: the grid may be larger than the page
(1288 columns for 1280), so its last columns are legal.
"""

from __future__ import annotations

import math

PATCH, MERGE = 14, 2  # Qwen2.5-VL: 14-px patches, 2x2 patches a token


FACTOR = PATCH * MERGE  # 28 px a token and side


MIN_PIXELS, MAX_PIXELS = 3136, 2_109_744  # ScaleCUA's training values; 1280x720 lies well inside


OUTSIDE = 0.02  # of the viewport: so far past an edge, a point is clamped, not refused


Size = tuple[int, int]  # (width, height)


def smart_resize(
    width: int, height: int, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS
) -> Size:
    """(width, height) that Qwen2.5-VL sees: multiples of 28 within the pixel budget. Matches upstream's rule.

    Raises ValueError for an aspect ratio above 200.

    >>> smart_resize(1280, 720), smart_resize(336, 336)
    ((1288, 728), (336, 336))
    """
    if max(width, height) > 200 * min(width, height):
        raise ValueError(
            f"an image of {width}x{height} is too long for Qwen2.5-VL (aspect ratio above 200)"
        )
    w, h = (max(FACTOR, round(side / FACTOR) * FACTOR) for side in (width, height))
    if w * h > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        w, h = (
            max(FACTOR, math.floor(side / shrink / FACTOR) * FACTOR) for side in (width, height)
        )
    elif w * h < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        w, h = (math.ceil(side * grow / FACTOR) * FACTOR for side in (width, height))
    return w, h


def to_page(
    point: tuple[float, float], grid: tuple[float, float], viewport: Size
) -> tuple[float, float] | None:
    """A point on the model's grid in CSS pixels of the viewport, inside it; None where it lies too far outside.

    >>> to_page((1288, 364), (1288, 728), (1280, 720))
    (1279.0, 360.0)
    """
    page = [value / span * side for value, span, side in zip(point, grid, viewport)]
    inside = [min(max(css, 0.0), side - 1.0) for css, side in zip(page, viewport)]
    if any(
        not abs(css - clamped) <= OUTSIDE * side
        for css, clamped, side in zip(page, inside, viewport)
    ):
        return None  # NaN too
    return inside[0], inside[1]


def to_grid(
    point: tuple[float, float], grid: tuple[float, float], viewport: Size
) -> tuple[int, int]:
    """The whole-numbered grid point nearest to a point of the page; a point `to_page` does not clamp comes back."""
    return round(point[0] / viewport[0] * grid[0]), round(point[1] / viewport[1] * grid[1])
