"""Charts as inline SVG: strings from numbers, with classes for the page's colours to fill in.

No plotting library: the figures stay text (selectable, searchable), follow light and dark, print,
and the report needs nothing installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from neuron_spec.metrics.estimates import Estimate

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 42
MAX_BAR = 60
LONGEST_INTERVAL = 2.0  # times the largest value
NUM_COLOURS = 8  # of the page: classes s0 … s7


@dataclass(frozen=True)
class Chart:
    """Values by label and series, with their intervals.

    Attributes:
        labels: along the x axis, evenly spaced.
        series: name -> a value for each label; None leaves a gap.
        y_label: what is measured, with its unit.
        reference: a dashed line, such as 1 for a speed-up.
        is_joined: points joined by lines; bars otherwise.
        first_colour: of the first series; the others take the next ones.
    """

    labels: Sequence[str]
    series: Mapping[str, Sequence[Estimate | None]]
    y_label: str
    x_label: str = ""
    reference: float | None = None
    is_joined: bool = False
    first_colour: int = 0
    title: str = field(default="", kw_only=True)

    def svg(self) -> str:
        """The chart."""
        if not any(e is not None for values in self.series.values() for e in values):
            return ""
        parts = [self._axes(), *self._reference()]
        for number, values in enumerate(self.series.values()):
            parts.append(self._line(number, values) if self.is_joined else "")
            parts += self._marks(number, values)
        legend = "".join(
            f'<span class="key {self._colour(n)}">{escape(name)}</span>'
            for n, name in enumerate(self.series)
        )
        title = escape(self.title or self.y_label)
        return (
            f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
            f"{''.join(parts)}</svg><figcaption>{legend}</figcaption></figure>"
        )

    @property
    def _top(self) -> float:
        """The end of the y axis: a round number above all values and intervals, as far as these
        leave the values readable; longer ones are cut."""
        known = [e for values in self.series.values() for e in values if e is not None]
        largest = max(self.reference or 0.0, *(e.value for e in known))
        ends = max(e.value if e.high is None else e.high for e in known)
        return round_up(max(largest, min(ends, LONGEST_INTERVAL * largest)) or 1.0)

    def _x(self, place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / len(self.labels)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top

    def _axes(self) -> str:
        parts = []
        for tick in range(5):
            value = self._top * tick / 4
            y = self._y(value)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{value:.3g}</text>')
        for place, label in enumerate(self.labels):
            x = self._x(place)
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" class="mid">{escape(label)}</text>'
            )
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" class="end">')
        parts.append(f"{escape(self.x_label)}</text>")
        parts.append(f'<text x="4" y="{HEIGHT - 6}">{escape(self.y_label)}</text>')
        return "".join(parts)

    def _reference(self) -> list[str]:
        if self.reference is None:
            return []
        y = self._y(self.reference)
        return [f'<path class="reference" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>']

    def _colour(self, number: int) -> str:
        return f"s{(self.first_colour + number) % NUM_COLOURS}"

    def _place(self, number: int, place: int) -> float:
        """Series stand beside each other at every label."""
        if self.is_joined:
            return self._x(place)
        return self._x(place + (number + 0.5) * 0.8 / len(self.series) - 0.4)

    def _line(self, number: int, values: Sequence[Estimate | None]) -> str:
        points = [
            f"{self._place(number, place):.1f} {self._y(e.value):.1f}"
            for place, e in enumerate(values)
            if e is not None
        ]
        return (
            f'<path class="line {self._colour(number)}" d="M{"L".join(points)}"/>' if points else ""
        )

    def _marks(self, number: int, values: Sequence[Estimate | None]) -> list[str]:
        room = 0.7 * (WIDTH - LEFT - RIGHT) / len(self.labels) / len(self.series)
        width = min(room, MAX_BAR)
        parts = []
        for place, estimate in enumerate(values):
            if estimate is None:
                continue
            x, y = self._place(number, place), self._y(estimate.value)
            hint = f"<title>{escape(estimate.shown(3))}, n = {estimate.num_samples}</title>"
            if self.is_joined:
                parts.append(
                    f'<circle class="{self._colour(number)}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                )
                parts.append(f"{hint}</circle>")
            else:
                base = self._y(0)
                parts.append(
                    f'<rect class="{self._colour(number)}" x="{x - width / 2:.1f}" y="{y:.1f}" '
                    f'width="{width:.1f}" height="{max(0.0, base - y):.1f}">{hint}</rect>'
                )
            if estimate.low is not None and estimate.high is not None:
                high = self._y(min(self._top, estimate.high))
                low = self._y(max(0.0, estimate.low))
                parts.append(f'<path class="interval" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
        return parts


def round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if n * power >= value * 0.9999)
