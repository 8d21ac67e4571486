//! A chart, and the lines in it.

use super::svg::{self, ChartPoint, Series, Sheet};
use crate::spread::Spread;

/// A chart and its file name without extension.
pub(super) struct Chart {
    pub(super) name: String,
    pub(super) title: String,
    /// Title of the section it belongs to.
    pub(super) section: String,
    pub(super) svg: String,
}

/// Lines on a sheet.
pub(super) fn chart(name: &str, section: &str, sheet: &Sheet<'_>, series: &[Series]) -> Chart {
    Chart {
        name: name.into(),
        title: sheet.title.into(),
        section: section.into(),
        svg: svg::lines(sheet, series),
    }
}

/// Lines from figures in the order of their names.
pub(super) fn series(points: impl Iterator<Item = (String, f64, Spread)>) -> Vec<Series> {
    judged_series(points.map(|(name, x, figure)| (name, ChartPoint { x, figure, is_doubtful: false })))
}

/// The same of points some of which may prove nothing.
pub(super) fn judged_series(points: impl Iterator<Item = (String, ChartPoint)>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (name, point) in points {
        match all.last_mut() {
            Some(last) if last.name == name => last.points.push(point),
            _ => all.push(Series { name, points: vec![point] }),
        }
    }
    all
}
