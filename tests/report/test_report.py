"""The report page: its content, its form, and that it replaces an older one whole or not at all.

Not covered: how the page looks; that was judged by eye, at 390 and 1280 pixels, light and dark, and
in print.
"""

import base64
import html
import html.parser
import os

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from plots.make_frames import block_frame, distance_frame

from tfresidual import plots, report
from tfresidual.plots import style
from tfresidual.report import tables

ANGLE = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
VOID = {"meta", "wbr", "link", "img", "br", "hr"}


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip() and "style" not in self.open:
            self.texts.append((self.open[-1], " ".join(data.split())))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag):
        return [text for name, text in self.texts if name == tag]


def small_figure():
    figure = Figure((3, 2))
    axes = figure.subplots()
    axes.plot([0, 1], [1, 0])
    axes.set_xlabel("block")
    axes.set_ylabel("error")
    return figure


def some_sections():
    return [
        report.Section(
            "Cosine loss",
            "Does each block move the state where the loss falls?",
            figure=plots.cosine_loss(block_frame(3)),
            frame=block_frame(18),
            reading="Below zero the block lowers the loss.",
            source="Jastrzebski et al. 2018, figure 4",
            finding="On the test images, 5 of 7 blocks lie below zero.",
        ),
        report.Section(
            "Computational distance",
            "How far does a stage carry the state?",
            frame=distance_frame(),
            reading="Divide by epsilon to get the number of blocks.",
        ),
        report.Section("Drop", "What if one is dropped?", figure=small_figure(), reading="Flat."),
    ]


def written(tmp_path, *arguments):
    return Page(report.write(tmp_path / "report.html", *arguments).read_text("utf-8"))


def page_of(tmp_path, **parts):
    """A page of one section."""
    return written(tmp_path, "T", [report.Section("T", "Q?", **{"reading": "R."} | parts)])


