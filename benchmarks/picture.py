# SPDX-License-Identifier: Apache-2.0
"""Small pictures as SVG, standard library only: grouped or stacked bars, lines, and points under a roofline."""
import math
from xml.sax.saxutils import escape

COLOURS = ["#1f5f9e", "#e08a2c", "#2f7d5b", "#a83250", "#6b6b78", "#8e6bbf", "#c2b13a", "#4aa3b8"]
LEFT, TOP, BOTTOM, LINE = 70, 54, 62, 14


def number(x):
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"


class Canvas:
    def __init__(self, width, height, title, note=""):
        self.width, self.height = width, height
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
                      f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
        self.text(LEFT, 22, title, size=15)
        self.text(LEFT, 40, note if len(note) * 5.2 < width - LEFT else note[:int((width - LEFT) / 5.2) - 3] + "...",
                  size=10, colour="#555555")

    def text(self, x, y, text, anchor="start", size=12, colour="#000000", turn=0):
        turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
                          f"{turned}>{escape(str(text))}</text>")

    def line(self, x1, y1, x2, y2, colour="#000000", width=1.0, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                          f'stroke-width="{width}"{dashed}/>')

    def box(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}" '
                          f'fill="{colour}"/>')

    def dot(self, x, y, colour, radius=4):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def legend(self, names):
        x = LEFT
        for i, name in enumerate(names):
            self.box(x, self.height - 18, 11, 11, COLOURS[i % len(COLOURS)])
            self.text(x + 15, self.height - 8, name, size=11)
            x += 28 + 6.6 * len(name)

    def write(self, path):
        path.write_text("\n".join(self.parts + ["</svg>"]) + "\n")


class Scale:
    """Values to pixels, linear from 0 or logarithmic."""

    def __init__(self, low, high, begin, end, log=False):
        self.log, self.begin, self.end = log, begin, end
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)

    def __call__(self, value):
        value = math.log10(value) if self.log else value
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self):
        if self.log:
            return [10.0 ** k for k in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)]
        rough = (self.high - self.low) / 6
        power = 10 ** math.floor(math.log10(rough))
        step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough)
        return [step * i for i in range(int(self.high / step + 1e-9) + 1)]


def axis(canvas, scale, label, right):
    for tick in scale.ticks():
        y = scale(tick)
        canvas.line(LEFT, y, right, y, "#dddddd")
        canvas.text(LEFT - 6, y + 4, number(tick), "end", 11)
    canvas.text(16, (scale.begin + scale.end) / 2, label, "middle", 12, turn=-90)


def bars(path, title, note, unit, groups, names, values, stacked=False, reference=None):
    """values[group][series]; None leaves a gap. `reference`: (value, text) of a dashed line."""
    width = max(520, LEFT + 40 + (46 if stacked else 20 * len(names) + 22) * len(groups))
    slanted = max(map(len, groups)) * 6.5 > (width - LEFT - 40) / len(groups)
    bottom = BOTTOM + (70 if slanted else 0)
    canvas = Canvas(width, 380 + bottom - BOTTOM, title, note)
    tops = [sum(v or 0 for v in row) if stacked else max((v or 0 for v in row), default=0) for row in values]
    top = max(tops + [reference[0] if reference else 0]) * 1.08 or 1.0
    scale = Scale(0, top, canvas.height - bottom, TOP)
    axis(canvas, scale, unit, width - 20)
    step = (width - LEFT - 30) / len(groups)
    for g, (group, row) in enumerate(zip(groups, values)):
        x, base = LEFT + 8 + g * step, 0.0
        bar = (step - 14) if stacked else (step - 14) / len(names)
        for s, value in enumerate(row):
            if value is None:
                continue
            at = x if stacked else x + s * bar
            canvas.box(at, scale(base + value), bar - (0 if stacked else 2), scale(base) - scale(base + value),
                       COLOURS[s % len(COLOURS)])
            if not stacked and len(groups) * len(names) <= 24:
                canvas.text(at + bar / 2 - 1, scale(value) - 3, number(value), "middle", 9)
            base += value if stacked else 0.0
        if slanted:
            canvas.text(x + step / 2, canvas.height - bottom + 14, group, "end", 10, turn=-40)
        else:
            canvas.text(x + (step - 14) / 2, canvas.height - bottom + 16, group, "middle", 11)
    if reference:
        canvas.line(LEFT, scale(reference[0]), width - 20, scale(reference[0]), "#000000", 1.2, "5 4")
        canvas.text(width - 22, scale(reference[0]) - 4, reference[1], "end", 10)
    if len(names) > 1:
        canvas.legend(names)
    canvas.write(path)


