"""A report: one HTML file with figures, tables and settings, which needs nothing beside it."""

from tfresidual.report.document import write
from tfresidual.report.search import search_sections
from tfresidual.report.section import Section

__all__ = ["Section", "search_sections", "write"]
