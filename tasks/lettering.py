"""Text in pictures: a font that has the letters, lines that fit, and a dark box that makes them stand out."""

import bisect
import functools
import math
import unicodedata
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont
INK: Colour = (255, 255, 255)
BOX: Colour = (16, 16, 16)
# of the system, tried in this order when pillow's own font lacks a letter
OTHERS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "arial.ttf")
ABSENT = "\uffff"  # no font has it, so what it looks like is how a missing letter looks


def line_height(size: int) -> int:
    """Pixels from one line to the next at a font size.

    >>> line_height(11)
    15
    """
    return -(-size * 13 // 10)


def font_for(text: str, size: int) -> Font:
    """Pillow's own font, or when it lacks letters of the text the font of the system that has the most of them.

    >>> font_for("plain", 12).getname()
    ('Aileron', 'Regular')
    """
    own = _font("", size)
    assert own is not None
    letters = {letter for letter in text if not letter.isspace()}
    if not (missing := _missing(own, letters)):
        return own
    best = own
    for name in OTHERS:
        other = _font(name, size)
        if other is not None and (lacks := _missing(other, letters)) < missing:
            best, missing = other, lacks
    return best


@functools.lru_cache(maxsize=64)
def _font(name: str, size: int) -> Font | None:
    try:
        font = ImageFont.truetype(name, size) if name else ImageFont.load_default(size)
    except OSError:
        return None
    return font if isinstance(font, Font) else None


def _missing(font: Font, letters: set[str]) -> int:
    absent = bytes(font.getmask(ABSENT))
    return sum(bytes(font.getmask(letter)) == absent for letter in letters if not letter.isascii() or letter < " ")


def wrapped(text: str, font: Font, width: float, most: int) -> list[str]:
    """Lines no wider than `width` pixels; words longer than that are broken, and what is over `most` lines ends in "…".

    Line breaks of the text count as spaces, control characters are left out, accents are composed.

    >>> wrapped("a cup behind the kettle", font_for("", 12), 60, 2)
    ['a cup', 'behind t…']
    """
    lines = [""]
    for word in "".join(c for c in unicodedata.normalize("NFC", text) if c.isspace() or c.isprintable()).split():
        joined = f"{lines[-1]} {word}".strip()
        if font.getlength(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        while font.getlength(word) > width and len(word) > 1:
            size = _that_fits(word, font, width)
            lines[-1], word = word[:size], word[size:]
            lines.append("")
            if len(lines) > most:
                return _cut(lines, font, width, most)
        lines[-1] = word
        if len(lines) > most:
            return _cut(lines, font, width, most)
    return lines


def _that_fits(word: str, font: Font, width: float) -> int:
    """How many letters of a word fit, one at least."""
    return max(1, bisect.bisect_right(range(1, len(word) + 1), width, key=lambda size: font.getlength(word[:size])))


def _cut(lines: Sequence[str], font: Font, width: float, most: int) -> list[str]:
    last = lines[most - 1]
    while last and font.getlength(last + "…") > width:
        last = last[:-1]
    return [*lines[: most - 1], last.rstrip() + "…"]


def boxed(
    canvas: Image.Image, text: str, font: Font, area: tuple[int, int, int, int], lines: int, top: bool = False
) -> None:
    """Draws white text in a dark box at the bottom left of an area, or at its top; the box stays within the area.

    >>> canvas = Image.new("RGB", (60, 30), "white")
    >>> boxed(canvas, "word", font_for("word", 11), (0, 0, 60, 30), 1)
    >>> canvas.getpixel((1, 20)), canvas.getpixel((1, 2))
    ((16, 16, 16), (255, 255, 255))
    """
    x0, y0, x1, y1 = area
    rows = wrapped(text, font, x1 - x0 - 8, lines)
    if rows == [""]:
        return
    height = line_height(round(font.size))
    wide, high = math.ceil(max(font.getlength(row) for row in rows)) + 8, height * len(rows) + 6
    start = y0 if top else max(y0, y1 - high)
    draw = ImageDraw.Draw(canvas)
    draw.rectangle((x0, start, min(x0 + wide, x1) - 1, min(start + high, y1) - 1), BOX)
    for i, row in enumerate(rows):
        draw.text((x0 + 4, start + 3 + i * height), row, INK, font)


def contrast(one: Colour, other: Colour) -> float:
    """Contrast ratio of two colours, 1 (none) to 21 (black on white); 4.5 is enough for text (WCAG 2.1).

    >>> contrast((0, 0, 0), (255, 255, 255))
    21.0
    """
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    share = np.asarray(colour) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
