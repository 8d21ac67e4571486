//! Line charts as SVG, legible on light and dark ground.

use crate::spread::Spread;

/// One line of a chart.
pub(super) struct Series {
    pub(super) name: String,
    /// Place on the horizontal axis, and the figure with its spread.
    pub(super) points: Vec<(f64, Spread)>,
}

/// How the vertical axis runs; the horizontal one is always logarithmic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 132.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

/// Okabe and Ito's colours (2008), which people with any colour vision tell apart; the last is a grey that shows on both grounds.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#b8a800", "#808080"];

/// A chart with a logarithmic horizontal axis. Bars show the confidence interval.
pub(super) fn lines(title: &str, x_title: &str, y_title: &str, scale: Scale, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|s| &s.points);
    let (x_low, x_high) = range(points().map(|p| p.0));
    let (low, high) = range(points().flat_map(|p| [p.1.bounds().low, p.1.bounds().high]));
    let y_axis = Axis::vertical(scale, low, high);
    let x_axis = Axis {
        low: x_low.max(1e-9).ln(),
        high: x_high.max(1e-9).ln(),
        log: true,
        from: LEFT,
        to: WIDTH - RIGHT,
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <style>text{{fill:#333}}.g{{stroke:#8884;stroke-width:1}}.a{{stroke:#888}}\
         @media (prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"600\">{}</text>\n",
        escape(title),
        title = escape(title),
    );
    let bottom = HEIGHT - BOTTOM;
    for tick in y_axis.ticks() {
        let y = y_axis.place(tick);
        out += &format!(
            "<line class=\"g\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
            WIDTH - RIGHT
        );
        out += &format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 8.0,
            y + 4.0,
            short(tick)
        );
    }
    let mut levels: Vec<f64> = points().map(|p| p.0).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    for level in levels {
        let x = x_axis.place(level);
        out += &format!("<line class=\"g\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n");
        out += &format!(
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            bottom + 18.0,
            short(level)
        );
    }
    out += &format!("<line class=\"a\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n");
    out += &format!(
        "<line class=\"a\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\n",
        WIDTH - RIGHT
    );
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    out += &format!(
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
        HEIGHT - 12.0,
        escape(x_title)
    );
    out += &format!(
        "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        (TOP + bottom) / 2.0,
        escape(y_title)
    );
    for (i, one) in series.iter().enumerate() {
        out += &line(one, COLOURS[i % COLOURS.len()], i / COLOURS.len() > 0, &x_axis, &y_axis);
    }
    out += &legend(series);
    out + "</svg>\n"
}

fn line(series: &Series, colour: &str, dashed: bool, x_axis: &Axis, y_axis: &Axis) -> String {
    let at = |p: &(f64, Spread)| format!("{:.1},{:.1}", x_axis.place(p.0), y_axis.place(p.1.median));
    let path = series.points.iter().map(at).collect::<Vec<_>>().join(" ");
    let dash = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let mut out =
        format!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n");
    for (level, spread) in &series.points {
        let (x, low, high) =
            (x_axis.place(*level), y_axis.place(spread.bounds().low), y_axis.place(spread.bounds().high));
        out += &format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\" stroke-opacity=\".5\"/>\n"
        );
        out += &format!(
            "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>\n",
            y_axis.place(spread.median)
        );
    }
    out
}

fn legend(series: &[Series]) -> String {
    let mut out = String::new();
    for (i, one) in series.iter().enumerate() {
        let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 12.0 + 20.0 * i as f64);
        let colour = COLOURS[i % COLOURS.len()];
        out += &format!("<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\n", y - 6.0);
        out += &format!("<text x=\"{}\" y=\"{y}\">{}</text>\n", x + 20.0, escape(&one.name));
    }
    out
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
    fn vertical(scale: Scale, low: f64, high: f64) -> Self {
        let (from, to) = (HEIGHT - BOTTOM, TOP);
        match scale {
            Scale::Linear => {
                let step = step(high / 6.0);
                Self { low: 0.0, high: (high / step).ceil().max(1.0) * step, log: false, from, to }
            }
            Scale::Log => {
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
        for scale in [Scale::Linear, Scale::Log] {
            let svg = lines("t & u", "x", "y", scale, &series);
            assert_eq!(svg.matches("<polyline").count(), 2);
            assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u") && !svg.contains("NaN"));
        }
        assert!(!lines("t", "x", "y", Scale::Log, &[]).contains("NaN"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.7, 1.0, 1.5, 30.0, 4200.0].map(step), [1.0, 1.0, 2.0, 50.0, 5000.0]);
    }
}
