//! The summary at the top of a report: which model to use on this machine, and by how much.

use std::collections::BTreeMap;

use tidegate::Model;
use tidegate_load::verdict::Verdict;

use super::cells::{Cells, grouped, spread};
use super::{Results, chart::Chart, svg, verdict};
use crate::bootstrap::{self, Interval};
use crate::experiment::concurrency::{Point, ResultTable};
use crate::spread::{CONFIDENCE, Spread};

/// Title of the section.
pub(super) const WHICH: &str = "Which model";

/// Differences up to this count as equal cost.
const MARGIN: f64 = 0.02;

/// Beyond it, or its inverse, an interval that includes "the same" is too wide for that conclusion.
const TOLD_APART: f64 = 1.05;

/// The cost per request in µs of CPU time: in each turn the geometric mean over all points, and over all turns.
#[derive(Clone)]
struct RequestCost {
    turns: BTreeMap<usize, f64>,
    us: Spread,
}

/// A model and its cost.
struct Cost {
    model: String,
    own: RequestCost,
    /// Cost relative to another one, the cheapest in a table, with its confidence interval; by turn, because what
    /// slows the machine down for a turn slows all of them down.
    times: f64,
    interval: Option<Interval>,
}

impl Cost {
    /// What a model costs beside another one.
    fn beside(model: String, own: RequestCost, other: &RequestCost) -> Self {
        let (times, interval) = ratio(&own, other);
        Self { model, own, times, interval }
    }

    /// What is known of the difference.
    fn difference(&self) -> Difference {
        let Some(Interval { low, high }) = self.interval else {
            return if self.times <= 1.0 + MARGIN { Difference::Little } else { Difference::Times };
        };
        let is_wide = high > TOLD_APART || low < 1.0 / TOLD_APART;
        match (low <= 1.0 + MARGIN, is_wide, low <= 1.0) {
            (false, ..) => Difference::Times,
            (true, false, _) => Difference::Little,
            (true, true, true) => Difference::Unclear,
            (true, true, false) => Difference::Range,
        }
    }

    /// It, and by how much it may differ, in percent.
    fn within(&self) -> f64 {
        let percent = |times: f64| ((times - 1.0).abs() * 100.0).ceil();
        self.interval.map_or(percent(self.times), |i| percent(i.low).max(percent(i.high)))
    }

    fn range(&self) -> String {
        self.interval.map_or_else(String::new, |i| format!("{:.2} to {:.2}", i.low, i.high))
    }
}

/// What rounds say of the costs of two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// They are the same, or nearly.
    Little,
    /// They may be the same, or differ by more than is little.
    Unclear,
    /// They differ; by little or more.
    Range,
    /// One costs more.
    Times,
}

/// What the others cost beside the one that is taken; those of which the same is known together.
fn words(others: &[Cost]) -> Vec<String> {
    let of = |difference| others.iter().filter(move |cost| cost.difference() == difference);
    let names = |costs: &[&Cost], about: fn(&Cost) -> String| {
        costs.iter().map(|cost| format!("`{}`{}", cost.model, about(cost))).collect::<Vec<_>>().join(", ")
    };
    let mut words = Vec::new();
    let little: Vec<&Cost> = of(Difference::Little).collect();
    if !little.is_empty() {
        let within = little.iter().map(|cost| cost.within()).fold(0.0, f64::max);
        words.push(format!("{} the same within {within:.0}%", names(&little, |_| String::new())));
    }
    let unclear: Vec<&Cost> = of(Difference::Unclear).collect();
    if !unclear.is_empty() {
        let differ =
            if unclear.len() == 1 { "does not differ measurably" } else { "do not differ measurably" };
        words.push(format!("{} {differ}", names(&unclear, |cost| format!(" ({} times)", cost.range()))));
    }
    words
        .extend(of(Difference::Range).map(|cost| format!("`{}` {} times as much", cost.model, cost.range())));
    words.extend(
        of(Difference::Times).map(|cost| format!("`{}` {:.1} times as much", cost.model, cost.times)),
    );
    words
}

