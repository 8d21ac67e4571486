//! Line charts and bars as SVG, legible on light and dark ground and on a telephone.

use super::cells::figure;
use super::verdict::{MARK, NOT_PROVEN};
use crate::spread::Spread;

#[cfg(test)]
mod tests;

/// One line of a chart.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<ChartPoint>,
}

/// One figure of a line.
pub(super) struct ChartPoint {
    /// Place on the horizontal axis.
    pub(super) x: f64,
    pub(super) figure: Spread,
    /// Drawn hollow: its rounds do not prove that the server was the limit.
    pub(super) is_doubtful: bool,
}

/// How an axis runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
    /// Of quantiles q, at 1 / (1 − q): each nine takes as much room as the one before.
    Percentile,
}

/// What is written on a chart, and how its axes run.
pub(super) struct Sheet<'a> {
    pub(super) title: &'a str,
    pub(super) x_title: &'a str,
    pub(super) y_title: &'a str,
    pub(super) x: Scale,
    pub(super) y: Scale,
}

const WIDTH: f64 = 760.0;
/// Of the part with axes; a legend comes below.
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 96.0;
/// Right of the axes, where no names are.
const MARGIN: f64 = 28.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 64.0;

/// The legend: entries in a row, and height of a row.
const COLUMNS: usize = 3;
const ROW: f64 = 30.0;

/// Okabe and Ito's colours (2008), which people with any colour vision tell apart, and a grey that shows on both
/// grounds; their yellow, here darker, is last, because it is near to the orange.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", GREY, "#b8a800"];
const GREY: &str = "#808080";
const DASHES: &str = " stroke-dasharray=\"7 6\"";

/// The sheet, with letters that grow where the screen is small.
fn open(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"system-ui, sans-serif\">\n\
         <style>text{{fill:#333;font-size:14px}}.t{{font-size:16px;font-weight:600}}.g{{stroke:#8884;stroke-width:1}}.a{{stroke:#888}}.e{{stroke:#111;stroke-width:1.5}}.h{{fill:#fff}}\
         @media (prefers-color-scheme:dark){{text{{fill:#ddd}}.e{{stroke:#eee}}.h{{fill:#14171a}}}}@media (max-width:600px){{text{{font-size:22px}}}}</style>\n\
         <text class=\"t\" x=\"16\" y=\"24\">{title}</text>\n",
        title = escape(title),
    )
}

/// A line for each series, with its name beside it, or in a legend where names do not fit. Bars show the confidence
/// interval.
pub(super) fn lines(sheet: &Sheet<'_>, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|s| &s.points);
    let (x_low, x_high) = range(points().map(|p| p.x));
    let (low, high) = range(points().flat_map(|p| [p.figure.bounds().low, p.figure.bounds().high]));
    let y_axis = Axis::vertical(sheet.y, low, high);
    let beside = room_beside(series);
    let right = WIDTH - beside.unwrap_or(MARGIN);
    let x_axis = Axis::horizontal(sheet.x, x_low, x_high, right);
    let rows = if beside.is_some() { 0.0 } else { series.len().div_ceil(COLUMNS) as f64 };
    let is_doubtful = points().any(|p| p.is_doubtful);
    let mut out = open(sheet.title, HEIGHT + ROW * (rows + f64::from(u8::from(is_doubtful))));
    out += &horizontal_grid(&y_axis, right);
    out += &vertical_grid(sheet.x, &x_axis, points().map(|p| p.x));
    out += &frame(sheet, right);
    let strokes = strokes(series, &x_axis, &y_axis);
    for (one, stroke) in series.iter().zip(&strokes) {
        out += &line(one, *stroke, &x_axis, &y_axis);
    }
    out += &match beside {
        Some(_) => names_beside(series, &strokes, &x_axis, &y_axis),
        None => legend(series, &strokes),
    };
    if is_doubtful {
        out += &legend_of_hollow(HEIGHT + 18.0 + ROW * rows);
    }
    out + "</svg>\n"
}

/// How a line is drawn, on the sheet and in the legend.
#[derive(Clone, Copy)]
struct Stroke {
    colour: &'static str,
    dash: &'static str,
}

