"""A report: one HTML file with figures, tables and settings, which needs nothing beside it."""

from tfresidual.lazy import lazily

_FILES = {
    "Section": "section",
    "search_sections": "search",
    "study_figures": "block_study",
    "study_sections": "block_study",
    "write": "document",
}

__all__ = ["Section", "search_sections", "study_figures", "study_sections", "write"]

__getattr__, __dir__ = lazily(__name__, _FILES)
