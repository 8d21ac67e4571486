"""Checks that every link of a built book leads to a file and a heading that exist, and that nothing is loaded from elsewhere.

python3 .ci/links.py FOLDER
"""
import os
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlparse


class Links(HTMLParser):
    """What a page links to, and the names that links to it may have."""

    def __init__(self, path):
        super().__init__()
        self.path, self.targets, self.names = path, [], set()
        with open(path, encoding="utf-8") as page:
            self.feed(page.read())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.names.update(attrs[key] for key in ("id", "name") if attrs.get(key))
        self.targets += [(tag, attrs[key]) for key in ("href", "src", "srcset") if attrs.get(key)]


def fault(page, pages, tag, target):
    """What is wrong with a link, if anything is."""
    url = urlparse(target)
    if url.scheme or url.netloc:
        return None if tag == "a" else "is loaded from elsewhere"
    path = page.path
    if url.path:
        path = os.path.normpath(os.path.join(os.path.dirname(path), unquote(url.path)))
    if not os.path.exists(path):
        return "there is no such file"
    if url.fragment and path in pages and unquote(url.fragment) not in pages[path].names:
        return "there is no such heading"
    return None


def main(folder):
    found = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    # The page for what is not found has paths from the root of a site.
    found = [path for path in found if path.endswith(".html") and os.path.basename(path) != "404.html"]
    pages = {path: Links(path) for path in sorted(found)}
    faults = set()
    for page in pages.values():
        for tag, target in page.targets:
            if why := fault(page, pages, tag, target):
                faults.add(f"{os.path.relpath(page.path, folder)}: {target}: {why}")
    count = sum(len(page.targets) for page in pages.values())
    print(*sorted(faults), f"{len(pages)} pages, {count} links, {len(faults)} of them wrong", sep="\n")
    return 1 if faults or not count else 0


sys.exit(main(sys.argv[1]))
