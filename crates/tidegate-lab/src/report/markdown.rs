//! The report in Markdown.

use super::cells::markdown_table;
use super::chart::Chart;
use super::sections::{left_out_together, sections};
use super::{Results, answer, verdict};

/// The whole report; the charts are files beside it.
pub(super) fn markdown(results: &Results, charts: &[Chart]) -> String {
    let answer = answer::sentence(results).map_or(String::new(), |answer| format!("**{answer}**\n\n"));
    let mut text = format!("# tidegate on this machine\n\n{answer}{}\n", results.method());
    for (title, cells, about) in sections(results) {
        text += &format!("\n## {title}\n\n{}\n{about}\n", markdown_table(&cells));
        let charts = charts.iter().filter(|chart| chart.section == title);
        text +=
            &charts.map(|chart| format!("\n![{}]({}.svg)\n", chart.title, chart.name)).collect::<String>();
    }
    let rows = results.rows();
    if let Some(summary) = verdict::summary(&rows) {
        text += &format!("\n## Who was the limit\n\n{summary}\n\n");
        text += &verdict::doubts(&rows).iter().map(|d| format!("- {}\n", d.line())).collect::<String>();
    }
    let remarks = results.remarks();
    if !remarks.is_empty() {
        text += "\n## Remarks\n\n";
        text += &remarks.iter().map(|r| format!("- {r}\n")).collect::<String>();
    }
    let reasons = left_out_together(results);
    if !reasons.is_empty() {
        text += "\n## Left out\n\n";
        let line = |(models, why): &(Vec<&str>, &str)| format!("- `{}`: {why}\n", models.join("`, `"));
        text += &reasons.iter().map(line).collect::<String>();
    }
    text
}