/// A colour for each line; dashes where a colour is there a second time, and for a line on top of another one, which
/// shows in the gaps.
fn strokes(series: &[Series], x_axis: &Axis, y_axis: &Axis) -> Vec<Stroke> {
    let place = |p: &ChartPoint| (x_axis.place(p.x), y_axis.place(p.figure.median));
    let is_near = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() < 1.0 && (a.1 - b.1).abs() < 1.0;
    let hides = |a: &Series, b: &Series| {
        a.points.len() == b.points.len()
            && a.points.iter().zip(&b.points).all(|(a, b)| is_near(place(a), place(b)))
    };
    let stroke = |(i, one): (usize, &Series)| {
        let is_dashed = i >= COLOURS.len() || series[..i].iter().any(|under| hides(one, under));
        Stroke { colour: COLOURS[i % COLOURS.len()], dash: if is_dashed { DASHES } else { "" } }
    };
    series.iter().enumerate().map(stroke).collect()
}

fn horizontal_grid(axis: &Axis, right: f64) -> String {
    let line = |tick: f64| {
        let (y, x) = (axis.place(tick), LEFT - 8.0);
        format!(
            "<line class=\"g\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n\
             <text x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            y + 5.0,
            short(tick)
        )
    };
    axis.ticks().into_iter().map(line).collect()
}

/// Numbers in reading size on a telephone need this much room.
const APART: f64 = 56.0;

fn vertical_grid(scale: Scale, axis: &Axis, levels: impl Iterator<Item = f64>) -> String {
    let mut levels: Vec<f64> = if scale == Scale::Linear { axis.ticks() } else { levels.collect() };
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let (mut out, mut last, bottom) = (String::new(), f64::NEG_INFINITY, HEIGHT - BOTTOM);
    for level in levels {
        let x = axis.place(level);
        out += &format!("<line class=\"g\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n");
        if x - last < APART {
            continue;
        }
        last = x;
        let label = if scale == Scale::Percentile { percentile(level) } else { short(level) };
        out += &format!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>\n", bottom + 22.0);
    }
    out
}

/// `p99` of 100, `max` of what no percentile reaches.
fn percentile(level: f64) -> String {
    if level.is_finite() && level < MAXIMUM {
        format!("p{}", (1e5 - 1e5 / level).round() / 1e3)
    } else {
        "max".into()
    }
}

/// The position of the maximum on an axis of percentiles.
pub(super) const MAXIMUM: f64 = 1e4;

fn frame(sheet: &Sheet<'_>, right: f64) -> String {
    let bottom = HEIGHT - BOTTOM;
    let (across, up) = ((LEFT + right) / 2.0, (TOP + bottom) / 2.0);
    format!(
        "<line class=\"a\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n\
         <line class=\"a\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\n\
         <text x=\"{across}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(22 {up}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        HEIGHT - 14.0,
        escape(sheet.x_title),
        escape(sheet.y_title)
    )
}

fn line(series: &Series, Stroke { colour, dash }: Stroke, x_axis: &Axis, y_axis: &Axis) -> String {
    let at = |p: &ChartPoint| format!("{:.1},{:.1}", x_axis.place(p.x), y_axis.place(p.figure.median));
    let path = series.points.iter().map(at).collect::<Vec<_>>().join(" ");
    let mut out = format!(
        "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"{dash}/>\n"
    );
    for ChartPoint { x, figure, is_doubtful } in &series.points {
        let bounds = figure.bounds();
        let (x, low, high) = (x_axis.place(*x), y_axis.place(bounds.low), y_axis.place(bounds.high));
        let y = y_axis.place(figure.median);
        if figure.has_several() {
            out += &format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\" stroke-opacity=\".5\"/>\n",
            );
        }
        out += &match is_doubtful {
            true => hollow(x, y, colour),
            false => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n"),
        };
    }
    out
}

/// The point of a figure that may not be the server's.
fn hollow(x: f64, y: f64, colour: &str) -> String {
    format!(
        "<circle class=\"h\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" stroke=\"{colour}\" stroke-width=\"2\"/>\n"
    )
}

fn legend_of_hollow(y: f64) -> String {
    let (point, text) = (hollow(26.0, y - 5.0, GREY), escape(NOT_PROVEN));
    format!("{point}<text x=\"44\" y=\"{y}\">{text}</text>\n")
}

/// From the end of the axes to a name: a stroke as its line has it, from where that ends to the name.
const LEAD: f64 = 26.0;
/// From one name to the next, in the letters of a telephone.
const NAME: f64 = 26.0;

/// What names beside the lines need right of the axes. `None` if they would leave too little to the lines, or are too
/// many for the height.
fn room_beside(series: &[Series]) -> Option<f64> {
    const MOST: f64 = 230.0;
    let letters = series.iter().map(|one| one.name.chars().count()).max()?;
    let room = LEAD + letters as f64 * LETTER + 4.0;
    let fits = room <= MOST && (series.len() as f64 - 1.0) * NAME <= HEIGHT - BOTTOM - TOP;
    (fits && series.iter().all(|one| !one.points.is_empty())).then_some(room)
}

