"""Links lead somewhere, pictures say what they show, and code fits the column of its page."""

import functools
import runpy
import urllib.parse

import pytest
from docs.pages import PAGES, ROOT, anchors_of, blocks_of, links_of, name_of, tokens_of


@functools.cache
def known_anchors(page):
    return set(anchors_of(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page):
    for link in links_of(page):
        target, _, anchor = urllib.parse.unquote(link).partition("#")
        if "://" in link:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert path.is_relative_to(ROOT), link
        if anchor:
            assert anchor in known_anchors(path), link


def test_links_are_found():
    links = [link for page in PAGES for link in links_of(page) if "://" not in link]
    assert len(links) > 50
    assert sum("#" in link for link in links) > 3


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_have_alternative_texts(page):
    for token in tokens_of(page):
        if token.type == "image":
            assert len(token.content.split()) >= 4, token.attrs["src"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_fits_80_columns(page):
    for language in ("python", "sh"):
        for _, code in blocks_of(page, language):
            assert all(len(line) <= 80 for line in code.splitlines()), code


@pytest.mark.parametrize("name", ["metrics", "gallery", "reference"])
def test_written_pages_are_those_of_the_package(name):
    pages = runpy.run_path(str(ROOT / "docs" / "hooks" / f"{name}.py"))["pages"]()
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, path


def test_every_page_is_in_the_navigation():
    """Those of the folder; the builder looks for the others."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    for page in (ROOT / "docs").glob("**/*.md"):
        assert f" {page.relative_to(ROOT / 'docs')}\n" in navigation
