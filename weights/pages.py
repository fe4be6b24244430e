"""Pages that servers send in place of a file: seen by their first bytes, whatever the name says."""

import re

HEAD = 512  # bytes that tell a page from a file
TEXTS = (".html", ".htm", ".json", ".jsonl", ".xml", ".svg", ".txt", ".csv", ".tsv", ".md", ".toml", ".yaml")


def page_kind(head: bytes, file: str) -> str:
    """What a file begins as, when that is a text that servers send instead of a file; else "".

    >>> page_kind(b'{"error": "gone"}', "a.pth"), page_kind(b"PK", "a.pth"), page_kind(b"{}", "a.json")
    ('a JSON text: {"error": "gone"}', '', '')
    """
    raw = head[:HEAD].removeprefix(b"\xef\xbb\xbf").strip()
    text = raw.decode("utf-8", "ignore")
    start = " ".join(text.split())[:80]
    if file.lower().endswith(TEXTS) or not start.isprintable() or len(raw) - len(text.encode()) > 3:
        return ""  # a text, or no text (its last letter may be cut)
    if start.startswith("<"):
        html = re.search("<(!doctype html|html|head|body)", text, re.I)
        return f"{'an HTML page' if html else 'an XML text'}: {start}"
    if re.match(r"""[\[{] ?["'{\[}\]]""", start):
        return f"a JSON text: {start}"
    return "a Git LFS pointer, not the file it points to" if start.startswith("version https://git-lfs") else ""
