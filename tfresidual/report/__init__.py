"""A report: one self-contained HTML file with figures, tables and settings."""

from tfresidual.report.document import write
from tfresidual.report.search import search_sections
from tfresidual.report.section import Section

__all__ = ["Section", "search_sections", "write"]
