//! A self-contained HTML page: no network, no script.

use super::cells::{Cells, NOT_MEASURED};
use super::chart::Chart;
use super::sections::{left_out_together, sections};
use super::svg::escape;
use super::{Results, answer, verdict};

const STYLE: &str = ":root{color-scheme:light dark;--line:#8884;--soft:#8882;--edge:#0003;--page:#fff;--ink:#1b1f24}\
@media (prefers-color-scheme:dark){:root{--edge:#fff4;--page:#14171a;--ink:#e4e7ea}}\
*{box-sizing:border-box}body{font:16px/1.5 system-ui,sans-serif;max-width:80rem;margin:0 auto;padding:1rem;background:var(--page);color:var(--ink)}\
h1{margin:0 0 .5rem;font-size:1.7rem}h2{margin:2.2rem 0 .6rem;font-size:1.25rem;line-height:1.3}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;font-size:.9rem;margin:0 0 1rem}dt{opacity:.7}dd{margin:0;overflow-wrap:anywhere}\
nav{font-size:.9rem;line-height:1.9}nav a{margin-right:1rem;display:inline-block}a{color:inherit}code{white-space:nowrap}\
.scroll{overflow-x:auto;background:linear-gradient(90deg,var(--page) 1.5rem,#0000) 0 0/3rem 100% no-repeat local,\
linear-gradient(270deg,var(--page) 1.5rem,#0000) 100% 0/3rem 100% no-repeat local,\
linear-gradient(90deg,var(--edge),#0000) 0 0/.9rem 100% no-repeat,linear-gradient(270deg,var(--edge),#0000) 100% 0/.9rem 100% no-repeat}\
table{border-collapse:collapse;font-size:.85rem;white-space:nowrap;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid var(--line)}\
thead th{border-bottom:2px solid #888;vertical-align:bottom;white-space:normal;min-width:4rem}th.w,td.w{text-align:left}\
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}\
tbody tr:hover td{background:var(--soft)}p.about,li{font-size:.88rem;max-width:52rem}p.about{opacity:.8}p.answer{font-size:1.15rem}\
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,34rem),1fr));gap:1rem;margin-bottom:1rem}\
figure{margin:0;padding:.5rem;border:1px solid var(--line);border-radius:.4rem}figcaption{font-weight:600;font-size:.95rem;padding:.2rem .3rem}\
figure svg{display:block;width:100%;height:auto;margin-top:-1.2rem}figure svg .t{display:none}figure.answer{max-width:48rem;margin-bottom:1.2rem}\
@media (max-width:600px){figure svg{margin-top:0}body{padding:.7rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}h1{font-size:1.4rem}}\
@media print{.scroll{overflow:visible}table{font-size:.6rem}}";

/// The page.
pub(super) fn page(results: &Results, charts: &[Chart]) -> String {
    let sections = sections(results);
    let mut body = format!("<h1>tidegate on this machine</h1>\n{}", answer(results, charts));
    body += &format!("{}{}", machine(results), limits(results));
    body += &contents(&sections);
    for (i, (title, cells, about)) in sections.iter().enumerate() {
        body += &format!(
            "<h2 id=\"s{i}\">{}</h2>\n{}<p class=\"about\">{}</p>\n{}",
            escape(title),
            table(cells),
            prose(about),
            figures(charts, title)
        );
    }
    body += &list("Remarks", results.remarks().iter().map(|r| prose(r)));
    let names = |models: &[&str]| models.iter().map(|name| escape(name)).collect::<Vec<_>>().join(", ");
    let left_out = left_out_together(results);
    let lines =
        left_out.iter().map(|(models, why)| format!("<code>{}</code>: {}", names(models), prose(why)));
    body += &list("Left out", lines);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>tidegate on this machine</title>\n<style>{STYLE}</style>\n{body}</html>\n"
    )
}

/// The summary and the chart at the top of the page.
fn answer(results: &Results, charts: &[Chart]) -> String {
    let Some(sentence) = answer::sentence(results) else { return String::new() };
    let chart = charts.iter().find(|chart| chart.name == "answer");
    let chart = chart.map(|chart| figure("answer", chart)).unwrap_or_default();
    format!("<p class=\"answer\">{}</p>\n{chart}", prose(&sentence))
}

/// A sentence, with what is between backticks and the names of options as code, which no end of a line breaks.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(i, part)| match i % 2 {
        1 => format!("<code>{}</code>", escape(part)),
        _ => part.split(' ').map(word).collect::<Vec<_>>().join(" "),
    });
    parts.collect()
}

fn word(word: &str) -> String {
    let name = word.trim_end_matches([',', '.', ';', ':', ')']);
    match name.strip_prefix("--") {
        Some(option) if !option.is_empty() => {
            format!("<code>{}</code>{}", escape(name), escape(&word[name.len()..]))
        }
        _ => escape(word),
    }
}

