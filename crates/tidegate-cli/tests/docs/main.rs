//! The documentation: its links resolve, its commands are accepted by the built binary, its options exist, its figures
//! are those of the measurements and of `--help`, its configuration files are understood, and what the tutorial says is
//! run.
//!
//! Names that look like a command or an option and are none are in [`commands::FOREIGN`].
//! Pages are about every system; the options of Linux are the most.
#![cfg(target_os = "linux")]

mod arrows;
mod commands;
mod diagrams;
mod figures;
mod filters;
mod front;
mod links;
mod names;
mod pages;
mod reference;
mod runner;
mod tables;
mod tutorial;
mod words;

use pages::Page;

/// Fails with all of `faults`, one a line.
fn none(what: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{} {what}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_link_resolves() {
    none("links lead nowhere", Page::all().iter().flat_map(links::dead).collect());
}

#[test]
fn every_page_is_in_the_summary_once() {
    none("faults of docs/SUMMARY.md", links::summary_faults());
}

#[test]
fn every_command_is_accepted() {
    none("commands are refused", commands::refused(&Page::all()));
}

#[test]
fn every_line_with_a_command_is_understood() {
    none("lines were not understood as commands", commands::not_understood(&Page::all()));
}

#[test]
fn every_option_exists() {
    none("options do not exist", commands::unknown_options(&Page::all()));
}

#[test]
fn every_configuration_file_is_understood() {
    none("files are refused", commands::refused_files(&Page::all()));
}

#[test]
fn no_line_of_prose_is_too_long() {
    none("lines have more than 120 characters", Page::all().iter().flat_map(Page::long_lines).collect());
}

#[test]
fn the_checks_find_what_they_are_for() {
    let page = Page::of(
        "docs/made-up.md",
        "# One\n\n[a](nowhere.md) [b](#two) [c](#one)\n\n`--no-such-option` `--listen`\n\n```\ntidegate serve \
         nothing\ntidegate load http URL --fail-iff x   # no\ntidegate serve echo --model MODEL\n```\n\n\
         ```toml\n[[server]]\nservice = \"echo\"\nlistenn = \"127.0.0.1:0\"\n```\n",
    );
    let pages = [page];
    assert_eq!(links::dead(&pages[0]).len(), 2);
    assert_eq!(commands::refused(&pages).len(), 2, "{:?}", commands::refused(&pages));
    let unknown = commands::unknown_options(&pages);
    assert!(unknown.len() == 1 && unknown[0].contains("--no-such-option"), "{unknown:?}");
    assert_eq!(commands::refused_files(&pages).len(), 1);
    let wide = Page::of("docs/made-up.md", &"word ".repeat(30));
    assert_eq!(wide.long_lines().len(), 1);
}

#[test]
fn every_figure_taken_from_a_measurement_is_there() {
    none("figures are on no page of measurements", Page::all().iter().flat_map(figures::unfounded).collect());
}

#[test]
fn every_default_is_that_of_the_command() {
    none("defaults are not those of --help", Page::all().iter().flat_map(figures::wrong_defaults).collect());
}

#[test]
fn every_filter_of_tests_names_one() {
    none("filters match no test", Page::all().iter().flat_map(filters::unmatched).collect());
}

#[test]
fn every_version_is_that_of_the_manifest() {
    none("versions are stale", Page::all().iter().flat_map(figures::wrong_versions).collect());
}

#[test]
fn samples_of_the_front_page_were_measured() {
    let pages = Page::all();
    let front = pages.iter().find(|page| page.path == "README.md").expect("README.md");
    none("lines were never printed", figures::unmeasured_samples(front));
}

#[test]
fn every_metric_on_a_page_is_published() {
    let pages = Page::all();
    let metrics = pages.iter().find(|page| page.path == "docs/metrics.md").expect("docs/metrics.md");
    none(
        "metrics do not exist",
        pages.iter().flat_map(|page| reference::unknown_metrics(page, metrics)).collect(),
    );
}

#[test]
fn values_of_options_have_the_names_of_the_command() {
    none("values are not those of --help", Page::all().iter().flat_map(reference::other_values).collect());
}

#[test]
fn pages_use_the_words_of_the_field() {
    none("names or phrases that were given up", Page::all().iter().flat_map(words::page_faults).collect());
}

#[test]
fn sources_use_the_words_of_the_field() {
    none("names or phrases that were given up", words::faults());
}

#[test]
fn no_two_folders_use_each_other() {
    none("circles of folders", arrows::faults());
}

#[test]
fn every_type_name_has_one_meaning() {
    none("type names are defined more than once", names::faults());
}