/// All models that have every point, the cheapest first, the others by how many times as much they cost.
fn costs(table: &ResultTable) -> Vec<Cost> {
    let mut names: Vec<&str> = table.points.iter().map(|point| point.model.as_str()).collect();
    names.dedup();
    let most = names.iter().map(|name| points(table, name).count()).max().unwrap_or_default();
    let mut found: Vec<(String, RequestCost)> = names
        .into_iter()
        .filter(|name| points(table, name).count() == most)
        .filter_map(|name| Some((name.to_owned(), over_points(points(table, name))?)))
        .collect();
    found.sort_by(|a, b| a.1.us.median.total_cmp(&b.1.us.median));
    let Some(least) = found.first().map(|(_, cost)| cost.clone()) else { return Vec::new() };
    let beside = |(model, cost)| Cost::beside(model, cost, &least);
    let mut costs: Vec<Cost> = found.into_iter().map(beside).collect();
    // By what is shown: by turn, another order may come out than of the medians. What all are compared with stays
    // first.
    if let Some(others) = costs.get_mut(1..) {
        others.sort_by(|a, b| a.times.total_cmp(&b.times));
    }
    costs
}

/// How many times `least` a cost is, with the confidence interval, by the turns that both have. Where there are none,
/// the medians are compared.
fn ratio(own: &RequestCost, least: &RequestCost) -> (f64, Option<Interval>) {
    let by_turn = own.turns.iter().filter_map(|(turn, us)| Some(us / least.turns.get(turn)?));
    match Spread::of(by_turn) {
        Some(ratio) => (ratio.median, ratio.interval),
        None => {
            let interval = bootstrap::of_ratio(&least.us.rounds, &own.us.rounds, CONFIDENCE);
            (own.us.median / least.us.median, interval)
        }
    }
}

fn points<'a>(table: &'a ResultTable, model: &'a str) -> impl Iterator<Item = &'a Point> {
    table.points.iter().filter(move |point| point.model == model)
}

/// The geometric mean of the points' costs in each turn. A turn missing at one point is omitted.
fn over_points<'a>(points: impl Iterator<Item = &'a Point>) -> Option<RequestCost> {
    let all: Vec<BTreeMap<usize, f64>> = points.map(|point| point.figures.cost_by_turn()).collect();
    let mean = |turn: &usize| {
        let logs = all.iter().map(|costs| Some((costs.get(turn)? * 10.0).ln())).sum::<Option<f64>>()?;
        Some((logs / all.len() as f64).exp())
    };
    let turns: BTreeMap<usize, f64> =
        all.first()?.keys().filter_map(|turn| Some((*turn, mean(turn)?))).collect();
    let us = Spread::of(turns.values().copied())?;
    Some(RequestCost { turns, us })
}

