"""The image reader: every kind of picture, every error by its sentence, every picture made here by code."""

from __future__ import annotations

import doctest
import io
import os
import signal
import struct
import threading
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin

from foveal.zoo import images
from foveal.zoo.images import ImageError, read_image, read_or

RED, GREEN, BLUE, YELLOW = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)
ON = (10, 20, 30)


def png(width, height, depth, colour, rows, key=b"", palette=b""):
    """A PNG file as bytes: `rows` with their filter bytes, `key` the tRNS chunk."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    extra = (chunk(b"PLTE", palette) if palette else b"") + (chunk(b"tRNS", key) if key else b"")
    return b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def encoded(im, form, **options):
    file = io.BytesIO()
    im.save(file, form, **options)
    return file.getvalue()


def noise(height=64, width=48):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def pixels(im):
    return [im.getpixel((x, y)) for y in range(im.height) for x in range(im.width)]


def test_the_docstring_example_runs():
    result = doctest.testmod(images)
    assert result.attempted > 0
    assert result.failed == 0


# Sources


class Stream:
    """A file object that cannot seek, as a download."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def read(self, count: int = -1) -> Any:
        count = len(self.data) if count < 0 else count
        out, self.data = self.data[:count], self.data[count:]
        return out


@pytest.mark.parametrize("kind", ["str", "path", "home", "bytes", "bytearray", "file", "stream", "pil", "array"])
def test_every_source_gives_the_same_picture(tmp_path, monkeypatch, kind):
    array = noise()
    data = encoded(Image.fromarray(array), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    monkeypatch.setenv("HOME", str(tmp_path))
    source = {
        "str": str(path), "path": path, "home": "~/a.png", "bytes": data, "bytearray": bytearray(data),
        "file": io.BytesIO(data), "stream": Stream(data), "pil": Image.fromarray(array), "array": array,
    }[kind]  # fmt: skip
    if kind == "file":
        source.seek(0, os.SEEK_END)  # as just written: it is read from its start
    read = read_image(source)
    assert read.mode == "RGB"
    assert type(read) is Image.Image
    assert np.array_equal(np.asarray(read), array)
    if kind == "file":
        assert not source.closed


def test_a_pil_source_is_not_changed_and_shares_nothing():
    source = Image.fromarray(noise())
    source.info["dpi"] = (72, 72)
    read = read_image(source)
    read.putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(np.asarray(source), noise())
    assert source.info == {"dpi": (72, 72)}
    assert read.info == {}


def test_arrays_of_every_accepted_shape():
    grey = np.array([[0, 100, 255]], np.uint8)
    assert pixels(read_image(grey)) == [(0,) * 3, (100,) * 3, (255,) * 3]
    assert pixels(read_image(grey[:, :, None])) == [(0,) * 3, (100,) * 3, (255,) * 3]
    assert pixels(read_image(grey, mode="L")) == [0, 100, 255]
    assert pixels(read_image(np.array([[(*RED, 0), (*RED, 255)]], np.uint8), background=ON)) == [ON, RED]
    flipped = noise()[::-1, ::-1]  # negative strides
    assert np.array_equal(np.asarray(read_image(flipped)), flipped)


@pytest.mark.parametrize("order", ["<u2", ">u2"])
@pytest.mark.parametrize("shape", [(256, 256), (256, 256, 1), (64, 256, 4), (256, 64, 4)])
def test_uint16_arrays_are_scaled_exactly(order, shape):
    values = np.arange(65536).reshape(shape)
    if len(shape) == 3 and shape[2] == 4:
        values[..., 3] = 65535
    expected = np.rint(values / 257).astype(np.uint8)
    expected = np.repeat(expected.reshape(*shape[:2], -1)[..., :1], 3, 2) if shape[-1] != 4 else expected[..., :3]
    assert np.array_equal(np.asarray(read_image(values.astype(order))), expected)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.int64), np.zeros((4, 4), bool),
        np.zeros((4, 4), np.uint32), np.zeros((3, 4, 5), np.uint8), np.zeros(4, np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
    ],
)  # fmt: skip
def test_other_arrays_are_refused(array):
    with pytest.raises(ImageError, match=r"the numpy array is \w+ shaped .* expected uint8 or uint16 shaped \(H, W\)"):
        read_image(array)


