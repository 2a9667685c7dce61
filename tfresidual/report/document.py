"""Renders the sections and writes the report in one step."""

from __future__ import annotations

import base64
import io
import itertools
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import markupsafe

from tfresidual.machine.console import printable
from tfresidual.machine.files import replacing
from tfresidual.report import tables
from tfresidual.report.alt_text import alt_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from tfresidual.definitions.types import StrPath
    from tfresidual.report.section import Section

# A vector image above this size (many lines over many epochs) is embedded as pixels instead.
_MOST_SVG_BYTES = 400_000
_PNG_DPI = 170
# Control characters, and bytes of names that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_CODE = re.compile("`([^`]+)`")
# CSS pixels per inch, and the factor by which a figure may shrink at most: its smallest letters, of
# 7.5 points, then have 9 pixels.
_PIXELS_PER_INCH, _SMALLEST_SCALE = 96, 0.9


def write(
    path: StrPath,
    title: str,
    sections: Iterable[Section],
    summary: Iterable[tuple[str, str, str]] = (),
    settings: Mapping[str, Any] | None = None,
    generator: str = "tfresidual",
    conclusions: Iterable[tuple[str, str]] = (),
) -> Path:
    """Writes a self-contained HTML report.

    The page is rendered completely in memory, then written beside the target and moved into its
    place. If anything fails, an older report stays as it was.

    Args:
        path: The file to write, usually `report.html`; missing folders are created.
        title: Title of the page.
        sections: List of `Section`, in the order in which they are shown.
        summary: List of triples (label, value, note) of text, the key facts shown at the top.
        settings: Dictionary, nested or not, shown as a table at the end; `None` for no table.
        generator: Name of what writes the report, which the page holds in its head.
        conclusions: List of pairs (subject, sentence) on what was found, shown first of all.

    Returns:
        The `pathlib.Path` of the report.
    """
    page = _render(title, list(sections), list(summary), settings or {}, generator, conclusions)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as written:
        written.write_text(page, encoding="utf-8")
    return path


def _render(title, sections, summary, settings, generator, conclusions):
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    groups = _grouped(sections)
    environment.filters["code"] = _with_code
    source = resources.files(__package__).joinpath("report.html.jinja").read_text("utf-8")
    page = environment.from_string(source).render(
        title=title,
        generator=generator,
        summary=[tuple("" if text is None else text for text in fact) for fact in summary],
        conclusions=list(conclusions),
        groups=groups,
        count=len(sections),
        # The others are folded.
        first_group=next((place for place, (group, _) in enumerate(groups) if group), None),
        settings=tables.from_settings(settings),
    )
    return _UNPRINTABLE.sub(lambda match: printable(match[0]), page)


def _with_code(text):
    """Returns text for HTML, in which what stands between backticks is code."""
    return markupsafe.Markup(_CODE.sub(r"<code>\1</code>", str(markupsafe.escape(text))))


def _grouped(sections):
    """Returns pairs of a heading or `None` and the sections under it, as the template has them."""
    parts = [(section.group, _part(number, section)) for number, section in enumerate(sections, 1)]
    return [
        (group, [part for _, part in of])
        for group, of in itertools.groupby(parts, key=lambda part: part[0])
    ]


def _part(number, section):
    return {
        "number": number,
        "title": section.title,
        "question": section.question,
        "reading": _caption(section),
        "finding": section.finding,
        "caution": section.caution,
        "source": section.source,
        "table": None if section.frame is None else tables.from_frame(section.frame),
        **_image(section),
    }


def _caption(section):
    """Returns how to read a section, and the images that it was measured on."""
    return section.reading + ("" if section.images is None else f" On {section.images}.")


def _image(section):
    """Returns the figure of a section for the template, with its sizes in pixels and its text."""
    if section.figure is None:
        return {"image": None}
    width, height = section.figure.get_size_inches() * _PIXELS_PER_INCH
    return {
        "image": _data_address(section.figure),
        "image_text": alt_text(section),
        "width": round(width),
        "height": round(height),
        "least_width": round(_SMALLEST_SCALE * width),
    }


def _data_address(figure):
    """Returns the figure as a data URL, which contains the image itself."""
    # No date in the metadata: it would be of no use to a reader.
    image = _saved(figure, format="svg", metadata={"Date": None})
    kind = "svg+xml"
    if len(image) > _MOST_SVG_BYTES:
        image, kind = _saved(figure, format="png", dpi=_PNG_DPI), "png"
    return _address(image, kind)


def _address(image, kind):
    return f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}"


def _saved(figure, **options):
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()
