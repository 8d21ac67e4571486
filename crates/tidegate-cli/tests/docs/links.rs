//! Where links lead.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::pages::{Page, root};

/// Links of a page that lead to no file of the repository, or to no heading of a page.
pub fn dead(page: &Page) -> Vec<String> {
    let is_dead = |link: &&String| !is_external(link) && !leads_somewhere(page, link);
    page.links.iter().filter(is_dead).map(|link| format!("{}: {link}", page.path)).collect()
}

fn is_external(link: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

fn leads_somewhere(page: &Page, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let at = if file.is_empty() { page.path.clone() } else { beside(&page.path, file) };
    let found = if at == page.path { Some(None) } else { root().join(&at).exists().then_some(Some(&at)) };
    match (found, anchor) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(None), Some(anchor)) => page.anchors().iter().any(|name| name == anchor),
        (Some(Some(other)), Some(anchor)) => {
            let text = std::fs::read_to_string(root().join(other)).unwrap_or_default();
            Page::of(other, &text.replace("\r\n", "\n")).anchors().iter().any(|name| name == anchor)
        }
    }
}

/// `file`, seen from the page at `path`.
pub fn beside(path: &str, file: &str) -> String {
    let mut at = PathBuf::new();
    for part in Path::new(path).parent().unwrap_or(Path::new("")).join(file).components() {
        match part {
            Component::ParentDir => drop(at.pop()),
            Component::CurDir => {}
            part => at.push(part),
        }
    }
    at.to_str().unwrap().replace('\\', "/")
}

/// Pages of docs and benchmarks that the summary leaves out or names twice. mdBook itself refuses names without a page.
pub fn summary_faults() -> Vec<String> {
    let pages = Page::all();
    let summary = pages.iter().find(|page| page.path == "docs/SUMMARY.md").expect("docs/SUMMARY.md");
    let mut times: HashMap<String, usize> = HashMap::new();
    for link in summary.links.iter().filter(|link| !link.is_empty()) {
        *times.entry(beside(&summary.path, link)).or_default() += 1;
    }
    let in_book = |page: &&Page| ["docs/", "benchmarks/"].iter().any(|folder| page.path.starts_with(folder));
    let in_book = pages.iter().filter(in_book).filter(|page| page.path != summary.path);
    let faults = in_book.filter_map(|page| match times.get(&page.path).copied().unwrap_or(0) {
        1 => None,
        n => Some(format!("{} is named {n} times", page.path)),
    });
    faults.collect()
}