def test_other_types_are_refused():
    with pytest.raises(ImageError, match="an object of type int is no image source; pass a path, bytes"):
        read_image(3)


# Orientation: where the corners A B / C D of the stored picture belong, for each value of the EXIF tag.

UPRIGHT = {1: "ABCD", 2: "BADC", 3: "DCBA", 4: "CDAB", 5: "ACBD", 6: "CADB", 7: "DBCA", 8: "BDAC"}
CORNERS = {"A": RED, "B": GREEN, "C": BLUE, "D": YELLOW}
FORMATS = [("JPEG", {"quality": 100}), ("PNG", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})]


def turned(orientation, form, options):
    stored = np.zeros((32, 64, 3), np.uint8)
    stored[:16, :32], stored[:16, 32:], stored[16:, :32], stored[16:, 32:] = CORNERS.values()
    tag = Image.Exif()
    tag[0x0112] = orientation
    return encoded(Image.fromarray(stored), form, exif=tag, **options)


def corners(im):
    names = ""
    for x, y in ((0, 0), (im.width - 1, 0), (0, im.height - 1), (im.width - 1, im.height - 1)):
        pixel = np.array(im.getpixel((x, y)))
        names += min(CORNERS, key=lambda name: np.abs(pixel - CORNERS[name]).sum())
    return names


@pytest.mark.parametrize(("form", "options"), FORMATS)
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_applied_once_or_ignored(form, options, orientation):
    data = turned(orientation, form, options)
    upright = read_image(data)
    assert corners(upright) == UPRIGHT[orientation]
    assert upright.size == ((64, 32) if orientation < 5 else (32, 64))
    assert corners(read_image(upright)) == UPRIGHT[orientation]
    stored = read_image(data, exif=False)
    assert corners(stored) == "ABCD"
    assert stored.size == (64, 32)
    assert corners(read_image(Image.open(io.BytesIO(data)))) == UPRIGHT[orientation]


def test_orientations_outside_1_to_8_are_ignored():
    assert corners(read_image(turned(9, "PNG", {}))) == "ABCD"


def test_unreadable_exif_counts_as_none():
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n 4\nnot hexadecimal")
    data = encoded(Image.fromarray(noise()), "PNG", pnginfo=text)
    with pytest.raises(ValueError, match="hexadecimal"):
        Image.open(io.BytesIO(data)).getexif()
    assert np.array_equal(np.asarray(read_image(data)), noise())


# Transparency: each picture is one transparent pixel beside one opaque pixel.


def two(mode, clear, solid):
    im = Image.new(mode, (2, 1), solid)
    im.putpixel((0, 0), clear)
    return im


def palette(colours, mode="RGB"):
    im = two("P", 0, 1)
    im.putpalette(colours, mode)
    return im


def palette_with_alpha():
    im = palette([*RED, *BLUE]).convert("PA")
    im.putalpha(two("L", 0, 255))
    return im


