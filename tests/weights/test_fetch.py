"""One address into the cache, over a server that is slow, cut, wrong, moved or gone."""

import hashlib
import os
import time

import pytest

from foveal.weights import downloading
from foveal.weights.fetch import FetchError, Source, fetch
from foveal.weights.pages import page_kind

BODY = os.urandom(300_000)


def kept(cache):
    """What a failed fetch left that could be taken for the file."""
    return [name for name in os.listdir(cache) if not name.endswith(".lock")] if cache.is_dir() else []


def test_a_file_is_fetched_once_and_its_progress_told(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    told = []
    path = fetch(site.source(), progress=lambda done, total: told.append((done, total)))
    assert path == cache / "w.pth"
    assert path.read_bytes() == BODY
    assert told[-1] == (len(BODY), len(BODY))
    assert told == sorted(told)
    assert fetch(site.source()) == path
    assert site.asked == ["/w.pth"]
    assert kept(cache) == ["w.pth"]


def test_a_file_of_unknown_hash_and_length(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY, length=False)
    assert fetch(site.source(known=False)).read_bytes() == BODY


def test_wrong_bytes_are_named_with_both_hashes_and_not_kept(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    source = site.source(of=b"others")
    found = hashlib.sha256(BODY).hexdigest()
    with pytest.raises(FetchError, match=rf"w\.pth can't be fetched: .*sha256 {found}, not {source.sha256}; they were"):
        fetch(source)
    assert kept(cache) == []


def test_a_wrong_file_in_the_cache_is_replaced(site, cache, reply, caplog):
    site.pages["/w.pth"] = reply(BODY)
    cache.mkdir(parents=True)
    (cache / "w.pth").write_bytes(b"old")
    assert fetch(site.source()).read_bytes() == BODY
    assert "it is fetched again" in caplog.text


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error": "Invalid username or password."}', 'a JSON text: {"error": "Invalid username'),
        (b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title>", "an HTML page: <!DOCTYPE html> <html>"),
        (b"<html>" + b"x" * 5000, "an HTML page: <html>x"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>NoSuchKey</Code>", "an XML text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer, not the file"),
    ],
)
def test_a_page_under_a_weights_name_is_named_and_not_kept(site, cache, reply, body, kind, known):
    site.pages["/w.pth"] = reply(body)
    with pytest.raises(FetchError, match=r"answers with .*; it was not kept as w\.pth") as caught:
        fetch(site.source(known=known, of=BODY))
    assert kind in str(caught.value)
    assert "\n" not in str(caught.value)
    assert kept(cache) == []


def test_what_is_no_page():
    for head in (b"PK\x03\x04{}", b"\x80\x02}q", b"\x10\0\0\0\0\0\0\0{}", b"plain text", b"", b"[\xff\xfe\xfd\xfc\xfb"):
        assert page_kind(head, "a.bin") == ""
    assert page_kind(b"<html>", "page.html") == ""
    assert page_kind('["ä"]'.encode()[:3], "a.bin").startswith("a JSON text")


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_not_asked_again(site, cache, reply, status):
    site.pages["/w.pth"] = reply(b"<html>no</html>", status)
    with pytest.raises(FetchError, match=rf"answers {status} .*its sha256 is [0-9a-f]{{64}}.*--from FILE"):
        fetch(site.source(of=BODY))
    assert len(site.asked) == 1
    assert kept(cache) == []


def test_the_next_address_is_tried(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    source = site.source("/gone", f"{site.url}/w.pth", of=BODY)
    assert fetch(source).read_bytes() == BODY
    assert site.asked == ["/gone", "/w.pth"]


def test_a_busy_server_is_asked_again(site, cache, reply, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    site.pages["/w.pth"] = reply(b"", 503, {"Retry-After": "7"})
    with pytest.raises(FetchError, match="answers 503 Service Unavailable, 4 tries in a row"):
        fetch(site.source(of=BODY))
    assert waits == [7, 7, 7]


def test_redirects_are_followed(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    site.pages["/old"] = reply(b"", 302, {"Location": "/older"})
    site.pages["/older"] = reply(b"", 307, {"Location": f"{site.url}/w.pth"})
    assert fetch(site.source("/old", of=BODY)).read_bytes() == BODY


@pytest.mark.parametrize("place", ["http://host.invalid/w", "ftp://127.0.0.1/w", "file:///etc/passwd", "pypi:a==1"])
def test_a_redirect_away_from_https_is_not_followed(site, cache, reply, place):
    site.pages["/old"] = reply(b"", 301, {"Location": place})
    with pytest.raises(FetchError, match=r"redirects to .*, which is not https; not|answers 301 .*not allowed"):
        fetch(site.source("/old", of=BODY))
    assert site.asked == ["/old"]


def test_https_is_not_redirected_to_http_even_here():
    request = downloading.urllib.request.Request("https://127.0.0.1/a?token=secret")
    with pytest.raises(downloading.Failed, match=r"^https://127\.0\.0\.1/a: redirects to http://127\.0\.0\.1/b, which"):
        downloading._Redirects().redirect_request(request, None, 302, "", {}, "http://127.0.0.1/b?token=secret")


@pytest.mark.parametrize("known", [True, False])
def test_a_cut_line_goes_on_where_it_was_cut(site, cache, reply, known):
    site.pages["/w.pth"] = reply(BODY, etag='"1"', cuts=[100_000, 250_000])
    assert fetch(site.source(known=known)).read_bytes() == BODY
    assert site.ranges == ["", "bytes=100000-", "bytes=250000-"]
    assert site.served == len(BODY)


def test_cuts_that_still_bring_something_do_not_count(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY, cuts=[n * 30_000 for n in range(1, 10)])
    assert fetch(site.source()).read_bytes() == BODY
    assert site.served == len(BODY)


def test_cut_again_and_again_is_one_sentence_and_the_part_stays(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY, cuts=[1000] * 9)
    with pytest.raises(FetchError, match=r"the connection was cut .*4 tries in a row; put w\.pth into .*weights \(its"):
        fetch(site.source())
    assert [n.endswith((".part", ".part.json")) for n in kept(cache)] == [True, True]
    site.pages["/w.pth"].cuts.clear()
    site.served = 0
    assert fetch(site.source()).read_bytes() == BODY
    assert site.served == len(BODY) - 1000
    assert kept(cache) == ["w.pth"]


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_refuses_ranges_is_read_from_the_start(site, cache, reply, known):
    site.pages["/w.pth"] = reply(BODY, etag='"1"', ranges=False, cuts=[100_000])
    assert fetch(site.source(known=known)).read_bytes() == BODY
    assert site.served == len(BODY) + 100_000


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_changed_meanwhile_is_read_from_the_start(site, cache, reply, known):
    site.pages["/w.pth"] = reply(b"o" * len(BODY), etag='"old"', cuts=[100_000] * 4)
    with pytest.raises(FetchError, match="4 tries in a row"):
        fetch(site.source(known=known, of=BODY))
    site.pages["/w.pth"] = reply(BODY, etag='"new"')
    assert fetch(site.source(known=known)).read_bytes() == BODY
    assert site.served == len(BODY) + 100_000


def test_a_first_half_of_another_version_is_found_by_the_hash(site, cache, reply):
    site.pages["/w.pth"] = reply(b"o" * len(BODY), cuts=[100_000] * 4)
    with pytest.raises(FetchError, match="4 tries in a row"):
        fetch(site.source(of=BODY))
    site.pages["/w.pth"] = reply(BODY)
    assert fetch(site.source()).read_bytes() == BODY
    assert site.ranges[-2:] == ["bytes=100000-", ""]


def test_a_part_longer_than_the_file_is_dropped(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    source = site.source()
    cache.mkdir(parents=True)
    (cache / f".w.pth.{source.sha256[:16]}.part").write_bytes(BODY + b"more")
    assert fetch(source).read_bytes() == BODY
    assert site.ranges == [f"bytes={len(BODY) + 4}-", ""]


def test_a_part_that_was_whole_needs_no_request(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    source = site.source()
    cache.mkdir(parents=True)
    (cache / f".w.pth.{source.sha256[:16]}.part").write_bytes(BODY)
    assert fetch(source).read_bytes() == BODY
    assert site.asked == []


@pytest.mark.parametrize("status", [206, 416])
def test_a_range_nobody_asked_for(site, cache, reply, status):
    site.pages["/w.pth"] = reply(BODY, status, ranges=False)
    with pytest.raises(FetchError, match="answers with a range that was not asked for"):
        fetch(site.source())


def test_a_server_that_falls_silent_is_given_up(site, cache, reply, monkeypatch):
    monkeypatch.setattr(downloading, "TIMEOUT", 0.2)
    site.pages["/w.pth"] = reply(BODY, hold=5000, ranges=False)
    with pytest.raises(FetchError, match=r"was cut \(nothing came for 0\.2 seconds\), 4 tries in a row"):
        fetch(site.source())


def test_more_bytes_than_the_file_has(site, cache, reply):
    site.pages["/w.pth"] = reply(BODY)
    with pytest.raises(FetchError, match="sends more than the 1000 bytes expected; not kept"):
        fetch(site.source(of=b"x", size=1000))
    assert kept(cache) == []


def test_an_empty_answer(site, cache, reply):
    site.pages["/w.pth"] = reply(b"")
    with pytest.raises(FetchError, match="sends an empty file"):
        fetch(site.source(known=False))


def test_what_may_not_be_an_address():
    for address in ("http://example.org/a", "ftp://h/a", "file:///a", "/a", "pypi:a", "pypi:-e==1", "npm:A==1", "a:b"):
        with pytest.raises(ValueError, match=r"address .* has to be"):
            Source("n", "f", (address,))
    with pytest.raises(ValueError, match="has to be a path inside the package"):
        Source("n", "f", ("pypi:a==1#../b",))
    for file in ("", "a/b", "..", ".hidden", "a\nb"):
        with pytest.raises(ValueError, match="has to be a plain file name"):
            Source("n", file, ())
    with pytest.raises(ValueError, match="sha256 has to be 64 hexadecimal digits"):
        Source("n", "f", (), sha256="abc")
