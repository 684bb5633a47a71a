"""Charts as SVG text: small enough to be drawn by hand, and shown by any browser."""

from __future__ import annotations

from html import escape

_WIDTH, _LEFT, _BAR, _GAP, _TITLE = 760, 190, 20, 6, 34
_LINE = 90
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
    return _page(title, y, parts)


def lines(title: str, x_name: str, series: dict[str, list[tuple[float, float]]]) -> str:
    """Lines one below the other over the same x, each from 0 to its own highest value."""
    parts: list[str] = []
    y = 44
    last_x = max(x for points in series.values() for x, _ in points) or 1.0
    for name, points in series.items():
        highest = max(value for _, value in points) or 1.0
        parts.append(_text(12, y + 14, f"{name}, up to {highest:,.4g}", weight="bold"))
        y += _TITLE - 10
        across = (_WIDTH - 24) / last_x
        drawn = " ".join(
            f"{12 + x * across:.1f},{y + _LINE * (1 - value / highest):.1f}" for x, value in points
        )
        parts.append(
            f'<rect x="12" y="{y}" width="{_WIDTH - 24}" height="{_LINE}" fill="#eceff1"/>'
        )
        parts.append(
            f'<polyline points="{drawn}" fill="none" stroke="{_COLOURS["Holdfast"]}" '
            'stroke-width="1.5"/>'
        )
        y += _LINE + 14
    parts.append(_text(_WIDTH - 12, y + 6, f"{x_name}, 0 to {last_x:.4g}", anchor="end"))
    return _page(title, y + 18, parts)


def _page(title: str, height: int, parts: list[str]) -> str:
    head = _text(12, 24, title, weight="bold", size=16)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>\n{head}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(
    x: int, y: int, words: str, *, weight: str = "normal", anchor: str = "start", size: int = 13
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="#263238">{escape(words)}</text>'
    )
