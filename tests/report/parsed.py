"""A page as its reader sees it: texts and tables."""

from __future__ import annotations

import html.parser

_VOID = {"meta", "link", "br", "input", "img"}


class Page(html.parser.HTMLParser):
    """Tables by id (rows of cell texts, the head first), text outside scripts and styles, and tag names."""

    def __init__(self, source: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: set[str] = set()
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self._texts: list[str] = []
        self._rows: list[list[str]] | None = None
        self.feed(source)
        self.close()

    @property
    def text(self) -> str:
        """All text, with blanks as one."""
        return " ".join("".join(self._texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag in _VOID:
            return
        self._open.append(tag)
        if tag == "table":
            self._rows = []
            self.tables[dict(attrs).get("id") or f"table {len(self.tables)}"] = self._rows
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if {"script", "style"} & set(self._open):
            return
        self._texts.append(data)
        if self._rows and self._rows[-1] and {"td", "th"} & set(self._open):
            self._rows[-1][-1] = " ".join((self._rows[-1][-1] + data).split())

    def row(self, table: str, first: str) -> list[str]:
        """The row of a table that begins with `first`, without it."""
        (found,) = [row[1:] for row in self.tables[table] if row[0] == first]
        return found