/// The charts of a section.
fn figures(charts: &[Chart], section: &str) -> String {
    let of_section = charts.iter().filter(|chart| chart.section == section && chart.name != "answer");
    let figures = of_section.map(|chart| figure("", chart)).collect::<String>();
    if figures.is_empty() { figures } else { format!("<div class=\"charts\">\n{figures}</div>\n") }
}

/// A chart below its title.
fn figure(class: &str, chart: &Chart) -> String {
    let title = escape(&chart.title);
    format!("<figure class=\"{class}\"><figcaption>{title}</figcaption>{}</figure>\n", chart.svg)
}

/// The machine and the method.
fn machine(results: &Results) -> String {
    let c = &results.circumstances;
    let command: Vec<&str> = c.command.iter().map(String::as_str).collect();
    let pinning = if c.pinned_apart {
        "a processor each"
    } else {
        "one processor for both: figures are for both together"
    };
    let activity = results.activity().map(|activity| ("meanwhile", activity));
    let facts = [
        ("machine", c.machine.line()),
        ("program", c.build.line()),
        ("measured", c.date.clone()),
        ("command", command.join(" ")),
        ("server and load", format!("separate processes, {pinning}")),
    ];
    let facts = facts
        .iter()
        .chain(&activity)
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(value)));
    format!("<dl>\n{}</dl>\n", facts.collect::<String>())
}

/// The verdict of the whole run.
fn limits(results: &Results) -> String {
    let rows = results.rows();
    let Some(summary) = verdict::summary(&rows) else { return String::new() };
    let doubts = verdict::doubts(&rows);
    let items = doubts.iter().map(|d| format!("<li>{}</li>\n", prose(&d.line()))).collect::<String>();
    format!("<h2>Who was the limit</h2>\n<p class=\"about\">{summary}</p>\n<ul>{items}</ul>\n")
}

fn contents(sections: &[(String, Cells, String)]) -> String {
    let entry = |(i, (title, ..)): (usize, &(String, Cells, String))| {
        format!("<a href=\"#s{i}\">{}</a> ", escape(title))
    };
    let links = sections.iter().enumerate().map(entry).collect::<String>();
    format!("<nav>{links}</nav>\n")
}

fn table(cells: &Cells) -> String {
    let row = |row: &Vec<String>, tag: &str, text: fn(&str) -> String| {
        let class = |column| if is_of_words(cells, column) { " class=\"w\"" } else { "" };
        let cell = |(i, c): (usize, &String)| format!("<{tag}{}>{}</{tag}>", class(i), text(c));
        format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
    };
    let mut rows = cells.iter();
    let head = rows.next().map(|head| row(head, "th", name_of_column)).unwrap_or_default();
    let rest = rows.map(|r| row(r, "td", escape)).collect::<String>();
    format!("<div class=\"scroll\"><table><thead>{head}</thead><tbody>\n{rest}</tbody></table></div>\n")
}

/// Whether a column has words, which are read from the left, and not figures.
fn is_of_words(cells: &Cells, column: usize) -> bool {
    let is_word = |cell: &String| cell.starts_with(char::is_alphabetic) && cell != NOT_MEASURED;
    cells.iter().skip(1).any(|row| row.get(column).is_some_and(is_word))
}

/// Long names may be broken after a slash.
fn name_of_column(name: &str) -> String {
    let word = |word: &str| match word.matches('/').count() {
        0 | 1 => escape(word),
        _ => escape(word).replace('/', "/<wbr>"),
    };
    name.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn list(title: &str, items: impl ExactSizeIterator<Item = String>) -> String {
    if items.len() == 0 {
        return String::new();
    }
    format!(
        "<h2>{title}</h2>\n<ul>{}</ul>\n",
        items.map(|item| format!("<li>{item}</li>\n")).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_names_are_code_and_nothing_else_is() {
        assert_eq!(
            prose("raise -c (or `load merge`), with --cpus, a -- b <c>"),
            "raise -c (or <code>load merge</code>), with <code>--cpus</code>, a -- b &lt;c&gt;"
        );
    }

    #[test]
    fn words_are_read_from_the_left_and_figures_from_the_right() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let cells = vec![
            row(["model", "wait", "a/b/c d/s"]),
            row(["epoll", "block", "1/2/3"]),
            row(["uring", "1 ms", "not measured"]),
            row(["tokio", "spin", "4/5/6"]),
        ];
        let html = table(&cells);
        assert!(html.contains("<th class=\"w\">wait</th><th>a/<wbr>b/<wbr>c d/s</th>"), "{html}");
        assert!(html.contains("<td class=\"w\">1 ms</td><td>not measured</td>"), "{html}");
    }

    #[test]
    fn a_chart_is_below_the_table_it_belongs_to() {
        let chart = |name: &str, section: &str| Chart {
            name: name.into(),
            title: name.into(),
            svg: "<svg/>".into(),
            section: section.into(),
        };
        let charts = [chart("answer", "s"), chart("a", "s"), chart("b", "t")];
        let html = figures(&charts, "s");
        assert!(html.contains(">a<") && !html.contains(">b<") && !html.contains(">answer<"), "{html}");
        assert_eq!(figures(&charts, "u"), "");
    }
}