/// A name at the end of each line, in the order of the lines there.
fn names_beside(series: &[Series], strokes: &[Stroke], x_axis: &Axis, y_axis: &Axis) -> String {
    let last =
        |one: &Series| one.points.iter().map(|p| (p.x, p.figure.median)).max_by(|a, b| a.0.total_cmp(&b.0));
    let mut ends: Vec<_> = series
        .iter()
        .zip(strokes)
        .filter_map(|(one, stroke)| last(one).map(|(x, y)| (x_axis.place(x), y_axis.place(y), one, stroke)))
        .collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let wanted: Vec<_> = ends.iter().map(|end| end.1).collect();
    let places = apart(&wanted, NAME, TOP, HEIGHT - BOTTOM);
    let name = |((x, y, one, Stroke { colour, dash }), at): ((f64, f64, &Series, &Stroke), f64)| {
        let to = x_axis.to + LEAD - 6.0;
        format!(
            "<path d=\"M{x:.1} {y:.1}L{to:.1} {at:.1}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dash}/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            x_axis.to + LEAD,
            at + 5.0,
            escape(&one.name)
        )
    };
    ends.into_iter().zip(places).map(name).collect()
}

/// Places at least `gap` from each other and between `top` and `bottom`, in the given order and as near as possible to
/// those that are wanted (least squares, by pooling neighbours that would touch).
fn apart(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (i, place) in wanted.iter().enumerate() {
        let (mut sum, mut count) = (place - gap * i as f64, 1);
        while let Some(&(before, of)) = pools.last()
            && before / of as f64 >= sum / count as f64
        {
            pools.pop();
            (sum, count) = (sum + before, count + of);
        }
        pools.push((sum, count));
    }
    let highest = bottom - gap * (wanted.len().max(1) - 1) as f64;
    let starts = pools.into_iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / count as f64, count));
    starts.enumerate().map(|(i, start)| start.min(highest).max(top) + gap * i as f64).collect()
}

fn legend(series: &[Series], strokes: &[Stroke]) -> String {
    let entry = |(i, (one, Stroke { colour, dash })): (usize, (&Series, &Stroke))| {
        let column = (WIDTH - 16.0) / COLUMNS as f64;
        let (x, y) = (16.0 + column * (i % COLUMNS) as f64, HEIGHT + 18.0 + ROW * (i / COLUMNS) as f64);
        let (middle, end) = (y - 5.0, x + 20.0);
        format!(
            "<line x1=\"{x}\" x2=\"{end}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"{colour}\" \
             stroke-width=\"5\"{dash}/>\n<text x=\"{}\" y=\"{y}\">{}</text>\n",
            x + 28.0,
            escape(&one.name)
        )
    };
    series.iter().zip(strokes).enumerate().map(entry).collect()
}

/// A bar for each name, with its figure beside it and its confidence interval on it. Those of `is_ours` are tidegate's;
/// names that end in the mark of doubtful figures have a legend.
pub(super) fn bars(title: &str, rows: &[(String, Spread)], is_ours: impl Fn(&str) -> bool) -> String {
    const TO: f64 = WIDTH - 110.0;
    const EACH: f64 = 32.0;
    let from = room(rows.iter().map(|(name, _)| name.as_str()));
    let most = longest(rows.iter().map(|(_, s)| s));
    let place = |value: f64| from + (TO - from) * value.min(most) / most;
    let bottom = TOP + EACH * rows.len() as f64 + 8.0;
    let is_doubtful = rows.iter().any(|(name, _)| name.ends_with(MARK));
    let mut out = open(title, bottom + if is_doubtful { EACH } else { 0.0 });
    for (i, (name, spread)) in rows.iter().enumerate() {
        let (y, bounds) = (TOP + EACH * i as f64, spread.bounds());
        let colour = if is_ours(name) { COLOURS[0] } else { GREY };
        let (middle, end) = (y + 12.0, place(spread.median));
        let (low, high) = (place(bounds.low), place(bounds.high));
        let interval = match spread.has_several() {
            true => format!(
                "<line class=\"e\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\n"
            ),
            false => String::new(),
        };
        out += &format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n{}{interval}<text x=\"{:.1}\" y=\"{}\">{}</text>\n",
            from - 8.0,
            y + 17.0,
            escape(name),
            bar(from, end, y + 3.0, colour, spread.median > most),
            high + 8.0,
            y + 17.0,
            figure(spread.median, if spread.median < 1e3 { 2 } else { 0 })
        );
    }
    if is_doubtful {
        out += &format!("<text x=\"16\" y=\"{}\">{MARK} {}</text>\n", bottom + 14.0, escape(NOT_PROVEN));
    }
    out + "</svg>\n"
}

