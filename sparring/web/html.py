"""HTML that is safe by construction: plain text is escaped, only what `tag` made is taken as it is."""

from __future__ import annotations

from html import escape

VOID = frozenset({"input", "wbr"})
"""Elements without an end."""


class Html(str):
    """Text that already is HTML."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as escaped text; HTML stays as it is."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element; `class_` is `class`, `data_x` is `data-x`, True a bare attribute, None and False none."""
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        written.append(f" {spelled}" if value is True else f' {spelled}="{escape(str(value))}"')
    start = f"<{name}{''.join(written)}>"
    return Html(start if name in VOID else f"{start}{join(*children)}</{name}>")


def join(*parts: object) -> Html:
    """Parts one behind the other."""
    return Html("".join(map(text, parts)))
