//! Line charts and bars as SVG, legible on light and dark ground and on a telephone.

use crate::spread::Spread;

/// One line of a chart.
pub(super) struct Series {
    pub(super) name: String,
    /// Place on the horizontal axis, and the figure with its spread.
    pub(super) points: Vec<(f64, Spread)>,
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
/// Of the part with axes; the legend comes below.
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 64.0;

/// The legend: entries in a row, and height of a row.
const COLUMNS: usize = 3;
const ROW: f64 = 30.0;

/// Okabe and Ito's colours (2008), which people with any colour vision tell apart; the last is a grey that shows on
/// both grounds.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#b8a800", "#808080"];

/// The sheet, with letters that grow where the screen is small.
fn open(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"system-ui, sans-serif\">\n\
         <style>text{{fill:#333;font-size:14px}}.t{{font-size:16px;font-weight:600}}.g{{stroke:#8884;stroke-width:1}}.a{{stroke:#888}}\
         @media (prefers-color-scheme:dark){{text{{fill:#ddd}}}}@media (max-width:600px){{text{{font-size:22px}}}}</style>\n\
         <text class=\"t\" x=\"16\" y=\"24\">{title}</text>\n",
        title = escape(title),
    )
}

/// A line for each series. Bars show the confidence interval.
pub(super) fn lines(sheet: &Sheet<'_>, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|s| &s.points);
    let (x_low, x_high) = range(points().map(|p| p.0));
    let (low, high) = range(points().flat_map(|p| [p.1.bounds().low, p.1.bounds().high]));
    let y_axis = Axis::vertical(sheet.y, low, high);
    let x_axis = Axis::horizontal(sheet.x, x_low, x_high);
    let rows = series.len().div_ceil(COLUMNS) as f64;
    let mut out = open(sheet.title, HEIGHT + ROW * rows);
    out += &horizontal_grid(&y_axis);
    out += &vertical_grid(sheet.x, &x_axis, points().map(|p| p.0));
    out += &frame(sheet);
    for (i, one) in series.iter().enumerate() {
        out += &line(one, COLOURS[i % COLOURS.len()], i / COLOURS.len() > 0, &x_axis, &y_axis);
    }
    out += &legend(series);
    out + "</svg>\n"
}

fn horizontal_grid(axis: &Axis) -> String {
    let line = |tick: f64| {
        let (y, right, x) = (axis.place(tick), WIDTH - RIGHT, LEFT - 8.0);
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

fn frame(sheet: &Sheet<'_>) -> String {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
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

fn line(series: &Series, colour: &str, dashed: bool, x_axis: &Axis, y_axis: &Axis) -> String {
    let at = |p: &(f64, Spread)| format!("{:.1},{:.1}", x_axis.place(p.0), y_axis.place(p.1.median));
    let path = series.points.iter().map(at).collect::<Vec<_>>().join(" ");
    let dash = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let mut out =
        format!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n");
    for (level, spread) in &series.points {
        let bounds = spread.bounds();
        let (x, low, high) = (x_axis.place(*level), y_axis.place(bounds.low), y_axis.place(bounds.high));
        out += &format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\" stroke-opacity=\".5\"/>\n\
             <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>\n",
            y_axis.place(spread.median)
        );
    }
    out
}

fn legend(series: &[Series]) -> String {
    let entry = |(i, one): (usize, &Series)| {
        let column = (WIDTH - 16.0) / COLUMNS as f64;
        let (x, y) = (16.0 + column * (i % COLUMNS) as f64, HEIGHT + 18.0 + ROW * (i / COLUMNS) as f64);
        let colour = COLOURS[i % COLOURS.len()];
        format!(
            "<rect x=\"{x}\" y=\"{}\" width=\"18\" height=\"5\" fill=\"{colour}\"/>\n<text x=\"{}\" y=\"{y}\">{}</text>\n",
            y - 8.0,
            x + 26.0,
            escape(&one.name)
        )
    };
    series.iter().enumerate().map(entry).collect()
}

/// A bar for each name, with its figure beside it and its confidence interval on it. Those marked are tidegate's.
pub(super) fn bars(title: &str, rows: &[(String, Spread)], is_ours: impl Fn(&str) -> bool) -> String {
    const FROM: f64 = 216.0;
    const TO: f64 = WIDTH - 110.0;
    const EACH: f64 = 32.0;
    let most = rows.iter().map(|(_, s)| s.bounds().high).fold(1e-9, f64::max);
    let place = |value: f64| FROM + (TO - FROM) * value / most;
    let mut out = open(title, TOP + EACH * rows.len() as f64 + 8.0);
    for (i, (name, spread)) in rows.iter().enumerate() {
        let (y, bounds) = (TOP + EACH * i as f64, spread.bounds());
        let colour = if is_ours(name) { COLOURS[0] } else { COLOURS[7] };
        let (middle, end) = (y + 12.0, place(spread.median));
        out += &format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{FROM}\" y=\"{}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>\n\
             <line class=\"a\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\n\
             <text x=\"{:.1}\" y=\"{}\">{:.2}</text>\n",
            FROM - 8.0,
            y + 17.0,
            escape(name),
            y + 3.0,
            end - FROM,
            place(bounds.low),
            place(bounds.high),
            place(bounds.high) + 8.0,
            y + 17.0,
            spread.median
        );
    }
    out + "</svg>\n"
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
    fn horizontal(scale: Scale, low: f64, high: f64) -> Self {
        let (from, to) = (LEFT, WIDTH - RIGHT);
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
                let (low, high) = (low.max(1e-9).log10().floor(), high.max(1e-9).log10().ceil());
                let ln10 = std::f64::consts::LN_10;
                Self { low: low * ln10, high: high.max(low + 1.0) * ln10, log: true, from, to }
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
            let ln10 = std::f64::consts::LN_10;
            let (low, high) = ((self.low / ln10).round() as i32, (self.high / ln10).round() as i32);
            return (low..=high).map(|power| 10f64.powi(power)).collect();
        }
        let step = step(self.high / 6.0);
        (0..=(self.high / step).round() as u32).map(|i| f64::from(i) * step).collect()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_line_and_a_name_for_each_series() {
        let at = |v| Spread::of([v * 0.9, v, v * 1.1]).unwrap();
        let series = ["a<b", "c"]
            .map(|name| Series { name: name.into(), points: vec![(10.0, at(5.0)), (1000.0, at(50.0))] });
        let sheet = |x, y| Sheet { title: "t & u", x_title: "x", y_title: "y", x, y };
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            let svg = lines(&sheet(scale, Scale::Log), &series);
            assert_eq!(svg.matches("<polyline").count(), 2);
            assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u") && !svg.contains("NaN"));
        }
        assert!(!lines(&sheet(Scale::Log, Scale::Log), &[]).contains("NaN"));
        let svg = bars("t", &[("a<b".into(), at(2.0)), ("c".into(), at(1.0))], |name| name == "c");
        assert!(svg.contains("a&lt;b") && svg.contains(">2.00<") && !svg.contains("NaN"));
        assert!(!bars("t", &[], |_| false).contains("NaN"));
    }

    #[test]
    fn percentiles_are_named_as_people_name_them() {
        assert_eq!(
            [2.0, 4.0, 10.0, 100.0, 1000.0, MAXIMUM].map(percentile),
            ["p50", "p75", "p90", "p99", "p99.9", "max"]
        );
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.7, 1.0, 1.5, 30.0, 4200.0].map(step), [1.0, 1.0, 2.0, 50.0, 5000.0]);
    }
}
