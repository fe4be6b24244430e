"""The one image reader of the package: any picture in, a plain 8-bit "RGB" or "L" picture out, or one clear sentence.

Pillow keeps its size limit and its truncated-file switch in module globals, so headers and pixels are read under one
lock, which puts the globals back: a process decodes one picture at a time (worker processes do not share the lock).
"""

from __future__ import annotations

import io
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

Source = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | np.ndarray
Mode = Literal["RGB", "L"]
Colour = tuple[int, int, int]

MAX_PIXELS = 178_956_970  # where Pillow itself starts to refuse
WHITE = (255, 255, 255)
_POLICIES = ("error", "skip", "substitute")
_SHAPES = "uint8 or uint16 shaped (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
_HTML = re.compile(rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.I | re.S)
_MID_GREY: dict[str, int | tuple[int, ...]] = {
    "L": 128, "LA": (128, 255), "RGB": (128, 128, 128), "RGBA": (128, 128, 128, 255), "I;16": 32896
}  # fmt: skip
# Pillow scales these PNG samples to 8 bit but leaves the transparent colour of tRNS in the file's own range.
_KEY_TO_8BIT: dict[str, Callable[[Any], Any]] = {
    "1": lambda v: 255 if v else 0,  # recent versions of Pillow scale this one themselves
    "L;2": lambda v: v * 85,
    "L;4": lambda v: v * 17,
    "RGB;16B": lambda v: tuple(c >> 8 for c in v),
}
_TURN = Image.Transpose
_UPRIGHT = dict(enumerate((_TURN.FLIP_LEFT_RIGHT, _TURN.ROTATE_180, _TURN.FLIP_TOP_BOTTOM, _TURN.TRANSPOSE,
                           _TURN.ROTATE_270, _TURN.TRANSVERSE, _TURN.ROTATE_90), start=2))  # fmt: skip
_AS_STORED = {**_UPRIGHT, 6: _TURN.ROTATE_90, 8: _TURN.ROTATE_270}  # the others are their own inverse

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # forked in the middle of a read, a child would keep a held lock for ever
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class ImageError(ValueError):
    """One picture cannot be read: a sentence with which one, what is wrong, what was expected and what to do."""


