//! One page that needs nothing else: no network, no script.

use super::svg::escape;
use super::tables::{Cells, reasons, sections};
use super::{Chart, Results};

const STYLE: &str = ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem}\
h1{margin-bottom:0}.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;white-space:nowrap}\
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left}\
thead th{border-bottom:2px solid #888}p.about{font-size:.85rem;max-width:50rem;opacity:.8}svg{width:100%;height:auto;max-width:760px}";

/// The page.
pub(super) fn page(results: &Results, charts: &[Chart]) -> String {
    let mut body =
        format!("<h1>tidegate on this machine</h1>\n<p class=\"about\">{}</p>\n", escape(&results.method()));
    for (title, cells, about) in sections(results) {
        body += &format!(
            "<h2>{}</h2>\n{}<p class=\"about\">{}</p>\n",
            escape(&title),
            table(&cells),
            escape(&about)
        );
    }
    for chart in charts {
        body += &format!("<figure>{}</figure>\n", chart.svg);
    }
    body += &list("Remarks", results.remarks().iter().map(|r| escape(r)));
    let left_out = reasons(results);
    body += &list(
        "Left out",
        left_out.iter().map(|out| format!("<code>{}</code>: {}", escape(&out.model), escape(&out.why))),
    );
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>tidegate on this machine</title>\n<style>{STYLE}</style>\n{body}</html>\n"
    )
}

fn table(cells: &Cells) -> String {
    let row = |row: &Vec<String>, tag: &str| {
        let cells = row.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect::<String>();
        format!("<tr>{cells}</tr>\n")
    };
    let mut rows = cells.iter();
    let head = rows.next().map(|head| row(head, "th")).unwrap_or_default();
    let rest = rows.map(|r| row(r, "td")).collect::<String>();
    format!("<div class=\"scroll\"><table><thead>{head}</thead><tbody>\n{rest}</tbody></table></div>\n")
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
