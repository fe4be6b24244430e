"""Pictures of results, with numpy and pillow alone: matched points, a mask over its picture, a sheet of pictures.

Everything drawn is bright with a dark edge, or white in a dark box, so it can be read on light and dark pictures alike.
Each function takes what `read_image` takes and gives a new RGB picture.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFilter

from foveal.tasks.lettering import BOX, INK, Colour, boxed, contrast, font_for, line_height
from foveal.zoo.images import read_image

GROUND: Colour = (117, 117, 117)  # as far from black as from white
SCORES = ((240, 90, 60), (250, 215, 60), (90, 205, 255))  # 0, ½ and 1: red to blue, told apart by the colour-blind too
GAP = 8  # between pictures
BAR = 12  # height of the colour bar


def score_colours(scores: Any) -> NDArray[np.uint8]:
    """(N, 3) RGB of N scores in 0..1, from red over yellow to blue; all of them stand out from a dark edge.

    >>> score_colours([0.0, 0.5, 1.0]).tolist()
    [[240, 90, 60], [250, 215, 60], [90, 205, 255]]
    """
    places = np.linspace(0, 1, len(SCORES))
    channels = [np.interp(_array(scores), places, channel) for channel in zip(*SCORES)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def draw_matches(image0: Any, image1: Any, points0: Any, points1: Any, confidence: Any = None) -> Image.Image:
    """Two pictures side by side, a line from each point to its match; the surest lines lie on top.

    Args:
        image0, image1: pictures of any sizes; the smaller one gets a grey ground.
        points0, points1: (N, 2) x, y in pixels of their own picture; N may be 0: the two pictures alone.
        confidence: (N,) in 0..1, shown as colours with a bar below the pictures. Without it all lines are blue.
    Returns:
        The pictures' widths and a gap wide; as high as the higher one, and the bar.
    Raises:
        ValueError: when points are not (N, 2), not finite or outside their picture, counts differ, or a confidence is
            outside 0..1.
        ImageError: when a picture can't be read.

    >>> grey = np.full((40, 60), 200, np.uint8)
    >>> draw_matches(grey, grey[:20], [[5, 5]], [[50, 10]]).size
    (128, 40)
    """
    left, right = read_image(image0), read_image(image1)
    start, end = _points("points0", points0, left), _points("points1", points1, right)
    if len(start) != len(end):
        raise ValueError(f"draw_matches: a match has two points, got {len(start)} in points0 and {len(end)} in points1")
    scores = np.ones(len(start)) if confidence is None else _array(confidence)
    if scores.shape != (len(start),) or not ((scores >= 0) & (scores <= 1)).all():
        raise ValueError(f"draw_matches: confidence must be ({len(start)},) numbers in 0..1, got {_told(scores)}")
    shift = left.width + GAP
    canvas = Image.new("RGB", (shift + right.width, max(left.height, right.height)), GROUND)
    canvas.paste(left, (0, 0))
    canvas.paste(right, (shift, 0))
    if not len(start):
        return canvas
    draw, thick = ImageDraw.Draw(canvas), max(2, round(max(canvas.size) / 700))
    radius, colours = thick + 2, score_colours(scores)
    for i in np.argsort(scores, kind="stable"):
        ends = (*start[i].round().tolist(), *(end[i] + (shift, 0)).round().tolist())
        colour = tuple(colours[i].tolist())
        draw.line(ends, BOX, thick + 2)
        for x, y in (ends[:2], ends[2:]):
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour, BOX)
        draw.line(ends, colour, thick)
    return canvas if confidence is None else _with_bar(canvas)


def _with_bar(canvas: Image.Image) -> Image.Image:
    """The picture with the colours of all scores below it, 0 to 1."""
    font = font_for("01", BAR)
    side = math.ceil(font.getlength("0")) + 8
    out = Image.new("RGB", (canvas.width, canvas.height + BAR + 8), BOX)
    out.paste(canvas, (0, 0))
    width = min(160, canvas.width - 2 * side)
    if width < 8:  # no room for numbers
        side, width = 2, max(1, canvas.width - 4)
    else:
        draw = ImageDraw.Draw(out)
        for x, text in ((side / 2, "0"), (side * 1.5 + width, "1")):
            draw.text((x, canvas.height + 4 + BAR / 2), text, INK, font, anchor="mm")
    bar = np.broadcast_to(score_colours(np.linspace(0, 1, width)), (BAR, width, 3))
    out.paste(Image.fromarray(np.ascontiguousarray(bar)), (side, canvas.height + 4))
    return out


def overlay_mask(image: Any, mask: Any, text: str | None = None, colour: str | Colour = (255, 110, 0)) -> Image.Image:
    """A picture with a mask laid over it, half transparent with an outline, and a line of text at the bottom left.

    Args:
        image: the picture.
        mask: (height, width) of any size, nearest pixels are taken: booleans, 0 and 1, or probabilities in 0..1, which
            are laid on as strongly as they are large, with the outline at 0.5. Logits go through a sigmoid first.
        text: wrapped to at most 3 lines, then cut; not drawn when empty.
        colour: of the mask, RGB or a name that pillow knows.
    Returns:
        A picture of the same size. The outline is the colour, with an edge of black or white around it that stands out.
    Raises:
        ValueError: when the mask is not two-dimensional or has values outside 0..1, or the colour is none.
        ImageError: when the picture can't be read.

    >>> half = overlay_mask(np.zeros((32, 32), np.uint8), np.eye(2), colour="white")
    >>> half.getpixel((5, 5)), half.getpixel((28, 5))
    ((128, 128, 128), (0, 0, 0))
    """
    picture, rgb = read_image(image), _colour(colour)
    share = _mask(mask, picture)
    pixels = np.asarray(picture, dtype=np.float64)
    pixels = pixels + 0.5 * share[..., None] * (np.asarray(rgb) - pixels)
    inside = share >= 0.5
    thick = max(1, round(max(picture.size) / 400))
    shape = Image.fromarray(inside.astype(np.uint8))
    grown, shrunk = (
        np.asarray(shape.filter(rank(2 * thick + 1))) > 0
        for rank in (ImageFilter.MaxFilter, ImageFilter.MinFilter)
    )
    pixels[inside & ~shrunk] = rgb
    pixels[grown & ~inside] = max(INK, BOX, key=lambda other: contrast(rgb, other))
    out = Image.fromarray((pixels + 0.5).astype(np.uint8))
    if text:
        size = int(np.clip(picture.height // 26, 11, 32))
        boxed(out, text, font_for(text, size), (0, 0, *picture.size), lines=3)
    return out


def contact_sheet(
    pictures: Sequence[Any],
    labels: Sequence[str] | None = None,
    columns: int | None = None,
    cell: int | tuple[int, int] = 160,
) -> Image.Image:
    """Pictures of any sizes in a grid on a grey ground, each fitted into its cell, with a label below it.

    Args:
        pictures: at least one. Small ones are enlarged by whole factors with their pixels kept.
        labels: one a picture, wrapped to at most 2 lines, then cut with "…".
        columns: how many; without it the sheet is about square.
        cell: side, or width and height, that a picture is fitted into; at least 16.
    Raises:
        ValueError: when there are no pictures, labels are not one a picture, or columns or cell are too small.
        ImageError: when a picture can't be read.

    >>> contact_sheet([np.zeros((9, 9), np.uint8)] * 3, ["a", "b", "c"], columns=3, cell=32).size
    (128, 86)
    """
    wide, high = (cell, cell) if isinstance(cell, int) else cell
    if not len(pictures):
        raise ValueError("contact_sheet: needs at least one picture, got none")
    if labels is not None and len(labels) != len(pictures):
        raise ValueError(f"contact_sheet: needs a label for each of {len(pictures)} pictures, got {len(labels)}")
    if columns is not None and columns < 1:
        raise ValueError(f"contact_sheet: columns must be 1 or more, got {columns}")
    if min(wide, high) < 16:
        raise ValueError(f"contact_sheet: a cell must be at least 16 pixels wide and high, got {wide} x {high}")
    across = min(columns or math.ceil(math.sqrt(len(pictures))), len(pictures))
    down = math.ceil(len(pictures) / across)
    size = int(np.clip(min(wide, high) // 11, 11, 24))
    below = 2 * line_height(size) + 8 if labels is not None else 0
    step_x, step_y = wide + GAP, high + below + GAP
    sheet = Image.new("RGB", (across * step_x + GAP, down * step_y + GAP), GROUND)
    for i, source in enumerate(pictures):
        x, y = GAP + i % across * step_x, GAP + i // across * step_y
        picture = _fitted(read_image(source), wide, high)
        sheet.paste(picture, (x + (wide - picture.width) // 2, y + (high - picture.height) // 2))
        if labels is not None:
            boxed(sheet, labels[i], font_for(labels[i], size), (x, y + high, x + wide, y + high + below), 2, top=True)
    return sheet


def _fitted(picture: Image.Image, wide: int, high: int) -> Image.Image:
    scale = min(wide / picture.width, high / picture.height)
    if scale >= 2:
        return picture.resize((picture.width * int(scale), picture.height * int(scale)), Image.Resampling.NEAREST)
    if scale >= 1:
        return picture
    return picture.resize((max(1, int(picture.width * scale)), max(1, int(picture.height * scale))))


def _array(values: Any) -> NDArray[np.float64]:
    """Numbers as float64, from a list, an array or a tensor on any device."""
    on_cpu = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        return np.asarray(on_cpu, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"needs an array of numbers, got {type(values).__name__} ({error})") from error


def _told(array: NDArray[Any]) -> str:
    return f"{array.shape} from {array.min():g} to {array.max():g}" if array.size else f"{array.shape}"


def _points(name: str, given: Any, picture: Image.Image) -> NDArray[np.float64]:
    points = _array(given)
    if points.shape == (0,):
        return points.reshape(0, 2)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise ValueError(f"draw_matches: {name} must be (N, 2) finite pixels, x and y, got {_told(points)}")
    if not ((points >= -1) & (points <= picture.size)).all():
        raise ValueError(
            f"draw_matches: {name} go from {_pair(points.min(0))} to {_pair(points.max(0))}, outside their picture of "
            f"{picture.width} x {picture.height}; give them in its own pixels"
        )
    return points


def _pair(xy: NDArray[np.float64]) -> str:
    return f"({xy[0]:g}, {xy[1]:g})"


def _mask(given: Any, picture: Image.Image) -> NDArray[np.float64]:
    mask = _array(given)
    if mask.ndim != 2 or not mask.size or not ((mask >= 0) & (mask <= 1)).all():
        raise ValueError(
            f"overlay_mask: mask must be (height, width) booleans or numbers in 0..1, got {_told(mask)}; "
            "take logits through a sigmoid, divide 0 and 255 by 255"
        )
    rows, columns = (
        ((np.arange(goal) + 0.5) * have / goal).astype(np.int64)
        for goal, have in ((picture.height, mask.shape[0]), (picture.width, mask.shape[1]))
    )
    return mask[rows[:, None], columns]


def _colour(given: str | Colour) -> Colour:
    try:
        red, green, blue = ImageColor.getrgb(given)[:3] if isinstance(given, str) else given
        colour = int(red), int(green), int(blue)
    except (TypeError, ValueError) as error:
        raise ValueError(f"overlay_mask: colour must be three values 0..255 or a name, got {given!r}") from error
    if not all(0 <= value <= 255 for value in colour):
        raise ValueError(f"overlay_mask: colour must be three values 0..255 or a name, got {given!r}")
    return colour