/// Width of a letter on a telephone.
const LETTER: f64 = 13.5;

/// Where bars begin, so that their names have room in the letters of a telephone.
fn room<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or_default();
    (longest as f64 * LETTER + 16.0).clamp(120.0, 380.0)
}

/// A bar this many times as long as the one in the middle is broken: it would leave no length to the others.
const BROKEN: f64 = 20.0;

/// The figure that the longest bar represents, and every broken one.
fn longest<'a>(rows: impl Iterator<Item = &'a Spread> + Clone) -> f64 {
    let mut medians: Vec<f64> = rows.clone().map(|s| s.median).collect();
    medians.sort_by(f64::total_cmp);
    let limit = medians.get(medians.len() / 2).map_or(f64::INFINITY, |middle| middle.max(1e-9) * BROKEN);
    let high = |s: &Spread| s.bounds().high;
    let whole = rows.clone().filter(|s| s.median <= limit).map(high).fold(1e-9, f64::max);
    // A broken bar is longer than every whole one.
    if rows.clone().any(|s| s.median > limit) { whole * 1.5 } else { whole }
}

/// A bar, with a gap near its end if it is broken.
fn bar(from: f64, end: f64, y: f64, colour: &str, is_broken: bool) -> String {
    const HIGH: f64 = 18.0;
    if !is_broken {
        let width = end - from;
        return format!(
            "<rect x=\"{from}\" y=\"{y}\" width=\"{width:.1}\" height=\"{HIGH}\" fill=\"{colour}\"/>\n"
        );
    }
    let (gap, bottom) = (end - 40.0, y + HIGH);
    format!(
        "<path d=\"M{from} {y}H{:.1}L{:.1} {bottom}H{from}ZM{:.1} {y}H{end:.1}V{bottom}H{:.1}Z\" fill=\"{colour}\"/>\n",
        gap + 6.0,
        gap - 6.0,
        gap + 14.0,
        gap + 2.0,
    )
}

/// From figures to places on the sheet.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn horizontal(scale: Scale, low: f64, high: f64, to: f64) -> Self {
        let from = LEFT;
        match scale {
            Scale::Linear => Self { low: 0.0, high, log: false, from, to },
            Scale::Log | Scale::Percentile => {
                Self { low: low.max(1e-9).ln(), high: high.max(1e-9).ln(), log: true, from, to }
            }
        }
    }

    fn vertical(scale: Scale, low: f64, high: f64) -> Self {
        let (from, to) = (HEIGHT - BOTTOM, TOP);
        match scale {
            Scale::Linear => {
                let step = step(high / 6.0);
                Self { low: 0.0, high: (high / step).ceil().max(1.0) * step, log: false, from, to }
            }
            Scale::Log | Scale::Percentile => {
                let (low, high) = (low.max(1e-9), high.max(1e-9));
                let (below, above) = (1.0 / step(1.0 / low), step(high));
                // Rounding may leave them a last digit apart, which is no axis.
                let above = if above > below * 1.01 { above } else { step(below * 1.01) };
                Self { low: below.ln(), high: above.ln(), log: true, from, to }
            }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-9).ln() } else { value };
        let span = self.high - self.low;
        let part = if span > 0.0 { (value - self.low) / span } else { 0.5 };
        self.from + (self.to - self.from) * part
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (low, high) = (self.low.exp(), self.high.exp());
            // Over many powers of ten, these only.
            let parts: &[f64] = if high / low < FEW { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
            let all = powers.flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)));
            return all.filter(|tick| (low * 0.99..=high * 1.01).contains(tick)).collect();
        }
        let step = step(self.high / 6.0);
        (0..=(self.high / step * 1.001) as u32).map(|i| f64::from(i) * step).collect()
    }
}

/// A logarithmic axis of less than this has ticks at 1, 2 and 5.
const FEW: f64 = 1500.0;

/// The round number (1, 2 or 5 with zeros) at or above `least`.
fn step(least: f64) -> f64 {
    let least = least.max(1e-9);
    let unit = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * unit).find(|&s| s >= least * 0.999).unwrap_or(unit * 10.0)
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|v| v.is_finite());
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e3 => format!("{}k", v / 1e3),
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