def lines(path, title, note, x_label, y_label, series, ideal=None):
    """series: name -> [(x, y)], x on a logarithmic axis; `ideal`: the same for a dashed line."""
    canvas = Canvas(640, 420, title, note)
    points = [p for s in list(series.values()) + ([ideal] if ideal else []) for p in s]
    xs = sorted({p[0] for p in points})
    x_scale = Scale(xs[0], max(xs[-1], xs[0] * 1.01), LEFT + 20, 600, log=True)
    y_scale = Scale(0, max(p[1] for p in points) * 1.08, 420 - BOTTOM - 14, TOP)
    axis(canvas, y_scale, y_label, 620)
    for x in xs:
        canvas.text(x_scale(x), 420 - BOTTOM + 4, number(x), "middle", 11)
    canvas.text(340, 420 - BOTTOM + 22, x_label, "middle", 12)
    if ideal:
        for (x1, y1), (x2, y2) in zip(ideal, ideal[1:]):
            canvas.line(x_scale(x1), y_scale(y1), x_scale(x2), y_scale(y2), "#888888", 1.2, "5 4")
    for i, row in enumerate(series.values()):
        colour = COLOURS[i % len(COLOURS)]
        for (x1, y1), (x2, y2) in zip(row, row[1:]):
            canvas.line(x_scale(x1), y_scale(y1), x_scale(x2), y_scale(y2), colour, 2)
        for x, y in row:
            canvas.dot(x_scale(x), y_scale(y), colour)
    canvas.legend(list(series))
    canvas.write(path)


def roofline(path, title, note, bandwidth, speed, points):
    """points: (name, FLOPs per byte, GFLOP/s); bandwidth in GB/s, speed in GFLOP/s."""
    canvas = Canvas(900, 520, title, note)
    xs = [p[1] for p in points] + [speed / bandwidth]
    low, high = 10 ** math.floor(math.log10(min(xs))), 10 ** math.ceil(math.log10(max(xs) * 2))
    bottom = 10 ** math.floor(math.log10(min(min(p[2] for p in points), bandwidth * low)))
    x_scale = Scale(low, high, LEFT, 660, log=True)
    y_scale = Scale(bottom, speed * 2, 520 - BOTTOM, TOP, log=True)
    axis(canvas, y_scale, "GFLOP/s of one rank", 660)
    for tick in x_scale.ticks():
        canvas.text(x_scale(tick), 520 - BOTTOM + 16, number(tick), "middle", 11)
    canvas.text(360, 520 - BOTTOM + 36, "FLOPs per byte that must move", "middle")
    ridge = speed / bandwidth
    start = max(low, bottom / bandwidth)
    canvas.line(x_scale(start), y_scale(start * bandwidth), x_scale(ridge), y_scale(speed), width=1.6)
    canvas.line(x_scale(ridge), y_scale(speed), x_scale(high), y_scale(speed), width=1.6)
    canvas.text(658, y_scale(speed) - 6, f"GEMM {number(speed)} GFLOP/s", "end", 11)
    canvas.text(x_scale(start) + 8, TOP + 12, f"triad {number(bandwidth)} GB/s", size=11)
    for i, (name, intensity, gflops) in enumerate(points):
        colour = COLOURS[i % len(COLOURS)]
        canvas.dot(x_scale(intensity), y_scale(gflops), colour, 8)
        canvas.text(x_scale(intensity), y_scale(gflops) + 3.5, i + 1, "middle", 10, "#ffffff")
        canvas.text(680, TOP + 10 + i * LINE, f"{i + 1} {name}", size=11, colour=colour)
    canvas.write(path)