u16 = struct.Struct(">2H").pack
TRANSPARENT = {
    "RGBA": (lambda: two("RGBA", (*RED, 0), (*BLUE, 255)), BLUE),
    "RGBa": (lambda: two("RGBA", (*RED, 0), (*BLUE, 255)).convert("RGBa"), BLUE),
    "LA": (lambda: two("LA", (7, 0), (90, 255)), (90, 90, 90)),
    "La": (lambda: two("LA", (7, 0), (90, 255)).convert("La"), (90, 90, 90)),
    "PA": (palette_with_alpha, BLUE),
    "palette RGBA": (lambda: palette([*RED, 0, *BLUE, 255], "RGBA"), BLUE),
    "RGBA PNG": (lambda: encoded(two("RGBA", (*RED, 0), (*BLUE, 255)), "PNG"), BLUE),
    "GIF": (lambda: encoded(palette([*RED, *BLUE]), "GIF", transparency=0), BLUE),
    "P tRNS": (lambda: png(2, 1, 8, 3, b"\0\0\1", b"\0", bytes([*RED, *BLUE])), BLUE),
    "P tRNS of several": (lambda: png(2, 1, 8, 3, b"\0\0\2", b"\0\x55\xff", bytes([*RED, *RED, *BLUE])), BLUE),
    "L tRNS": (lambda: png(2, 1, 8, 0, b"\0\x07\x5a", b"\0\x07"), (90, 90, 90)),
    "L tRNS 4 bit": (lambda: png(2, 1, 4, 0, b"\0\x12", b"\0\1"), (34, 34, 34)),
    "L tRNS 2 bit": (lambda: png(2, 1, 2, 0, b"\0\x60", b"\0\1"), (170, 170, 170)),
    "1 tRNS white": (lambda: png(2, 1, 1, 0, b"\0\x80", b"\0\1"), (0, 0, 0)),
    "1 tRNS black": (lambda: png(2, 1, 1, 0, b"\0\x40", b"\0\0"), (255, 255, 255)),
    "16-bit tRNS": (lambda: png(2, 1, 16, 0, b"\0" + u16(25700, 25701), u16(25700, 0)[:2]), (100, 100, 100)),
    "RGB tRNS": (lambda: png(2, 1, 8, 2, b"\0\1\2\3\1\2\4", b"\0\1\0\2\0\3"), (1, 2, 4)),
    "RGB tRNS 16 bit": (
        lambda: png(2, 1, 16, 2, b"\0" + bytes([1, 9, 2, 9, 3, 9, 1, 9, 2, 9, 4, 9]), bytes([1, 9, 2, 9, 3, 9])),
        (1, 2, 4),
    ),
}


@pytest.mark.parametrize("name", TRANSPARENT)
def test_transparency_is_composited_on_the_background(name):
    make, solid = TRANSPARENT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(read_image(make())) == [(255, 255, 255), solid]
        assert pixels(read_image(make(), background=ON)) == [ON, solid]
        luma = Image.new("RGB", (1, 1), solid).convert("L").getpixel((0, 0))
        assert pixels(read_image(make(), mode="L")) == [255, luma]


def test_half_transparency_mixes_with_the_background():
    assert pixels(read_image(two("RGBA", (*RED, 128), (*RED, 0)))) == [(255, 127, 127), (255, 255, 255)]


# Depth


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PGM"])
def test_16_bit_grey_is_scaled_exactly(form):
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pgm = b"P5 256 256 65535\n" + values.astype(">u2").tobytes()
    data = pgm if form == "PGM" else encoded(Image.fromarray(values), form)
    assert np.array_equal(np.asarray(read_image(data, mode="L")), np.rint(values / 257).astype(np.uint8))
    assert pixels(read_image(data).crop((255, 255, 256, 256))) == [(255, 255, 255)]


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I"])
def test_16_bit_grey_modes(mode):
    kind = {"I;16B": ">u2", "I": "<i4"}.get(mode, "<u2")
    im = Image.frombytes(mode, (3, 1), np.array([0, 33024, 65535], kind).tobytes())
    assert pixels(read_image(im, mode="L")) == [0, 128, 255]


def test_16_bit_colour_keeps_the_high_bytes():
    assert pixels(read_image(png(1, 1, 16, 2, b"\0" + struct.pack(">3H", 256, 511, 65535)))) == [(1, 1, 255)]


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (0, 65536)])
def test_32_bit_values_out_of_range_are_refused(low, high):
    data = encoded(Image.fromarray(np.array([[low, high]], np.int32)), "TIFF")
    with pytest.raises(ImageError, match=f"holds 32-bit values {low}..{high}, expected 0..65535; scale them"):
        read_image(data)


