//! The tables of docs/policy.md and docs/udp.md, made from the tables of limits.

use std::fmt::Write as _;

use tidegate::Model;
use tidegate::policy::{Change, DatagramPolicy, Effect, Limit, Limited, Policy, Range, Unit};
use tidegate_services::layers::ProxyLimits;
use tidegate_services::websocket::WebSocketLimits;
use tidegate_services::{ChatLimits, FilesLimits, HttpLimits, UpstreamLimits};
use tidegate_tls::TlsLimits;

use super::{cell, check, with_part};

fn page_of<P: Limited>(page: &str) -> String {
    with_part(&with_part(page, "limits", &limits::<P>()), "models", &models::<P>())
}

#[test]
fn pages_say_what_the_tables_of_limits_say() {
    check("udp.md", page_of::<DatagramPolicy>);
    check("policy.md", |page| {
        let services = [
            ("requests", limits::<HttpLimits>()),
            ("files", limits::<FilesLimits>()),
            ("websocket", limits::<WebSocketLimits>()),
            ("chat", limits::<ChatLimits>()),
            ("proxy-protocol", limits::<ProxyLimits>()),
            ("upstreams", limits::<UpstreamLimits>()),
            ("tls", limits::<TlsLimits>()),
        ];
        services.iter().fold(page_of::<Policy>(page), |page, (part, made)| with_part(&page, part, made))
    });
}

fn option<P>(limit: &Limit<P>) -> String {
    match (limit.option, limit.unit) {
        (option, Unit::Switch) => format!("`--{option}`"),
        (option, Unit::Words(words)) => format!("`--{option} {}`", words.join("|")),
        (option, unit) => format!("`--{option} {}`", unit.placeholder()),
    }
}

fn default<P: Limited>(limit: &Limit<P>) -> String {
    match (limit.default_note, limit.unit) {
        (Some(note), _) => note.into(),
        (None, Unit::Switch) => "off".into(),
        (None, _) => limit.default_text(),
    }
}

fn limits<P: Limited>() -> String {
    let mut page = String::from(
        "| limit | option | default | range | what it bounds | what it costs | while running |\n|---|---|---|---|---|---|---|\n",
    );
    for limit in P::limits() {
        let change = match limit.change {
            Change::Live => "may change",
            Change::Fixed => "fixed",
            Change::WhileSet => "may change while set",
            other => unreachable!("{other:?}"),
        };
        let cells = [
            format!("`{}`", limit.name),
            option(limit),
            default(limit),
            if limit.range == Range::Any { "–".into() } else { limit.range.text(limit.unit) },
            limit.what.into(),
            limit.cost.into(),
            change.into(),
        ];
        let _ = writeln!(page, "| {} |", cells.map(|text| cell(&text)).join(" | "));
    }
    page
}

fn names(models: &[Model]) -> String {
    models.iter().map(|model| format!("`{model}`")).collect::<Vec<_>>().join(", ")
}

fn models<P: Limited>() -> String {
    let mut page = String::from("| limit | kept by | elsewhere |\n|---|---|---|\n");
    for limit in P::limits() {
        let kept: Vec<_> =
            Model::ALL.iter().copied().filter(|model| limit.on(*model) == Effect::Kept).collect();
        let elsewhere = limit.on.iter().filter_map(|(models, effect)| match effect {
            Effect::Kept => None,
            Effect::NoEffect(why) => Some(format!("no effect on {}: {why}", names(models))),
            Effect::Refused(remedy) => Some(format!("**refused** on {}: {remedy}", names(models))),
            other => unreachable!("{other:?}"),
        });
        let elsewhere = elsewhere.collect::<Vec<_>>().join("; ");
        if !elsewhere.is_empty() {
            let _ = writeln!(page, "| `{}` | {} | {} |", limit.name, names(&kept), cell(&elsewhere));
        }
    }
    page
}
