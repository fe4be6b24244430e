"""Pictures of results, by their pixels: what is drawn is where it belongs and stands out on light and dark."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from foveal.tasks import lettering
from foveal.tasks.draw import GAP, GROUND, contact_sheet, draw_matches, overlay_mask, score_colours
from foveal.tasks.lettering import BOX, INK, boxed, contrast, font_for, wrapped
from foveal.zoo.images import ImageError

SHADES = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128), "ground": GROUND}
RED, YELLOW, BLUE = (tuple(colour.tolist()) for colour in score_colours([0, 0.5, 1]))
NAN = float("nan")


def plain(colour, width=120, height=80):
    return Image.new("RGB", (width, height), colour)


def noise(width=120, height=80, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def colours(picture):
    return {tuple(colour) for colour in np.asarray(picture).reshape(-1, 3).tolist()}


def stands_out(picture, box, least=4.5):
    """Whether a part of a picture holds dark box and bright letters, far apart."""
    part = colours(picture.crop(box))
    return BOX in part and max(contrast(pixel, BOX) for pixel in part) >= least


@pytest.mark.parametrize("shade", SHADES.values(), ids=SHADES)
@pytest.mark.parametrize("score", [0, 0.2, 0.5, 0.8, 1])
def test_lines_have_their_score_s_colour_and_a_dark_edge(shade, score):
    out = draw_matches(plain(shade), plain(shade), [[10, 40]], [[100, 40]], [score])
    colour = tuple(score_colours([score])[0].tolist())
    for x in (10, 60, 119 + GAP // 2, 120 + GAP + 50, 120 + GAP + 100):  # both ends, both pictures and the gap
        assert out.getpixel((x, 40)) == colour
        column = [out.getpixel((x, y)) for y in range(30, 50)]
        assert BOX in column[:10]
        assert BOX in column[10:]
        assert column[0] == column[-1] == (GROUND if 120 <= x < 120 + GAP else shade)
    assert contrast(colour, BOX) > 4.5
    assert max(contrast(colour, shade), contrast(BOX, shade)) > 3


def test_colours_of_scores_are_told_apart():
    steps = [tuple(colour) for colour in score_colours(np.linspace(0, 1, 5)).tolist()]
    for i, one in enumerate(steps):
        for other in steps[i + 1 :]:
            assert sum(abs(a - b) for a, b in zip(one, other)) > 60


def test_surest_line_lies_on_top():
    down, up = ([10, 10], [100, 70]), ([10, 70], [100, 10])  # they cross in the middle
    for sure, unsure in ((down, up), (up, down)):
        out = draw_matches(plain("white"), plain("white"), [sure[0], unsure[0]], [sure[1], unsure[1]], [1, 0])
        middle = {out.getpixel((x, 40)) for x in range(113, 126)}
        assert BLUE in middle
        assert RED not in middle


@pytest.mark.parametrize("confidence", [None, []])
@pytest.mark.parametrize("points", [[], np.zeros((0, 2)), torch.zeros(0, 2)])
def test_no_match_is_the_two_pictures_side_by_side(confidence, points):
    left, right = noise(), noise(50, 90, 1)
    out = np.asarray(draw_matches(left, right, points, points, confidence))
    assert out.shape == (90, 120 + GAP + 50, 3)
    assert np.array_equal(out[:80, :120], left)
    assert np.array_equal(out[:, 120 + GAP :], right)
    assert colours(out[80:, :120]) == colours(out[:, 120 : 120 + GAP]) == {GROUND}


def test_without_scores_lines_are_blue_and_there_is_no_bar():
    out = draw_matches(plain("white"), plain("white"), torch.tensor([[10.0, 40.0]], requires_grad=True), [[10, 40]])
    assert out.size == (240 + GAP, 80)
    assert out.getpixel((60, 40)) == BLUE


@pytest.mark.parametrize("shade", SHADES.values(), ids=SHADES)
def test_bar_of_scores_stands_below(shade):
    out = draw_matches(plain(shade), plain(shade), [[10, 40]], [[10, 40]], [0.5])
    assert out.size[1] > 80
    bar = [out.getpixel((x, 90)) for x in range(out.width)]
    first, last = bar.index(RED), len(bar) - 1 - bar[::-1].index(BLUE)
    assert last - first > 100
    assert bar[(first + last) // 2] == pytest.approx(YELLOW, abs=3)
    assert stands_out(out, (0, 81, first, out.height))
    assert stands_out(out, (last + 1, 81, last + 16, out.height))


def test_tiny_pictures_have_a_bar_without_numbers():
    out = draw_matches(plain("white", 2, 2), plain("white", 3, 2), [[1, 1]], [[0, 0]], [1])
    assert out.width == 5 + GAP
    assert {RED, BLUE} <= colours(out)


def test_nothing_given_is_changed():
    picture, points, mask = Image.fromarray(noise()), np.array([[5.0, 5.0]]), np.ones((8, 8))
    before = [np.array(each) for each in (picture, points, mask)]
    draw_matches(picture, picture, points, points, [1])
    overlay_mask(picture, mask, "words")
    contact_sheet([picture], ["words"])
    assert all(np.array_equal(was, now) for was, now in zip(before, (picture, points, mask)))


@pytest.mark.parametrize("shade", SHADES.values(), ids=SHADES)
@pytest.mark.parametrize("colour", ["red", "black", "white", (128, 128, 128), (255, 110, 0)])
def test_mask_is_blended_and_its_outline_stands_out(shade, colour):
    mask = np.zeros((80, 120), bool)
    mask[20:60, 30:90] = True
    out = overlay_mask(plain(shade), mask, colour=colour)
    assert out.size == (120, 80)
    assert out.getpixel((5, 5)) == shade
    rgb = {"red": (255, 0, 0), "black": (0, 0, 0), "white": (255, 255, 255)}.get(colour, colour)
    assert out.getpixel((60, 40)) == tuple(int((a + b) / 2 + 0.5) for a, b in zip(rgb, shade))
    inner, outer = out.getpixel((30, 40)), out.getpixel((29, 40))
    assert inner == out.getpixel((89, 40)) == out.getpixel((60, 20)) == out.getpixel((60, 59)) == rgb
    assert outer == out.getpixel((90, 40)) == out.getpixel((60, 19)) == out.getpixel((60, 60))
    assert contrast(inner, outer) >= 4.5
    assert out.getpixel((28, 40)) == shade


def test_probabilities_are_laid_on_by_their_size_with_the_outline_at_half():
    ramp = np.tile(np.arange(0, 100) / 100, (20, 1))
    out = np.asarray(overlay_mask(plain("black", 100, 20), ramp, colour="white"))[10, :, 0].astype(float)
    assert out[50] == 255  # the outline
    assert out[49] == BOX[0]
    for x in (0, 10, 48, 52, 99):
        assert out[x] == pytest.approx(127.5 * x / 100, abs=1)


@pytest.mark.parametrize("shape", [(8, 12), (80, 120), (160, 240), (7, 5), (1, 1)])
def test_mask_of_any_size_takes_nearest_pixels(shape):
    mask = np.random.default_rng(0).random(shape) < 0.5
    mask[0, 0] = True
    large = np.asarray(overlay_mask(plain("black"), mask, colour="white"))[..., 2] > 20
    for y, x in ((3, 3), (15, 55), (44, 100), (78, 118)):
        want = mask[int((y + 0.5) * shape[0] / 80), int((x + 0.5) * shape[1] / 120)]
        assert large[y, x] == want


@pytest.mark.parametrize("empty", [True, False])
def test_empty_and_full_masks(empty):
    picture = noise()
    out = np.asarray(overlay_mask(picture, np.full((80, 120), not empty), colour="black"))
    want = picture if empty else (picture / 2 + 0.5).astype(np.uint8)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("kind", ["bool", "uint8", "float32", "torch", "half"])
def test_kinds_of_masks(kind):
    mask = np.eye(4)
    if kind in ("torch", "half"):
        given = torch.eye(4, requires_grad=True) if kind == "torch" else torch.eye(4, dtype=torch.bfloat16)
        given = given.float() if kind == "half" else given
    else:
        given = mask.astype(kind)
    assert overlay_mask(plain("grey"), given).tobytes() == overlay_mask(plain("grey"), mask).tobytes()


@pytest.mark.parametrize("shade", SHADES.values(), ids=SHADES)
def test_text_is_in_a_dark_box_at_the_bottom_left(shade):
    picture = plain(shade, 300, 200)
    out = overlay_mask(picture, np.zeros((2, 2)), "the cup behind the kettle")
    changed = np.argwhere((np.asarray(out) != np.asarray(picture)).any(axis=2))
    (top, left), (bottom, right) = changed.min(0), changed.max(0)
    assert (left, bottom) == (0, 199)
    assert top > 170
    assert right < 250
    assert stands_out(out, (left, top, right + 1, bottom + 1), least=15)
    assert out.getpixel((0, 199)) == BOX
    assert np.array_equal(np.asarray(overlay_mask(picture, np.zeros((2, 2)), "")), np.asarray(picture))
    assert np.array_equal(np.asarray(overlay_mask(picture, np.zeros((2, 2)), " \n\x00")), np.asarray(picture))


@pytest.mark.parametrize("size", [(1, 1), (20, 12), (64, 300), (3000, 40)])
@pytest.mark.parametrize("text", ["word", "many words " * 200, "x" * 5000, "línea été 中文 🙂"])
def test_text_of_any_length_in_pictures_of_any_size(size, text):
    assert overlay_mask(plain("white", *size), np.ones((1, 1)), text).size == size


def test_lines_fit_and_what_is_cut_says_so():
    font = font_for("", 14)
    text = "the man in a white shirt who stands behind the second table from the left"
    lines = wrapped(text, font, 120, 99)
    assert all(font.getlength(line) <= 120 for line in lines)
    assert " ".join(lines) == text
    cut = wrapped(text.replace(" ", "\n"), font, 120, 2)
    assert cut[0] == lines[0]
    assert len(cut) == 2
    assert cut[1].endswith("…")
    assert font.getlength(cut[1]) <= 120
    long = wrapped("a " + "x" * 100, font, 120, 99)
    assert "".join(long) == "a" + "x" * 100
    assert all(font.getlength(line) <= 120 < font.getlength(line + "x") for line in long[1:-1])
    first, last = wrapped("a " + "x" * 100, font, 120, 2)
    assert first == "a"
    assert font.getlength(last) <= 120 < font.getlength("x" + last)
    assert wrapped("a\x00b\u200bc", font, 120, 1) == ["abc"]
    assert wrapped("word", font, -5, 1) == ["…"]


def test_a_font_is_looked_for_only_when_letters_lack(monkeypatch):
    assert font_for("plain, with … an ellipsis", 12).getname()[0] == "Aileron"
    monkeypatch.setattr(lettering, "OTHERS", ("no such font.ttf",))
    assert font_for("中文", 12).getname()[0] == "Aileron"


def test_a_font_of_the_system_is_taken_when_it_has_more_letters(monkeypatch):
    own = font_for("", 12)
    other = lettering.ImageFont.load_default(13)
    monkeypatch.setattr(lettering, "_font", lambda name, size: other if name else own)
    monkeypatch.setattr(lettering, "_missing", lambda font, letters: 1 if font is own else 0)
    assert font_for("été", 12) is other


def test_box_stays_in_its_area():
    canvas = plain("white", 60, 60)
    boxed(canvas, "word " * 30, font_for("", 12), (20, 20, 50, 40), 5)
    outside = np.asarray(canvas).copy()
    outside[20:, 20:50] = 255  # letters of a cut box may hang below
    assert colours(outside) == {INK}


@pytest.mark.parametrize(
    ("count", "columns", "grid"), [(1, None, (1, 1)), (5, None, (3, 2)), (5, 2, (2, 3)), (3, 9, (3, 1))]
)
def test_sheet_is_a_grid(count, columns, grid):
    out = contact_sheet([plain("white")] * count, columns=columns, cell=(40, 30))
    assert out.size == (grid[0] * (40 + GAP) + GAP, grid[1] * (30 + GAP) + GAP)
    for i in range(grid[0] * grid[1]):
        centre = (GAP + i % grid[0] * (40 + GAP) + 20, GAP + i // grid[0] * (30 + GAP) + 15)
        assert out.getpixel(centre) == (INK if i < count else GROUND)
    assert out.getpixel((0, 0)) == GROUND


@pytest.mark.parametrize(
    ("size", "want"),
    [((300, 100), (60, 20)), ((100, 300), (20, 60)), ((10, 10), (60, 60)), ((25, 9), (50, 18)), ((40, 40), (40, 40))],
)
def test_pictures_keep_their_shape_in_their_cell(size, want):
    out = np.asarray(contact_sheet([plain("red", *size)], cell=60))
    rows, columns = np.nonzero((out == (255, 0, 0)).all(axis=2))
    assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == want
    assert abs(columns.mean() - (GAP + 29.5)) <= 0.5
    assert abs(rows.mean() - (GAP + 29.5)) <= 0.5


def test_small_pictures_keep_their_pixels():
    checks = np.indices((7, 7)).sum(0) .astype(np.uint8) % 2 * 255
    out = np.asarray(contact_sheet([checks], cell=63))[GAP : GAP + 63, GAP : GAP + 63, 0]
    assert np.array_equal(out, checks.repeat(9, 0).repeat(9, 1))


@pytest.mark.parametrize("shade", SHADES.values(), ids=SHADES)
def test_labels_stand_below_their_pictures_and_stand_out(shade):
    labels = ["short", "a label with many words that has to be wrapped and cut", "x" * 80, ""]
    out = contact_sheet([plain(shade, 80, 80)] * 4, labels, columns=4, cell=80)
    assert out.height > 80 + 2 * GAP + 20
    for i in range(4):
        x = GAP + i * (80 + GAP)
        below = (x, GAP + 80, x + 80, out.height - GAP)
        if labels[i]:
            assert stands_out(out, below, least=15)
        else:
            assert colours(out.crop(below)) == {GROUND}
        assert colours(out.crop((x, GAP, x + 80, GAP + 80))) == {shade}
        assert colours(out.crop((x + 80, 0, x + 80 + GAP, out.height))) == {GROUND}  # nothing in the gap


def test_ground_is_told_from_white_and_black():
    assert contrast(GROUND, (255, 255, 255)) > 4.5
    assert contrast(GROUND, (0, 0, 0)) > 4.5


def test_modes_paths_and_bytes(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGBA", (9, 9), (255, 0, 0, 0)).save(path)
    sources = [path, path.read_bytes(), Image.new("CMYK", (9, 9)), np.zeros((9, 9), np.uint16)]
    assert contact_sheet(sources, columns=1).mode == "RGB"
    assert draw_matches(sources[0], sources[3], [[1, 1]], [[1, 1]]).mode == "RGB"
    assert overlay_mask(sources[2], [[1]]).mode == "RGB"


def test_torch_is_not_imported():
    code = "import sys, foveal.tasks.draw; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PAIR = {"image0": plain("white"), "image1": plain("white", 50, 40), "points0": [[1, 2]], "points1": [[3, 4]]}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"points0": [[1, 2, 3]]}, r"points0 must be \(N, 2\) finite pixels, x and y, got \(1, 3\) from 1 to 3"),
        ({"points1": [[NAN, 2]]}, r"points1 must be \(N, 2\) finite pixels"),
        ({"points0": [1, 2]}, r"points0 must be \(N, 2\) finite pixels"),
        ({"points0": "ab"}, "needs an array of numbers, got str"),
        ({"points1": [[60, 5]]}, r"points1 go from \(60, 5\) to \(60, 5\), outside their picture of 50 x 40"),
        ({"points0": [[1, 2], [3, 4]]}, "a match has two points, got 2 in points0 and 1 in points1"),
        ({"confidence": [0.5, 0.5]}, r"confidence must be \(1,\) numbers in 0..1, got \(2,\) from 0.5 to 0.5"),
        ({"confidence": [1.5]}, r"confidence must be \(1,\) numbers in 0..1, got \(1,\) from 1.5 to 1.5"),
        ({"confidence": [NAN]}, r"confidence must be \(1,\) numbers in 0..1"),
    ],
)
def test_errors_of_matches(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw_matches(**PAIR | changed)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"mask": np.zeros((1, 4, 4))}, r"mask must be \(height, width\) booleans or numbers in 0..1, got \(1, 4, 4\)"),
        ({"mask": [[7.5]]}, "from 7.5 to 7.5; take logits through a sigmoid, divide 0 and 255 by 255"),
        ({"mask": [[NAN]]}, "mask must be"),
        ({"mask": np.zeros((0, 4))}, r"got \(0, 4\)"),
        ({"mask": [["a"]]}, "needs an array of numbers, got list"),
        ({"colour": "reddish"}, "colour must be three values 0..255 or a name, got 'reddish'"),
        ({"colour": (1, 2)}, r"colour must be three values 0..255 or a name, got \(1, 2\)"),
        ({"colour": (1, 2, 256)}, "colour must be three values"),
        ({"colour": None}, "colour must be three values"),
    ],
)
def test_errors_of_masks(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        overlay_mask(**{"image": plain("white"), "mask": [[1]]} | changed)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"pictures": []}, "needs at least one picture, got none"),
        ({"labels": ["a", "b"]}, "needs a label for each of 1 pictures, got 2"),
        ({"columns": 0}, "columns must be 1 or more, got 0"),
        ({"cell": 15}, "a cell must be at least 16 pixels wide and high, got 15 x 15"),
        ({"cell": (100, 3)}, "a cell must be at least 16 pixels wide and high, got 100 x 3"),
    ],
)
def test_errors_of_sheets(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        contact_sheet(**{"pictures": [plain("white")]} | changed)


def test_unreadable_pictures_are_named():
    for draw in (
        lambda bad: draw_matches(bad, bad, [], []),
        lambda bad: overlay_mask(bad, [[1]]),
        lambda bad: contact_sheet([bad]),
    ):
        with pytest.raises(ImageError, match=r"nowhere\.png' cannot be opened"):
            draw("nowhere.png")
