"""The pages of the site, and those of the repository that people read where they are."""

import itertools
import re
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder, pattern in (
        *((".", "*.md"), ("docs", "**/*.md"), ("benchmarks", "*.md"), ("experiments", "*.md")),
    )
    for path in (ROOT / folder).glob(pattern)
)
PARSER = MarkdownIt("commonmark").enable("table")


def name_of(page):
    return str(page.relative_to(ROOT))


def tokens_of(page):
    """All tokens of a page, those of running text among them."""
    for token in PARSER.parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def links_of(page):
    """The targets of all links and pictures."""
    for token in tokens_of(page):
        if token.type == "link_open":
            yield token.attrs["href"]
        elif token.type == "image":
            yield token.attrs["src"]


def anchors_of(page):
    """What headings and marked places are called, on the site and where the repository is shown."""
    yield from re.findall(r'<a id="([\w-]+)">', page.read_text(encoding="utf-8"))
    tokens = list(tokens_of(page))
    for token, text in itertools.pairwise(tokens):
        if token.type == "heading_open":
            words = re.sub(r"[^\w\- ]", "", text.content.lower())
            yield re.sub(r"[ ]+", "-", words.strip())


def blocks_of(page, language):
    """The code of a page in one language, by what stands beside the language in each fence."""
    for token in tokens_of(page):
        if token.type == "fence" and token.info.split(" ")[0] == language:
            yield token.info.partition(" ")[2], token.content
