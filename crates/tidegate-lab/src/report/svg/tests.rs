use super::*;

#[test]
fn a_chart_has_a_line_and_a_name_for_each_series() {
    let at = |v| Spread::of([v * 0.9, v, v * 1.1]).unwrap();
    let series = ["a<b", "c"].map(|name| Series {
        name: name.into(),
        points: vec![point(10.0, at(5.0)), point(1000.0, at(50.0))],
    });
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

fn one(value: f64) -> Spread {
    Spread::of([value]).unwrap()
}

fn point(x: f64, figure: Spread) -> ChartPoint {
    ChartPoint { x, figure, is_doubtful: false }
}

#[test]
fn one_run_has_no_spread() {
    let sheet = Sheet { title: "t", x_title: "x", y_title: "y", x: Scale::Log, y: Scale::Log };
    let of = |figure: Spread| {
        let series = [Series { name: "a".into(), points: vec![point(1.0, figure.clone())] }];
        (lines(&sheet, &series), bars("t", &[("a".into(), figure)], |_| true))
    };
    let has_bars =
        |(lines, bars): (String, String)| [lines.contains("stroke-opacity"), bars.contains("class=\"e\"")];
    assert_eq!(has_bars(of(one(5.0))), [false; 2]);
    assert_eq!(has_bars(of(Spread::of([5.0, 6.0]).unwrap())), [true; 2]);
}

#[test]
fn points_that_prove_nothing_are_hollow_and_explained() {
    let sheet = Sheet { title: "t", x_title: "x", y_title: "y", x: Scale::Log, y: Scale::Log };
    let mut series = [Series { name: "a".into(), points: vec![point(1.0, one(1.0)), point(9.0, one(2.0))] }];
    let proven = lines(&sheet, &series);
    assert!(!proven.contains("class=\"h\"") && !proven.contains(NOT_PROVEN), "{proven}");
    series[0].points[1].is_doubtful = true;
    let doubtful = lines(&sheet, &series);
    assert_eq!(doubtful.matches("class=\"h\"").count(), 2, "the point and its legend: {doubtful}");
    assert!(doubtful.contains(NOT_PROVEN), "{doubtful}");
    let of = |name: &str| bars("t", &[(name.into(), one(1.0)), ("b".into(), one(2.0))], |_| true);
    assert!(of("a †").contains(NOT_PROVEN) && !of("a").contains(NOT_PROVEN));
}

#[test]
fn a_line_on_top_of_another_is_dashed_here_and_at_its_name() {
    let of = |name: &str, value| Series {
        name: name.into(),
        points: vec![point(1.0, one(value)), point(9.0, one(value))],
    };
    let sheet = Sheet { title: "t", x_title: "x", y_title: "y", x: Scale::Log, y: Scale::Log };
    let dashes = |series: &[Series]| lines(&sheet, series).matches(DASHES).count();
    assert_eq!(dashes(&[of("a", 100.0), of("b", 100.0), of("c", 300.0)]), 2);
    assert_eq!(dashes(&[of("a", 100.0), of("b", 200.0), of("c", 300.0)]), 0);
}

#[test]
fn names_are_beside_their_lines_and_do_not_touch() {
    let sheet = Sheet { title: "t", x_title: "x", y_title: "y", x: Scale::Log, y: Scale::Log };
    let named = |name: &str, value| Series {
        name: name.into(),
        points: vec![point(1.0, one(1.0)), point(9.0, one(value))],
    };
    let series = [named("epoll", 100.0), named("uring", 100.5), named("blocking", 600.0)];
    let svg = lines(&sheet, &series);
    let place = |name: &str| {
        let line = svg.lines().find(|line| line.ends_with(&format!(">{name}</text>"))).expect("a name");
        let y = line.split("y=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("its place");
        y.parse::<f64>().expect("a number")
    };
    let (epoll, uring, blocking) = (place("epoll"), place("uring"), place("blocking"));
    assert!(epoll - uring >= NAME - 0.2 && uring - blocking >= NAME, "{epoll} {uring} {blocking}");
    assert!(svg.contains(&format!("0 0 {WIDTH} {HEIGHT}")), "no legend: {svg}");
    let long = lines(&sheet, &[named("a name that would leave no room to the lines", 2.0)]);
    assert!(!long.contains(&format!("0 0 {WIDTH} {HEIGHT}")), "a legend: {long}");
}

#[test]
fn names_move_apart_no_further_than_they_must() {
    assert_eq!(apart(&[10.0, 100.0], 20.0, 0.0, 200.0), [10.0, 100.0]);
    assert_eq!(apart(&[50.0, 50.0, 150.0], 20.0, 0.0, 200.0), [40.0, 60.0, 150.0]);
    assert_eq!(apart(&[0.0, 0.0], 20.0, 0.0, 200.0), [0.0, 20.0]);
    assert_eq!(apart(&[195.0, 199.0], 20.0, 0.0, 200.0), [180.0, 200.0]);
    assert!(apart(&[], 20.0, 0.0, 200.0).is_empty());
}

#[test]
fn one_bar_far_longer_than_the_others_is_broken_and_leaves_them_their_length() {
    let rows = |most: f64| [13.0, 14.0, 37.0, most].map(|v| (v.to_string(), one(v)));
    let svg = bars("t", &rows(100_417.56), |_| true);
    assert_eq!((svg.matches("<rect").count(), svg.matches("<path").count()), (3, 1), "{svg}");
    assert!(svg.contains(">100,418<"), "{svg}");
    assert_eq!(longest([13.0, 14.0, 37.0, 1e5].map(one).iter()), 37.0 * 1.5);
    assert!(!bars("t", &rows(200.0), |_| true).contains("<path"), "a ratio of 14 can be seen");
}

#[test]
fn bars_begin_after_the_longest_name() {
    assert_eq!(room(["blocking", "both 0"].into_iter()), 124.0);
    assert!(room(["SO_RCVBUF 128 KiB"].into_iter()) > 240.0, "at 22 pixels a letter is 13 wide");
}

#[test]
fn a_logarithmic_axis_ends_near_its_figures() {
    let ticks = |low, high| Axis::vertical(Scale::Log, low, high).ticks();
    assert_eq!(ticks(15.6, 217.0), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
    assert_eq!(ticks(3.0, 30_000.0), [10.0, 100.0, 1e3, 1e4]);
    assert_eq!(ticks(20.0, 20.0), [20.0, 50.0]);
    assert_eq!(ticks(1e5, 1e5), [1e5, 2e5]);
}

#[test]
fn a_linear_axis_has_no_tick_beyond_its_end() {
    let across = |high| Axis::horizontal(Scale::Linear, 0.0, high, 700.0).ticks();
    assert_eq!(across(5.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(across(7.0), [0.0, 2.0, 4.0, 6.0]);
    assert_eq!(Axis::vertical(Scale::Linear, 0.0, 6.003).ticks(), [0.0, 2.0, 4.0, 6.0], "it ends at 7");
}

/// The text of an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    tag.split_once(&format!(" {name}=\""))?.1.split('"').next()
}

fn numbers(text: &str) -> Vec<f64> {
    text.split([' ', ',']).map(|part| part.parse().expect("a number")).collect()
}

/// Where a path of these charts goes: their letters are capital, so that all of it is from the corner of the sheet.
fn path(text: &str) -> [Vec<f64>; 2] {
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    let begins: Vec<usize> = text.match_indices(['M', 'L', 'H', 'V', 'Z']).map(|(at, _)| at).collect();
    let ends = begins.iter().skip(1).copied().chain([text.len()]);
    for (begin, end) in begins.iter().copied().zip(ends) {
        let (command, rest) = text[begin..end].split_at(1);
        match (command, rest.is_empty()) {
            ("Z", true) => {}
            ("H", _) => xs.extend(numbers(rest)),
            ("V", _) => ys.extend(numbers(rest)),
            _ => {
                let [x, y] = numbers(rest)[..] else { panic!("{command} in {text}") };
                xs.push(x);
                ys.push(y);
            }
        }
    }
    [xs, ys]
}

/// How far a tag goes, across and down.
fn extent(tag: &str) -> [Vec<f64>; 2] {
    let of = |name: &str| attribute(tag, name).map_or(Vec::new(), numbers);
    let each = |names: &[&str]| names.iter().flat_map(|name| of(name)).collect::<Vec<f64>>();
    let one = |name: &str| of(name)[0];
    match tag.split([' ', '>']).next() {
        Some("line") => [each(&["x1", "x2"]), each(&["y1", "y2"])],
        Some("circle") => {
            let r = one("r");
            [one("cx"), one("cy")].map(|middle| vec![middle - r, middle + r])
        }
        Some("rect") => {
            [("x", "width"), ("y", "height")].map(|(from, size)| vec![one(from), one(from) + one(size)])
        }
        Some("polyline") => {
            let all = of("points");
            [0, 1].map(|from| all.iter().skip(from).step_by(2).copied().collect())
        }
        Some("path") => path(attribute(tag, "d").expect("a path")),
        Some("text") => match attribute(tag, "transform") {
            None => [each(&["x"]), each(&["y"])],
            Some(moved) => {
                let to = moved.strip_prefix("translate(").and_then(|rest| rest.split(')').next());
                let [x, y] = numbers(to.expect("a place"))[..] else { panic!("{moved}") };
                [vec![x], vec![y]]
            }
        },
        name => panic!("{name:?} is nothing that a chart is drawn of"),
    }
}

/// Looks at everything that is drawn.
fn assert_inside(svg: &str) {
    let view = numbers(attribute(svg, "viewBox").expect("a view box"));
    let drawn = svg.lines().flat_map(|line| line.split('<').skip(1));
    let is_drawn = |tag: &&str| !["/", "svg", "style"].iter().any(|other| tag.starts_with(other));
    for tag in drawn.filter(is_drawn) {
        let places = extent(tag);
        for (places, most) in places.iter().zip(&view[2..]) {
            assert!(
                !places.is_empty() && places.iter().all(|at| (0.0..=*most).contains(at)),
                "{tag} in {svg}"
            );
        }
    }
}

/// From what is as good as nothing to what no machine does, alone and with intervals over all of that.
fn extremes() -> Vec<Spread> {
    let figures = (-12..=12).flat_map(|power| [1.0, 1.9995, 2.0, 5.0].map(|part| part * 10f64.powi(power)));
    let wide = [
        &[0.0, 1.0, 1e12][..],
        &[1e-12, 1e-12, 1e12],
        &[1e-12, 1e12, 1e12],
        &[5.0, 5.0, 5.0, 5.0, 1e9],
        &[0.0, 0.0, 0.0, 0.0, 0.0],
    ];
    let wide = wide.into_iter().map(|rounds| Spread::of(rounds.iter().copied()).unwrap());
    figures.chain([0.0]).map(one).chain(wide).collect()
}

#[test]
fn everything_on_a_sheet_of_lines_is_inside_of_it() {
    let extremes = extremes();
    let scales = [Scale::Linear, Scale::Log, Scale::Percentile];
    let places = [&[0.0][..], &[1.0], &[1e-12, 1.0], &[7.0, 1.0], &[1.0, 1e12], &[2.0, 100.0, MAXIMUM]];
    for (x, y) in scales.into_iter().flat_map(|x| [(x, Scale::Linear), (x, Scale::Log)]) {
        let sheet = Sheet { title: "t", x_title: "x", y_title: "y", x, y };
        for (places, figure) in places.iter().flat_map(|at| extremes.iter().map(move |f| (at, f))) {
            let line = |name: &str, figure: &Spread| Series {
                name: name.into(),
                points: places.iter().map(|&x| point(x, figure.clone())).collect(),
            };
            assert_inside(&lines(&sheet, &[line("a", figure)]));
            // Beside one of the usual size; names in a legend, and points that are larger.
            let long = "a name that would leave no room to the lines";
            let mut both = [line(long, figure), line("b", &one(50.0))];
            both[0].points[0].is_doubtful = true;
            assert_inside(&lines(&sheet, &both));
        }
    }
}

#[test]
fn every_bar_is_inside_of_its_sheet() {
    let long = "the name of a server that is longer than all others";
    for figure in extremes() {
        let row = |name: &str, figure: &Spread| (name.to_owned(), figure.clone());
        assert_inside(&bars("t", &[row("a", &figure)], |_| true));
        let beside = [row("a †", &figure), row(long, &one(50.0)), row("c", &one(60.0))];
        assert_inside(&bars("t", &beside, |_| false));
    }
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