def test_float_values_are_refused():
    data = encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF")
    with pytest.raises(ImageError, match=r"holds float values of unknown range; scale them to 0\.\.255"):
        read_image(data)


# Colour spaces


def test_cmyk_pictures_are_not_inverted():
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    jpeg = encoded(red, "JPEG", quality=100)
    assert b"Adobe" in jpeg  # stored inverted
    for source in (red, jpeg, encoded(red, "TIFF")):
        assert np.abs(np.subtract(read_image(source).getpixel((8, 8)), RED)).max() <= 2
        assert abs(read_image(source, mode="L").getpixel((8, 8)) - 76) <= 2


@pytest.mark.parametrize(
    ("mode", "value", "rgb"),
    [
        ("YCbCr", (76, 85, 255), (254, 0, 0)), ("LAB", (255, 128, 128), (255, 255, 255)), ("HSV", (0, 255, 255), RED),
        ("1", 1, (255, 255, 255)), ("L", 9, (9, 9, 9)), ("CMYK", (255, 255, 0, 0), BLUE),
    ],
)  # fmt: skip
def test_other_modes_are_converted(mode, value, rgb):
    read = read_image(Image.new(mode, (1, 1), value))
    assert np.abs(np.subtract(read.getpixel((0, 0)), rgb)).max() <= 1
    assert read_image(Image.new(mode, (1, 1), value), mode="L").mode == "L"


def test_palette_pictures_are_converted():
    assert pixels(read_image(encoded(palette([*RED, *BLUE]), "PNG"))) == [RED, BLUE]


def test_the_first_frame_of_an_animation_is_read():
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(data)).n_frames == 2
    assert set(pixels(read_image(data))) == {RED}


def test_unknown_mode_and_background_are_refused():
    with pytest.raises(ValueError, match="mode='BGR' is not a mode of this reader; choose 'RGB' or 'L'"):
        read_image(noise(), mode="BGR")
    for background in ((0, 0), (0, 0, 256)):
        with pytest.raises(ValueError, match=r"is not a colour; give three values 0\.\.255"):
            read_image(noise(), background=background)
    with pytest.raises(ValueError, match="is not a mode"):
        read_or("missing.png", on_bad="skip", mode="P")


# Size


@pytest.mark.parametrize(("limit", "shown"), [(None, "179.0"), (400_000_000, "400.0"), (622_997_999, "623.0")])
def test_a_header_of_623_megapixels_is_refused_without_allocating(tmp_path, monkeypatch, limit, shown):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(27000, 23074, 8, 2, b""))
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", lambda self: pytest.fail("pixels were allocated"))
    options = {} if limit is None else {"max_pixels": limit}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match=rf"bomb.png' has 623.0 megapixels by its header, over .* {shown};"):
            read_image(path, **options)


def test_max_pixels_is_the_last_size_allowed():
    array = noise(10, 10)
    assert read_image(array, max_pixels=100).size == (10, 10)
    for source in (array, Image.fromarray(array), encoded(Image.fromarray(array), "PNG")):
        with pytest.raises(ImageError, match=r"0.0 megapixels by its header, .* pass max_pixels=100 if"):
            read_image(source, max_pixels=99)