/// The summary in one sentence; `None` unless the concurrency experiment was run.
///
/// Among models of equal cost, the one whose connections use less memory is chosen, if that was measured. Of models
/// whose costs the rounds cannot tell to be equal or not, the cheapest is chosen: that is the better guess. `select`
/// and `poll` are chosen only if all others cost measurably more: there is no idle connection in these rounds, and they
/// look at every one whenever they wait.
#[must_use]
pub fn sentence(results: &Results) -> Option<String> {
    let costs = costs(results.answered()?);
    let rows = || results.connections.iter().flat_map(|table| &table.rows);
    let bytes = |model: &str| {
        let of_model = rows().filter(|row| row.model == model);
        of_model.max_by_key(|row| row.connected).and_then(|row| row.user_bytes_each)
    };
    let as_good = |cost: &&Cost| matches!(cost.difference(), Difference::Little | Difference::Unclear);
    let cheapest = costs.iter().filter(as_good).find(|cost| scales(&cost.model)).or_else(|| costs.first())?;
    let equal = costs.iter().filter(|cost| cost.difference() == Difference::Little && scales(&cost.model));
    let smallest = equal
        .filter_map(|cost| Some((cost, bytes(&cost.model)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(cost, _)| cost);
    let taken = smallest.unwrap_or(cheapest);
    // Beside the one that is taken, which need not be the cheapest of equals.
    let others = costs.iter().filter(|cost| cost.model != taken.model);
    let others: Vec<Cost> =
        others.map(|cost| Cost::beside(cost.model.clone(), cost.own.clone(), &taken.own)).collect();
    let program = results.answered().and_then(|table| table.program.as_ref());
    let of_program = program.map_or(String::new(), |program| format!(" for `{program}`"));
    let mut text = format!("Here take `{}`{of_program}", taken.model);
    if !others.is_empty() {
        let others = words(&others).join(", ");
        text += &format!(": a request costs {:.1} µs of processor time; {others}", taken.own.us.median);
    }
    let largest = rows().filter(|row| row.model == taken.model).max_by_key(|row| row.connected);
    if let Some((row, each)) = largest.and_then(|row| Some((row, row.user_bytes_each?))) {
        text += &format!(
            "; {} idle connections take {:.1} MB of its memory",
            grouped(row.connected),
            each * row.connected as f64 / 1e6
        );
    }
    Some(text + ".")
}

/// Whether what it costs does not grow with the connections that are idle.
fn scales(model: &str) -> bool {
    !matches!(model.parse(), Ok(Model::Select | Model::Poll))
}

/// The table next to the summary: cost and rate of each model at each point; at most 100 columns wide for two points,
/// so that a point of which not every round had the server as its limit has only a mark.
#[must_use]
pub fn cells(table: &ResultTable) -> Cells {
    let mut levels: Vec<usize> = table.points.iter().map(|point| point.concurrency).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut head = vec!["model".to_owned(), "times".to_owned()];
    head.extend(levels.iter().map(|&level| format!("µs CPU, c={level}")));
    // Of a program of the user's nobody else measures the memory.
    let second = if table.program.is_some() { "peak MiB" } else { "/s" };
    head.extend(levels.iter().map(|&level| format!("{second}, c={level}")));
    let mut cells = vec![head];
    for cost in costs(table) {
        let at = |level: &usize| points(table, &cost.model).find(|point| point.concurrency == *level);
        let cell =
            |of: fn(&Point) -> String| levels.iter().map(move |level| at(level).map_or("–".into(), of));
        let times = match cost.interval {
            Some(i) if i.low < i.high => {
                format!("{} [{}–{}]", ratio_text(cost.times), ratio_text(i.low), ratio_text(i.high))
            }
            _ => ratio_text(cost.times),
        };
        let mut row = vec![cost.model.clone(), times];
        row.extend(cell(cost_us));
        row.extend(cell(if table.program.is_some() { peak } else { rate }));
        cells.push(row);
    }
    cells
}

/// Three figures, or all before the point.
fn ratio_text(times: f64) -> String {
    let digits = if times < 10.0 { 2 } else { usize::from(times < 100.0) };
    format!("{times:.digits$}")
}

fn verdicts(table: &ResultTable, model: &str) -> Vec<Verdict> {
    points(table, model).flat_map(|point| point.figures.verdicts.clone()).collect()
}

fn cost_us(point: &Point) -> String {
    let us = point.figures.cpu_s_per_100k.times(10.0);
    spread(&us, if us.median < 100.0 { 1 } else { 0 })
}

fn rate(point: &Point) -> String {
    verdict::marked(grouped(point.figures.per_processor_s.median.round() as u64), &point.figures.verdicts)
}

fn peak(point: &Point) -> String {
    let peak = point.figures.peak_bytes.as_ref();
    let peak = peak.map_or("–".into(), |bytes| format!("{:.1}", bytes.median / f64::from(1 << 20)));
    verdict::marked(peak, &point.figures.verdicts)
}

/// The chart next to the summary: a bar for each model.
pub(super) fn chart(table: &ResultTable) -> Option<Chart> {
    let costs = costs(table);
    let title = "Server processor time for a request, in µs (less is better)".to_owned();
    let bar = |cost: Cost| (verdict::marked(cost.model.clone(), &verdicts(table, &cost.model)), cost.own.us);
    let bars: Vec<_> = costs.into_iter().map(bar).collect();
    let svg = svg::bars(&title, &bars, |_| true);
    (!bars.is_empty()).then(|| Chart { name: "answer".into(), title, svg, section: WHICH.into() })
}

#[cfg(test)]
mod tests {
    use tidegate_load::verdict::{Evidence, LimitedBy};

    use super::*;
    use crate::Bench;
    use crate::experiment::connections;
    use crate::experiment::round::Figures;

    fn point(model: &str, concurrency: usize, rounds: [f64; 4]) -> Point {
        let cost = Spread::of(rounds).unwrap();
        let rate = Spread::of(rounds.map(|cost| 1e5 / cost)).unwrap();
        let figures = Figures { cpu_s_per_100k: cost, per_processor_s: rate, ..Figures::default() };
        Point { model: model.into(), concurrency, share: 0.5, figures }
    }

    fn results(points: Vec<Point>) -> Results {
        let bench = Bench { program: "a".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let table = ResultTable { points, ..ResultTable::default() };
        Results { concurrency: Some(table), ..Results::new(&bench) }
    }

    const CHEAP: [f64; 4] = [0.60, 0.61, 0.60, 0.61];
    const SAME: [f64; 4] = [0.61, 0.60, 0.61, 0.60];
    const DEAR: [f64; 4] = [1.2, 1.21, 1.19, 1.2];

    #[test]
    fn the_cheapest_is_named_with_what_the_others_cost() {
        let all = vec![
            point("blocking", 100, DEAR.map(|c| c * 3.0)),
            point("tokio", 100, DEAR),
            point("epoll", 100, CHEAP),
            point("uring", 100, SAME),
        ];
        let text = sentence(&results(all)).unwrap();
        assert!(text.starts_with("Here take `epoll`: a request costs 6.0 µs"), "{text}");
        for part in ["`uring` the same within 2%", "`tokio` 2.0 times as much", "`blocking` 6.0 times"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(sentence(&results(Vec::new())), None);
    }

    #[test]
    fn what_slows_all_of_a_round_down_is_no_difference() {
        let moments = [1.0, 1.6, 1.1, 2.0];
        let slowed = |of: [f64; 4]| std::array::from_fn(|round| of[round] * moments[round]);
        let all =
            vec![point("epoll", 100, slowed(CHEAP)), point("tokio", 100, slowed(CHEAP.map(|c| c * 1.3)))];
        let found = costs(results(all).concurrency.as_ref().unwrap());
        assert!((found[1].times - 1.3).abs() < 0.01, "{}", found[1].times);
        let interval = found[1].interval.unwrap();
        assert!(interval.low > 1.25 && interval.high < 1.35, "{interval:?}");
    }

    #[test]
    fn rounds_are_compared_with_those_of_the_same_turn_where_others_failed() {
        let moments = [1.0, 2.0, 1.1, 1.6, 3.0, 1.2, 2.5, 1.4];
        let without = |failed: usize, cost: f64| {
            let turns: Vec<usize> = (0..moments.len()).filter(|&turn| turn != failed).collect();
            let costs = Spread::of(turns.iter().map(|&turn| cost * moments[turn])).unwrap();
            Figures { cpu_s_per_100k: costs, turns, ..Figures::default() }
        };
        let at = |model: &str, concurrency, figures| Point { figures, ..point(model, concurrency, CHEAP) };
        let all = vec![
            at("epoll", 100, without(1, 0.6)),
            at("epoll", 1_000, without(1, 0.6)),
            at("tokio", 100, without(4, 0.78)),
            at("tokio", 1_000, without(0, 0.78)),
        ];
        let found = costs(results(all).concurrency.as_ref().unwrap());
        assert!((found[1].times - 1.3).abs() < 1e-9, "{}", found[1].times);
        let interval = found[1].interval.unwrap();
        assert!(interval.low > 1.299 && interval.high < 1.301, "{interval:?}");
        assert_eq!(found[1].own.turns.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 5, 6, 7]);
    }

    #[test]
    fn a_point_has_a_mark_where_the_limit_was_not_always_the_server() {
        let mut results = results(vec![point("epoll", 100, CHEAP), point("tokio", 100, DEAR)]);
        let table = results.concurrency.as_mut().unwrap();
        let verdict = |limited_by| Verdict {
            limited_by,
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        };
        for point in &mut table.points {
            point.figures.verdicts = vec![verdict(LimitedBy::Server); 4];
        }
        assert!(!cells(table).concat().concat().contains('†'));
        table.points[1].figures.verdicts[2] = verdict(LimitedBy::Generator);
        let cells = cells(table);
        assert!(cells[2][3].ends_with(" †"), "{cells:?}");
        assert_eq!([1.234, 12.34, 123.4].map(ratio_text), ["1.23", "12.3", "123"]);
        assert!(!cells[1].concat().contains('†'), "{cells:?}");
        // In all three forms, with what it means.
        let charts = crate::report::charts::of(&results);
        let sections = crate::report::sections(&results);
        for (title, cells, about) in &sections {
            assert!(cells.iter().flatten().any(|cell| cell.ends_with(" †")), "{title}: {cells:?}");
            assert!(about.starts_with("†: not every round proves"), "{title}: {about}");
        }
        let pages = [
            crate::report::markdown::markdown(&results, &charts),
            crate::report::html::page(&results, &charts),
        ];
        for page in pages {
            assert!(page.contains(" †") && page.contains("†: not every round proves"), "{page}");
        }
        assert!(chart(results.concurrency.as_ref().unwrap()).unwrap().svg.contains("tokio †"));
    }

    #[test]
    fn the_points_of_a_chart_are_hollow_where_the_load_was_the_limit() {
        let at = |concurrency| point("epoll", concurrency, CHEAP);
        let mut results = results(vec![at(100), at(1_000)]);
        let table = results.concurrency.as_mut().unwrap();
        table.points[1].figures.verdicts = vec![Verdict {
            limited_by: LimitedBy::Generator,
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        }];
        let charts = crate::report::charts::of(&results);
        let hollow = |name: &str| {
            let chart = charts.iter().find(|chart| chart.name == name).unwrap();
            chart.svg.matches("class=\"h\"").count()
        };
        assert_eq!((hollow("responses"), hollow("cpu")), (2, 2), "one point, and one in the legend");
    }

    #[test]
    fn what_the_rounds_cannot_tell_apart_is_not_called_the_same() {
        let wide = [0.50, 0.80, 0.60, 0.75];
        let text = sentence(&results(vec![point("epoll", 100, CHEAP), point("uring", 100, wide)])).unwrap();
        assert!(text.ends_with("times) does not differ measurably."), "{text}");
    }

    /// Memory decides between equals only.
    #[test]
    fn of_models_that_may_differ_the_cheapest_is_taken() {
        let wide = [0.50, 0.80, 0.60, 0.75];
        let all = vec![point("epoll", 100, wide), point("poll", 100, wide), point("uring", 100, CHEAP)];
        let mut results = results(all);
        let row = |model: &str, bytes| connections::Row {
            model: model.into(),
            connected: 5_000,
            user_bytes_each: Some(bytes),
            ..connections::Row::default()
        };
        let rows = vec![row("epoll", 300.0), row("uring", 400.0)];
        results.connections = Some(connections::ResultTable { rows, ..connections::ResultTable::default() });
        let text = sentence(&results).unwrap();
        assert!(text.starts_with("Here take `uring`"), "{text}");
        assert!(
            text.contains("times), `poll` (") && text.contains("times) do not differ measurably"),
            "{text}"
        );
    }

    /// What looks at every connection is not taken by a guess.
    #[test]
    fn a_model_that_asks_for_idle_connections_has_to_be_cheaper_for_certain() {
        let wide = [0.50, 0.80, 0.60, 0.75];
        let beside =
            |cost| vec![point("select", 100, CHEAP), point("poll", 100, SAME), point("epoll", 100, cost)];
        let text = sentence(&results(beside(wide))).unwrap();
        assert!(text.starts_with("Here take `epoll`") && text.contains("`select` ("), "{text}");
        // Nor is it called the same where that may be wrong in the other direction.
        let times = [0.995, 1.1, 1.12, 1.08, 0.99, 1.15];
        let mut points = beside(CHEAP);
        points.retain(|point| point.model != "poll");
        for point in &mut points {
            let of_model = |times| if point.model == "epoll" { times } else { 1.0 };
            point.figures.cpu_s_per_100k = Spread::of(times.map(of_model)).unwrap();
        }
        let text = sentence(&results(points)).unwrap();
        assert!(text.starts_with("Here take `epoll`") && text.contains("not differ measurably"), "{text}");
        let text = sentence(&results(beside(DEAR))).unwrap();
        assert!(text.starts_with("Here take `select`") && text.contains("`epoll` 2.0 times"), "{text}");
    }

    #[test]
    fn a_difference_that_may_be_small_is_not_said_to_be_none() {
        let a_little = std::array::from_fn(|round| CHEAP[round] * [1.01, 1.08, 1.02, 1.07][round]);
        let text =
            sentence(&results(vec![point("epoll", 100, CHEAP), point("uring", 100, a_little)])).unwrap();
        assert!(text.contains("`uring` 1.01 to 1.08 times as much"), "{text}");
    }

    #[test]
    fn the_answer_is_taken_from_points_of_its_own_where_there_are_some() {
        let mut results = results(vec![point("epoll", 100, DEAR), point("tokio", 100, CHEAP)]);
        assert!(sentence(&results).unwrap().starts_with("Here take `tokio`"));
        let points = vec![point("epoll", 100, CHEAP), point("tokio", 100, DEAR)];
        results.answer = Some(ResultTable { points, ..ResultTable::default() });
        assert!(sentence(&results).unwrap().starts_with("Here take `epoll`"));
        assert_eq!(results.rows().len(), 4, "all are saved");
    }

    #[test]
    fn a_program_of_the_users_is_named_with_its_memory() {
        let mut results = results(vec![point("epoll", 100, CHEAP), point("tokio", 100, DEAR)]);
        let table = results.concurrency.as_mut().unwrap();
        table.program = Some("./mine".into());
        table.points[0].figures.peak_bytes = Spread::of([3.0 * f64::from(1 << 20)]);
        assert_eq!(cells(table)[0][3], "peak MiB, c=100");
        assert_eq!([&cells(table)[1][3], &cells(table)[2][3]], ["3.0", "–"]);
        assert!(
            sentence(&results).unwrap().starts_with("Here take `epoll` for `./mine`: a request costs 6.0 µs")
        );
    }

    #[test]
    fn of_those_that_cost_the_same_the_smaller_one_is_taken() {
        let mut results = results(vec![point("epoll", 100, CHEAP), point("uring", 100, SAME)]);
        let row = |model: &str, bytes| connections::Row {
            model: model.into(),
            connected: 5_000,
            user_bytes_each: Some(bytes),
            ..connections::Row::default()
        };
        let rows = vec![row("epoll", 900.0), row("uring", 400.0)];
        results.connections = Some(connections::ResultTable { rows, ..connections::ResultTable::default() });
        let text = sentence(&results).unwrap();
        assert!(
            text.starts_with("Here take `uring`") && text.contains("5,000 idle connections take 2.0 MB"),
            "{text}"
        );
        assert!(text.contains("`epoll` the same within 2%"), "not beside itself: {text}");
    }

    #[test]
    fn points_count_alike_and_rows_are_in_the_order_of_cost() {
        let all = vec![
            point("epoll", 100, CHEAP),
            point("epoll", 1_000, CHEAP.map(|c| c * 4.0)),
            point("tokio", 100, CHEAP.map(|c| c * 0.5)),
            point("tokio", 1_000, CHEAP.map(|c| c * 6.0)),
            point("poll", 100, CHEAP),
        ];
        let results = results(all);
        let table = results.concurrency.as_ref().unwrap();
        let found = costs(table);
        let names: Vec<&str> = found.iter().map(|cost| cost.model.as_str()).collect();
        assert_eq!(names, ["tokio", "epoll"], "poll lacks a point");
        assert!((found[1].times - 2.0 / 3f64.sqrt()).abs() < 0.02, "{}", found[1].times);
        let cells = cells(table);
        assert_eq!(cells.len(), 3);
        assert!(cells.iter().all(|row| row.len() == cells[0].len()), "{cells:?}");
        assert!(chart(table).unwrap().svg.contains("tokio"));
    }
}