def read_image(
    source: Source, *, mode: Mode = "RGB", exif: bool = True, background: Colour = WHITE, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Read one picture as a new 8-bit image, values 0..255, with no metadata left on it.

    `source` is a path (``~`` is expanded), bytes, a binary file object (read from its start, left open), a PIL image
    (its current frame; it is loaded, not changed) or a numpy array of uint8 or uint16 shaped (H, W), (H, W, 1),
    (H, W, 3) or (H, W, 4). Of an animation the first frame is read.

    - EXIF orientation is applied, or with ``exif=False`` ignored: the pixels as stored. Unreadable EXIF counts as none.
    - Transparency of any kind is composited on `background`, three values 0..255.
    - 16-bit grey and uint16 arrays are divided by 257 and rounded (65535 -> 255). Pillow reads 16-bit colour files by
      their high bytes instead (floor(v / 256), at most 1 off), and so their tRNS colour is compared by high bytes.
    - CMYK, YCbCr, LAB, HSV, palette and 1-bit pictures are converted by Pillow, without their ICC profile. Mode "L" is
      the ITU-R 601 luma.

    Raises:
        ImageError: the source cannot be opened (missing, a directory, no permission), is empty, is not a picture (an
            HTML page is named as such), is truncated or damaged, has no pixels, has more than `max_pixels` pixels by
            its header (it is not decoded then), holds float or out-of-range 32-bit values, or is of no accepted type.
        ValueError: `mode` or `background` is not as above.

    >>> import numpy as np
    >>> picture = read_image(np.array([[0, 32896, 65535]], np.uint16))
    >>> picture.mode, picture.size, picture.getpixel((1, 0))
    ('RGB', (3, 1), (128, 128, 128))
    """
    _check_arguments(mode, background)
    with _opened(source) as (name, opened):
        return _decode(opened, name, False, mode, exif, background, max_pixels)


def read_or(
    source: Source,
    *,
    on_bad: Literal["error", "skip", "substitute"],
    mode: Mode = "RGB",
    exif: bool = True,
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Image.Image | None, str | None]:
    """Read like `read_image` with a policy for what cannot be read: (picture, None), or (what is left, reason).

    ``on_bad="error"`` raises. ``"skip"`` gives (None, reason). ``"substitute"`` gives what a truncated or damaged file
    still decodes to, the rest mid-grey (128) where rows are stored in order (JPEG, PNG, BMP, TIFF), or a mid-grey
    224x224 picture when nothing can be decoded. The reason is the sentence of the `ImageError`: count it and list it.

    Raises:
        ImageError: with ``on_bad="error"``, as `read_image`.
        ValueError: `on_bad` is none of the three, or `mode` or `background` is not as `read_image` says.
    """
    if on_bad not in _POLICIES:
        raise ValueError(f"on_bad={on_bad!r} is not a policy; choose one of {', '.join(map(repr, _POLICIES))}")
    _check_arguments(mode, background)
    try:
        with _opened(source) as (name, opened):
            try:
                return _decode(opened, name, False, mode, exif, background, max_pixels), None
            except ImageError as error:
                if on_bad != "substitute":
                    raise
                kept = _decode(opened, name, True, mode, exif, background, max_pixels)
                return kept, f"{error} (what could be decoded was kept)"
    except ImageError as error:
        if on_bad == "error":
            raise
        if on_bad == "skip":
            return None, str(error)
        return Image.new(mode, (224, 224), _MID_GREY[mode]), f"{error} (replaced by a mid-grey 224x224 picture)"


def _check_arguments(mode: str, background: Colour) -> None:
    if mode not in ("RGB", "L"):
        raise ValueError(f"mode={mode!r} is not a mode of this reader; choose 'RGB' or 'L'")
    if len(background) != 3 or not all(0 <= value <= 255 for value in background):
        raise ValueError(f"background={background!r} is not a colour; give three values 0..255")


@contextmanager
def _opened(source: Any) -> Iterator[tuple[str, BinaryIO | Image.Image]]:
    """What an error calls the source, with a PIL image or a seekable, non-empty binary file."""
    if isinstance(source, Image.Image):
        yield "the PIL image", source
    elif isinstance(source, np.ndarray):
        yield "the numpy array", _from_array(source)
    elif isinstance(source, bytes | bytearray | memoryview):
        yield "the image bytes object", _seekable(io.BytesIO(source), "the image bytes object")
    elif isinstance(source, str | os.PathLike):
        path = os.path.expanduser(os.fsdecode(source))
        try:
            file = open(path, "rb")  # noqa: SIM115 - the with below; here only opening may fail
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ImageError(f"'{path}' cannot be opened ({why}); pass the path of one readable image file") from error
        with file:
            yield f"'{path}'", _seekable(file, f"'{path}'")
    elif hasattr(source, "read"):
        name = f"the file object {getattr(source, 'name', type(source).__name__)!r}"
        yield name, _seekable(source, name)
    else:
        raise ImageError(
            f"an object of type {type(source).__name__} is no image source; pass a path, bytes, a binary file object, "
            f"a PIL image or a numpy array of {_SHAPES}"
        )


def _seekable(file: Any, name: str) -> BinaryIO:
    try:
        try:
            file.seek(0)
        except (AttributeError, io.UnsupportedOperation):  # a pipe or a download
            file = io.BytesIO(file.read())
        start = file.read(1)  # Pillow itself goes back to the start
    except (OSError, ValueError, TypeError) as error:
        raise ImageError(f"{name} cannot be read ({error}); pass a file object open in binary mode ('rb')") from error
    if isinstance(start, str):
        raise ImageError(f"{name} is open as text; open it in binary mode ('rb')")
    if not start:
        raise ImageError(f"{name} is empty (0 bytes), not a picture; copy or download it again")
    return file


def _from_array(array: np.ndarray) -> Image.Image:
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not shaped or array.dtype.kind != "u" or array.dtype.itemsize > 2:
        raise ImageError(
            f"the numpy array is {array.dtype} shaped {array.shape}, expected {_SHAPES}; scale float values to 0..255 "
            "and convert them, move channels last"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(array if array.dtype == np.uint8 else _to_8bit(array))


def _to_8bit(values: np.ndarray) -> np.ndarray:
    # 257 is odd, so no value lies half way: adding 128 rounds exactly.
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


@contextmanager
def _pillow(max_pixels: int, lenient: bool) -> Iterator[None]:
    """Pillow's globals set for one read, under the lock, and put back."""
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # starts at the limit, where `_load` raises
        saved = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        # Some formats (ICO) decode a picture inside the file while opening it: Pillow's own limit must guard that.
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = max_pixels, lenient
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = saved


def _decode(
    opened: Any, name: str, lenient: bool, mode: Mode, exif: bool, background: Colour, max_pixels: int
) -> Image.Image:
    """The finished picture; anything Pillow raises on the way becomes an `ImageError`."""
    try:
        with _pillow(max_pixels, lenient):
            im, turn = _load(opened, name, lenient, exif, max_pixels)
    except (ImageError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\d+", str(error))
        raise _too_large(name, int(pixels[0]) if pixels else 2 * max_pixels, max_pixels) from error
    except Exception as error:  # on damaged files the decoders raise almost anything
        raise ImageError(f"{name} is {_what_is_wrong(opened, error)}, or download it again") from error
    im = _flatten(im, name, mode, background)
    return im if turn is None else im.transpose(turn)


def _what_is_wrong(opened: Any, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError) and not isinstance(opened, Image.Image):
        opened.seek(0)
        start = opened.read(512)
        if _HTML.match(start):
            return "not a picture but an HTML page, as failed downloads leave them; check the address"
        return f"not a picture Pillow can read, it starts with {start[:8]!r}; convert it to PNG or JPEG"
    if "truncat" in str(error).lower() or isinstance(error, EOFError):
        return f"truncated: it ends before its picture does ({error}); copy it"
    return f"damaged and cannot be decoded ({type(error).__name__}: {error}); copy it"


def _too_large(name: str, pixels: int, max_pixels: int) -> ImageError:
    return ImageError(
        f"{name} has {pixels / 1e6:.1f} megapixels by its header, over the limit of {max_pixels / 1e6:.1f}; it was not "
        f"decoded, pass max_pixels={pixels} if you trust it"
    )


def _load(
    opened: Any, name: str, lenient: bool, exif: bool, max_pixels: int
) -> tuple[Image.Image, Image.Transpose | None]:
    """The decoded picture in its own mode, as a plain image of ours, and the turn it still needs."""
    im = opened if isinstance(opened, Image.Image) else Image.open(opened)
    pixels = im.width * im.height
    if pixels == 0:
        raise ImageError(f"{name} has no pixels (it is {im.width}x{im.height}); pass a picture of at least 1x1")
    if pixels > max_pixels:
        raise _too_large(name, pixels, max_pixels)
    tile = getattr(im, "tile", None)
    scale_key = _KEY_TO_8BIT.get(tile[0][3]) if tile and im.format == "PNG" else None
    turned = getattr(im, "tag_v2", {}).get(ExifTags.Base.Orientation, 1)  # Pillow turns TIFF files while loading them
    if lenient and tile and im.mode in _MID_GREY:  # rows that never come keep this value
        im.im = Image.new(im.mode, im.size, _MID_GREY[im.mode]).im
    im.load()
    turn = _UPRIGHT.get(_orientation(im)) if exif else _AS_STORED.get(turned)
    key = im.info.get("transparency")
    im = im.copy()
    im.info = {} if key is None else {"transparency": scale_key(key) if scale_key else key}
    return im, turn


def _orientation(im: Image.Image) -> Any:
    try:
        return im.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # unreadable EXIF: the parser raises almost anything
        return None


def _flatten(im: Image.Image, name: str, mode: Mode, background: Colour) -> Image.Image:
    """`im` without depth, transparency or colour space: mode "RGB" or "L"."""
    if im.mode == "F":
        raise ImageError(f"{name} holds float values of unknown range; scale them to 0..255 and pass a uint8 array")
    if im.mode.startswith("I"):
        im = _grey_from_16bit(im, name)
    if im.has_transparency_data:
        if im.mode == "La":  # Pillow has no way from La to RGBA
            im = im.convert("LA")
        im = Image.alpha_composite(Image.new("RGBA", im.size, (*background, 255)), im.convert("RGBA"))
    if im.mode not in ("1", "L", "RGB"):  # via RGB also for mode "L": LAB has no way to L
        im = im.convert("RGB")
    return im if im.mode == mode else im.convert(mode)


def _grey_from_16bit(im: Image.Image, name: str) -> Image.Image:
    values = np.asarray(im)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError(
            f"{name} holds 32-bit values {low}..{high}, expected 0..65535; scale them to 0..255 and pass a uint8 array"
        )
    grey = Image.fromarray(_to_8bit(values))
    key = im.info.get("transparency")
    if key is None:
        return grey
    alpha = np.where(values == key, 0, 255).astype(np.uint8)  # before scaling: 257 grey levels share one 8-bit value
    return Image.merge("LA", (grey, Image.fromarray(alpha)))