def test_the_limits_of_pillow_are_replaced_and_put_back(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encoded(Image.fromarray(noise()), "JPEG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_image(data).size == (48, 64)
        with pytest.raises(ImageError, match="truncated"):
            read_image(data[: len(data) // 2])
    assert Image.MAX_IMAGE_PIXELS == 3
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_a_picture_hidden_in_an_icon_is_refused_too():
    inner = png(400, 400, 8, 0, b"")
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)
    icon = struct.pack("<HHH", 0, 1, 1) + entry + inner
    with pytest.raises(ImageError, match=r"image bytes object has 0.2 megapixels by its header, over the limit of 0.1"):
        read_image(icon, max_pixels=70_000)


# Files that are no pictures


def test_bc64_truncated_jpeg_under_the_three_policies(tmp_path):
    whole = encoded(Image.fromarray(noise(256, 256)), "JPEG", quality=95)
    path = tmp_path / "cut.jpg"
    path.write_bytes(whole[: len(whole) // 2])
    sentence = r"cut.jpg' is truncated: it ends before its picture does .*; copy it, or download it again"
    with pytest.raises(ImageError, match=sentence):
        read_image(path)
    with pytest.raises(ImageError, match=sentence):
        read_or(path, on_bad="error")
    picture, reason = read_or(path, on_bad="skip")
    assert picture is None
    assert "cut.jpg' is truncated" in reason
    picture, reason = read_or(path, on_bad="substitute")
    assert "cut.jpg' is truncated" in reason
    assert "what could be decoded was kept" in reason
    read = np.asarray(picture)
    assert np.array_equal(read[:96], np.asarray(read_image(whole))[:96])
    assert (read[-64:] == 128).all()
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("on_bad", ["error", "skip", "substitute"])
def test_a_good_picture_has_no_reason(on_bad):
    picture, reason = read_or(noise(), on_bad=on_bad)
    assert reason is None
    assert np.array_equal(np.asarray(picture), noise())


@pytest.mark.parametrize(
    ("form", "mode"), [("PNG", "RGB"), ("PNG", "L"), ("PNG", "LA"), ("PNG", "RGBA"), ("PNG", "I;16"), ("TIFF", "RGB")]
)
def test_the_missing_rows_are_mid_grey_in_other_formats(form, mode):
    grey = noise(64, 64)[:, :, 0]
    im = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    data = encoded(im, form)
    data = data[: len(data) // 2]
    for source in (data, Image.open(io.BytesIO(data)), Stream(data)):
        picture, reason = read_or(source, on_bad="substitute", mode="L")
        assert "truncated" in reason
        assert np.array_equal(np.asarray(picture)[:16], grey[:16])
        assert (np.asarray(picture)[-16:] == 128).all()


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_nothing_to_decode_is_substituted_by_grey(tmp_path, mode):
    (tmp_path / "junk.jpg").write_bytes(b"junk" * 99)
    for name, why in (("missing.jpg", "cannot be opened"), ("junk.jpg", "not a picture")):
        picture, reason = read_or(tmp_path / name, on_bad="substitute", mode=mode)
        assert (picture.mode, picture.size) == (mode, (224, 224))
        assert (np.asarray(picture) == 128).all()
        assert why in reason
        assert "replaced by a mid-grey 224x224 picture" in reason
        assert read_or(tmp_path / name, on_bad="skip")[0] is None


def test_a_bomb_is_never_salvaged():
    picture, reason = read_or(png(27000, 23074, 8, 2, b""), on_bad="substitute")
    assert picture.size == (224, 224)
    assert "623.0 megapixels" in reason


def test_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="on_bad='ignore' is not a policy; choose one of 'error', 'skip', 'sub"):
        read_or(noise(), on_bad="ignore")


@pytest.mark.parametrize("start", [b"<!DOCTYPE html>", b"\xef\xbb\xbf\n <HTML lang='en'>", b"<!-- no -->\n<html>"])
def test_an_html_page_saved_as_a_picture_is_named(tmp_path, start):
    path = tmp_path / "page.jpg"
    path.write_bytes(start + b"<body>404</body></html>")
    with pytest.raises(ImageError, match=r"page.jpg' is not a picture but an HTML page, .*download it again"):
        read_image(path)


@pytest.mark.parametrize("data", [b"hello world", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", png(0, 1, 8, 2, b"")])
def test_other_bytes_are_no_picture(data):
    with pytest.raises(ImageError, match=r"image bytes object is not a picture Pillow can read, it starts with b'"):
        read_image(data)


def test_damaged_pictures_are_refused():
    data = bytearray(encoded(Image.fromarray(noise()), "PNG"))
    data[100:200] = bytes(100)
    for source in (bytes(data), b"BM" + bytes(60)):
        with pytest.raises(ImageError, match=r"the image bytes object is damaged and cannot be decoded \(.+\); copy"):
            read_image(source)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.png").touch()
    for source, name in ((tmp_path / "empty.png", "empty.png'"), (b"", "bytes object"), (io.BytesIO(), "'BytesIO'")):
        with pytest.raises(ImageError, match=rf"{name} is empty \(0 bytes\), not a picture; copy or download it again"):
            read_image(source)


def test_paths_that_cannot_be_opened(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(noise()), "PNG"))
    for name, why in (
        ("missing.png", "No such file or directory"), (".", "Is a directory"), ("a.png/b", "Not a directory"),
        ("null\0.png", "null byte"),
    ):  # fmt: skip
        with pytest.raises(ImageError, match=rf"cannot be opened \(.*{why}\); pass the path of one readable"):
            read_image(os.path.join(tmp_path, name))

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(images, "open", refuse, raising=False)  # a root user may read everything
    with pytest.raises(ImageError, match=r"a.png' cannot be opened \(Permission denied\); pass the path of"):
        read_image(tmp_path / "a.png")


def test_file_objects_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(noise()), "PNG"))
    with pytest.raises(ImageError, match="the file object 'StringIO' is open as text; open it in binary mode"):
        read_image(io.StringIO("text"))
    with open(path, encoding="utf-8") as file, pytest.raises(ImageError, match=r"a.png' cannot be read .* binary mode"):
        read_image(file)
    with pytest.raises(ImageError, match=r"the file object '.*a.png' cannot be read \(.*closed file"):
        read_image(file)
    with pytest.raises(ImageError, match=r"the file object 'Stream' cannot be read"):
        read_image(Stream("text"))


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0)])
def test_zero_sized_pictures_are_refused(shape):
    array = np.zeros(shape, np.uint8)
    for source in (array, Image.new("RGB", shape[1::-1])):
        with pytest.raises(ImageError, match=rf"has no pixels \(it is {shape[1]}x{shape[0]}\); pass a picture"):
            read_image(source)


# Threads and processes: Pillow's switches are the process's own.


class Slow(io.BytesIO):
    """A truncated JPEG whose reading stops, while the truncated-file switch is on, until `go` is set."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.inside, self.go = threading.Event(), threading.Event()

    def read(self, count: int | None = -1, /) -> bytes:
        if ImageFile.LOAD_TRUNCATED_IMAGES:
            self.inside.set()
            assert self.go.wait(20)
        return super().read(count)


@pytest.fixture
def salvage():
    """A truncated JPEG and, in the middle of a lenient read of it in another thread, the file that holds it up."""
    data = encoded(Image.fromarray(noise(256, 256)), "JPEG")
    data = data[: len(data) // 2]
    slow = Slow(data)
    thread = threading.Thread(target=read_or, args=(slow,), kwargs={"on_bad": "substitute"})
    thread.start()
    assert slow.inside.wait(20)
    yield data, slow.go
    slow.go.set()
    thread.join(20)
    assert not thread.is_alive()


def test_a_strict_read_never_sees_the_lenient_switch_of_another_thread(salvage):
    data, go = salvage
    outcome = []
    strict = threading.Thread(target=lambda: outcome.append(read_or(data, on_bad="skip")))
    strict.start()
    strict.join(0.2)
    assert strict.is_alive()  # waits for the lenient read
    go.set()
    strict.join(20)
    assert outcome[0][0] is None
    assert "truncated" in outcome[0][1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of any fork beside threads
def test_a_child_forked_during_a_read_can_read(salvage):
    data, go = salvage
    threading.Timer(0.2, go.set).start()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a held lock would hang it
        os._exit(0 if read_or(data, on_bad="skip")[0] is None and not ImageFile.LOAD_TRUNCATED_IMAGES else 1)
    assert os.waitpid(child, 0)[1] == 0
