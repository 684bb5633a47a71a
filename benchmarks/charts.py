"""Bar charts as SVG text: small enough to be drawn by hand, and shown by any browser."""

from __future__ import annotations

from html import escape

_WIDTH, _LEFT, _BAR, _GAP, _TITLE = 760, 190, 20, 6, 34
_COLOURS = {"Holdfast": "#00796b", "without state": "#b0bec5"}
_OTHER = "#78909c"


def bars(title: str, groups: list[tuple[str, dict[str, float]]]) -> str:
    """Horizontal bars in groups; each group has a scale of its own, the values stand beside."""
    parts: list[str] = []
    y = 44
    for name, values in groups:
        parts.append(_text(12, y + 14, name, weight="bold"))
        y += _TITLE - 10
        longest = max(values.values())
        for label, value in values.items():
            width = (_WIDTH - _LEFT - 90) * value / longest
            colour = _COLOURS.get(label, _OTHER)
            parts.append(_text(_LEFT - 8, y + 15, label, anchor="end"))
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            )
            parts.append(_text(int(_LEFT + width + 6), y + 15, f"{value:.2f} s"))
            y += _BAR + _GAP
        y += 14
    head = _text(12, 24, title, weight="bold", size=16)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{y}" fill="white"/>\n{head}\n' + "\n".join(parts) + "\n"
        "</svg>\n"
    )


def _text(
    x: int, y: int, words: str, *, weight: str = "normal", anchor: str = "start", size: int = 13
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="#263238">{escape(words)}</text>'
    )