@pytest.fixture(scope="module")
def page_text(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "new" / "report.html"
    given = report.write(
        str(path),
        "A study",
        some_sections(),
        summary=[("Error on held-out images", "12.3 %", "chance 99.2 %"), ("Blocks", 9, None)],
        settings={"training": {"epochs": 5, "optimizer": {"rate": 1e-4}}, "depth": (3, 3), "x": {}},
    )
    assert given == path
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def page(page_text):
    return Page(page_text)


class TestPage:
    def test_headings_and_words(self, page):
        assert page.text("title") == page.text("h1") == ["A study"]
        sections = [section.title for section in some_sections()]
        assert page.text("h2") == [*sections, "Settings", "Words"]
        assert page.text("dt")[:2] == ["Error on held-out images", "Blocks"]
        assert page.text("dd")[:3] == ["12.3 %", "chance 99.2 %", "9"]
        assert {"Block", "Stage", "Residual branch", "Read-out"} <= set(page.text("dt"))

    def test_sections_have_their_texts(self, page):
        texts = page.text("p") + page.text("figcaption")
        for section in some_sections():
            assert section.question in texts
            assert section.reading in texts
        assert "After Jastrzebski et al. 2018, figure 4." in texts
        # Findings are marked as such; one section has one.
        assert page.text("strong") == ["Measured:"]
        assert some_sections()[0].finding in texts

    @pytest.mark.parametrize("figure", [True, False])
    def test_images_come_after_the_reading(self, tmp_path, figure):
        shown = {"figure": small_figure()} if figure else {"frame": pd.DataFrame({"a": [1]})}
        page = page_of(tmp_path, images="2,000 test images", **shown)
        assert "R. On 2,000 test images." in page.text("figcaption") + page.text("p")

    def test_what_a_reader_must_know_comes_before_the_figure(self, tmp_path):
        page = page_of(tmp_path, figure=small_figure(), caution="`a < b`.")
        texts = [text for tag, text in page.texts if tag in ("p", "strong", "figcaption", "code")]
        assert texts == ["Q?", "Caution:", "a < b", ".", "R."]
        assert page.all("img")[0]["alt"] == "Figure: T. Drawn: error over block."

    def test_groups_fold_under_their_heading(self, tmp_path):
        sections = [
            report.Section(title, "Q?", reading="R.", group=group)
            for title, group in (("A", None), ("B", "Steps"), ("C", "Steps"), ("D", "Bounds"))
        ]
        path = report.write(
            tmp_path / "r.html", "T", sections, conclusions=[("Error", "It falls.")]
        )
        page = Page(path.read_text("utf-8"))
        assert page.text("h2") == ["A", "Steps", "Bounds", "Words"]
        assert page.text("h3") == ["B", "C", "D"]
        # The first one is open.
        groups = [one for one in page.all("details") if one.get("class") == "group"]
        assert ["open" in one for one in groups] == [True, False]
        assert page.text("strong") == ["Error:"]
        assert "It falls." in page.text("li")
        targets = {attributes.get("id") for _, attributes in page.tags}
        assert {one["href"][1:] for one in page.all("a")} <= targets

    def test_nothing_is_fetched(self, page, page_text):
        assert "http" not in page_text.lower()
        assert "@import" not in page_text
        assert "url(" not in page_text
        assert not page.all("script")
        for _, attributes in page.tags:
            address = attributes.get("src") or attributes.get("href") or "#"
            assert address.startswith(("#", "data:"))

    def test_images_are_inside_and_described(self, page):
        images = page.all("img")
        assert len(images) == 2
        for image in images:
            kind, _, content = image["src"].partition(";base64,")
            assert kind == "data:image/svg+xml"
            assert b"<svg" in base64.b64decode(content, validate=True)
        assert "cosine of block output F(h) and loss gradient" in images[0]["alt"]
        assert images[1]["alt"] == "Figure: Drop. Drawn: error over block."

    def test_figures_are_scrolled_before_their_letters_get_too_small(self, page, page_text):
        for image, section in zip(page.all("img"), some_sections()[::2], strict=True):
            width, height = section.figure.get_size_inches()
            # 96 pixels of CSS are an inch.
            assert image["width"] == str(round(96 * width))
            assert image["height"] == str(round(96 * height))
            least = int(image["style"].removeprefix("--least: ").removesuffix("px"))
            smallest = (style.SMALL_SIZE - 1) / 72 * 96
            assert smallest * least / int(image["width"]) >= 8.9
        assert "min-width: var(--least)" in page_text
        scrolled = [a for a in page.all("div") if a.get("class") == "scroll" and "tabindex" in a]
        assert [a["aria-label"] for a in scrolled] == ["Cosine loss", "Drop"]

    def test_tables(self, page):
        assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
        assert len(page.all("caption")) == len(page.all("table")) == 3
        assert page.text("summary") == ["Contents", "Table of 54 rows"]
        # A heading may break after each of its words.
        assert "scaled_distance" in "".join(page.text("th"))
        assert "3.690" in page.text("td")
        assert DASH in page.text("td")


class TestForm:
    def test_markup_is_text(self, tmp_path):
        evil = "<script>alert('&')</script>"
        frame = pd.DataFrame({evil: [evil]})
        figure = small_figure()
        figure.axes[0].set_ylabel(f'"{evil}')
        section = report.Section(evil, evil, figure=figure, frame=frame, reading=evil, source=evil)
        page = written(tmp_path, evil, [section] * 2, [(evil, evil, evil)], {evil: {evil: evil}})
        assert not page.all("script")
        assert page.text("h1") == page.text("h2")[:1] == [evil]
        assert evil in page.text("th")
        assert evil in page.text("dd")
        assert evil in page.all("img")[0]["alt"]

    @pytest.mark.parametrize(
        ("rows", "folded"), [(0, 0), (12, 0), (13, 1), (tables.MOST_ROWS + 5, 1)]
    )
    def test_long_tables_are_folded_and_very_long_ones_cut(self, tmp_path, rows, folded):
        page = page_of(tmp_path, frame=pd.DataFrame({"a": range(rows)}))
        assert page.text("th")[0] == "a"
        assert len(page.all("details")) == folded
        assert len(page.all("tr")) == min(rows, tables.MOST_ROWS) + 1
        says_so = f"The first {tables.MOST_ROWS} of {rows} rows." in page.text("p")
        assert says_so == (rows > tables.MOST_ROWS)

    def test_heavy_drawings_become_pixels(self, tmp_path):
        figure = Figure((3, 2))
        figure.subplots().scatter(*np.random.default_rng(0).random((2, 6000)))
        (image,) = page_of(tmp_path, figure=figure).all("img")
        kind, _, content = image["src"].partition(";base64,")
        assert kind == "data:image/png"
        assert base64.b64decode(content).startswith(b"\x89PNG")


class TestWholeOrNothing:
    def test_replaces_an_older_report(self, tmp_path):
        path = tmp_path / "report.html"
        path.write_text("older")
        report.write(path, "Newer", [])
        assert "Newer" in path.read_text("utf-8")
        assert os.listdir(tmp_path) == ["report.html"]


class TestTables:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.0123456, "0.01235"),
            (0.5, "0.5000"),
            (-3.69, f"{MINUS}3.690"),
            (1234.4, "1234"),
            (34567.8, "34,568"),
            (0.0, "0"),
            (0.0000123456, f"1.23e{MINUS}5"),
            (-2.5e9, f"{MINUS}2.50e9"),
            (np.nan, DASH),
            (np.inf, "∞"),
            (54, "54"),
            (-3, f"{MINUS}3"),
            (np.int64(1742762), "1,742,762"),
            (np.float32(0.25), "0.2500"),
        ],
    )
    def test_numbers(self, value, text):
        assert tables.number_text(value) == text

    def test_columns(self):
        frame = pd.DataFrame(
            {
                "stage": [1, 2, "all"],
                "blocks": [3.0, np.nan, 54.0],
                "cosine": [np.nan, -0.25, 0.0],
                "shape kept": [True, False, None],
                "when": [pd.NaT, pd.NA, None],
            }
        )
        table = tables.from_frame(frame)
        assert [name for name, _ in table.columns] == list(frame.columns)
        assert [is_number for _, is_number in table.columns] == [False, True, True, False, True]
        assert table.rows == [
            ["1", "3", DASH, "yes", DASH],
            ["2", DASH, f"{MINUS}0.2500", "no", DASH],
            ["all", "54", "0", DASH, DASH],
        ]

    def test_a_named_index_is_shown(self):
        frame = block_frame(3, splits=("train", "test")).pivot_table(
            index=["stage", "block"], columns="split", values=["l2_ratio"]
        )
        table = tables.from_frame(frame)
        assert [name for name, _ in table.columns][:3] == ["stage", "block", "l2_ratio test"]
