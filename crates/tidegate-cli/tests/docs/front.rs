//! The front page: short, and its code is compiled.

use super::pages::Page;

/// Lines of the front page, at most.
pub const LINES: usize = 90;

fn page(path: &str) -> Page {
    Page::all().into_iter().find(|page| page.path == path).expect(path)
}

/// Lines of code on one page that are not on the other, where they are compiled.
fn not_compiled(shown: &Page, compiled: &Page) -> Vec<String> {
    let rust = |page: &Page| -> Vec<String> {
        let blocks = page.blocks.iter().filter(|(kind, _)| kind.starts_with("rust"));
        blocks.flat_map(|(_, text)| text.lines().map(|line| line.trim().to_owned())).collect()
    };
    let (shown, compiled) = (rust(shown), rust(compiled));
    assert!(shown.len() > 10, "there is no code");
    shown.into_iter().filter(|line| !compiled.contains(line)).collect()
}

#[test]
fn it_is_one_screen_and_a_half() {
    let lines = page("README.md").text.lines().count();
    assert!(lines <= LINES, "{lines} lines, of at most {LINES}");
}

#[test]
fn its_code_is_compiled() {
    // All of this page is a test of the documentation of the library.
    let library = page("crates/tidegate/README.md");
    super::none("lines are compiled nowhere", not_compiled(&page("README.md"), &library));
    assert!(library.blocks.iter().all(|(kind, _)| !kind.contains("ignore")), "its code is not compiled");
    let crate_page =
        std::fs::read_to_string(super::pages::root().join("crates/tidegate/src/lib.rs")).unwrap();
    assert!(crate_page.contains("include_str!(\"../README.md\")"), "the page is not tested");
}

#[test]
fn code_that_nothing_compiles_is_found() {
    let of = |code: &str| Page::of("docs/made-up.md", &format!("```rust\n{code}\n```\n"));
    let lines = (0..12).map(|n| format!("let a = {n};")).collect::<Vec<_>>().join("\n");
    assert_eq!(
        not_compiled(&of(&lines), &of(&format!("fn main() {{\n    {lines}\n}}"))),
        Vec::<String>::new()
    );
    assert_eq!(not_compiled(&of(&lines.replace('7', "x")), &of(&lines)), ["let a = x;"]);
}
