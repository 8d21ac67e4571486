//! A directory listing as HTML.

use std::io;

use tidegate::system::file::Folder;

use super::path::escaped;
use crate::text::is_control;

/// Maximum entries of a listing.
const MOST: usize = 10_000;

/// The page of a directory: directories first, hidden entries omitted.
pub(super) fn page(folder: &Folder, name: &str) -> io::Result<String> {
    let mut listed = folder.list(name, MOST)?;
    listed.retain(|one| !one.name.starts_with('.'));
    listed.sort_by(|a, b| (!a.is_folder, &a.name).cmp(&(!b.is_folder, &b.name)));
    let title = html(&format!("/{name}"));
    let up = if name.is_empty() { "" } else { "<li><a href=\"../\">../</a>\n" };
    let lines: String = listed
        .iter()
        .map(|one| {
            let slash = if one.is_folder { "/" } else { "" };
            if one.name.contains(char::is_control) {
                return format!("<li>{}{slash}\n", html(&one.name)); // no target has these (`path`)
            }
            // With `./` in front, so that a colon in a name is not parsed as a scheme.
            format!("<li><a href=\"./{}{slash}\">{}{slash}</a>\n", escaped(&one.name), html(&one.name))
        })
        .collect();
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n<h1>{title}</h1>\n<ul>\n{up}{lines}</ul>\n"
    ))
}

/// Escapes text for HTML.
fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters are removed, and bidirectional controls must not affect the surrounding text.
            c if is_control(c) => safe.push(char::REPLACEMENT_CHARACTER),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(all(test, unix))] // Windows has no such names
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_page() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["<script>", "\"&'", "javascript:x", ".hidden", "b", "esc\u{1b}[31m\n\u{85}", "gpj.\u{202e}exe"]
        {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let page = page(&Folder::open(Path::new(folder.path())).unwrap(), "").unwrap();
        assert!(page.contains("<a href=\"./%3Cscript%3E\">&lt;script&gt;</a>"), "{page}");
        assert!(page.contains("<a href=\"./%22%26%27\">&quot;&amp;&#39;</a>"), "{page}");
        assert!(page.contains("<a href=\"./javascript%3Ax\">"), "{page}");
        assert!(page.contains("<li>esc\u{fffd}[31m\u{fffd}\u{fffd}\n"), "{page}");
        assert!(page.contains(">gpj.\u{fffd}exe</a>"), "{page}");
        assert!(!page.contains("hidden") && !page.contains("../"), "{page}");
        assert!(page.find("sub/").unwrap() < page.find(">b<").unwrap(), "folders come first: {page}");
    }
}
