"""Pages of the site that are files elsewhere in the repository, and links between them.

A link is written as it works in the repository. If its target is a page or a picture of the site,
it leads there; a link to any other file of the repository leads to its source.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[2]
DOCS = "docs/"
# Pages that stay where they are, because people look for them there.
ELSEWHERE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "experiments/README.md",
    "experiments/STATEMENTS.md",
)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files, config):
    """Adds the pages from elsewhere, and the pictures that they show."""
    for page in ELSEWHERE:
        files.append(_file(page, config))
        text = (ROOT / page).read_text(encoding="utf-8")
        for target, _ in LINK.findall(text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            is_picture = path.endswith((".png", ".svg"))
            if is_picture and not path.startswith(DOCS) and path not in files.src_uris:
                files.append(_file(path, config))
    return files


def _file(path, config):
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)


def on_page_markdown(markdown, page, config, files):
    """Turns links of the repository into links of the site."""
    uri = page.file.src_uri
    own = uri if uri in ELSEWHERE else DOCS + uri

    def replaced(match):
        target, anchor = match[1], match[2] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(own), target))
        if path == "README.md":
            path = DOCS + "index.md"
        if path.removeprefix(DOCS) in files.src_uris:
            start = posixpath.dirname(uri) or "."
            return posixpath.relpath(path.removeprefix(DOCS), start) + anchor
        if (ROOT / path).exists():
            return f"{config.repo_url.rstrip('/')}/tree/main/{path}"
        # Left as it is, for the warning of the builder.
        return match[0]

    return LINK.sub(replaced, markdown)
