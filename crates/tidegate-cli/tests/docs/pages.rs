//! The pages, and what of them is looked at.

use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Lines of prose are not longer.
const WIDTH: usize = 120;

/// A page and its parts.
pub struct Page {
    /// Relative to the root of the repository, with slashes.
    pub path: String,
    pub text: String,
    pub links: Vec<String>,
    pub headings: Vec<String>,
    /// Code in a line of prose.
    pub spans: Vec<String>,
    /// Fenced blocks: the word behind the fence, and the lines.
    pub blocks: Vec<(String, String)>,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

impl Page {
    /// All pages for readers; a link from one place to another is one page.
    pub fn all() -> Vec<Self> {
        let mut files = Vec::new();
        for name in [
            "README.md",
            "CONTRIBUTING.md",
            "ARCHITECTURE.md",
            "SECURITY.md",
            "CHANGELOG.md",
            "fuzz/README.md",
        ] {
            files.push(root().join(name));
        }
        for folder in ["docs", "benchmarks"] {
            collect(&root().join(folder), &mut files);
        }
        for entry in fs::read_dir(root().join("crates")).unwrap() {
            let readme = entry.unwrap().path().join("README.md");
            if readme.exists() && !readme.is_symlink() {
                files.push(readme);
            }
        }
        assert!(files.len() > 50, "only {} pages were found", files.len());
        files.iter().map(|file| Self::read(file)).collect()
    }

    fn read(file: &Path) -> Self {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
        Self::of(&path, &fs::read_to_string(file).unwrap().replace("\r\n", "\n"))
    }

    pub fn of(path: &str, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            links: Vec::new(),
            headings: Vec::new(),
            spans: Vec::new(),
            blocks: Vec::new(),
        };
        let mut heading: Option<String> = None;
        let mut block: Option<(String, String)> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.headings.extend(heading.take()),
                Event::Start(Tag::CodeBlock(kind)) => {
                    let word = match kind {
                        CodeBlockKind::Fenced(word) => word.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    block = Some((word, String::new()));
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Text(text) => match (&mut block, &mut heading) {
                    (Some((_, lines)), _) => lines.push_str(&text),
                    (None, Some(heading)) => heading.push_str(&text),
                    (None, None) => {}
                },
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.spans.push(code.to_string());
                }
                _ => {}
            }
        }
        page
    }

    /// The names of its headings in links, as mdBook and GitHub make them.
    pub fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for heading in &self.headings {
            let kept = heading.chars().filter_map(|c| match c {
                c if c.is_alphanumeric() || c == '_' || c == '-' => {
                    Some(c.to_lowercase().collect::<String>())
                }
                c if c.is_whitespace() => Some("-".to_owned()),
                _ => None,
            });
            let plain: String = kept.collect();
            let numbered = |n: usize| if n == 0 { plain.clone() } else { format!("{plain}-{n}") };
            let free = (0..).map(numbered).find(|name| !anchors.contains(name));
            anchors.extend(free);
        }
        anchors
    }

    /// Its text outside of fenced blocks, in one line.
    pub fn prose(&self) -> String {
        let parts = self.text.split("\n```").enumerate().filter(|(at, _)| at % 2 == 0).map(|(_, text)| text);
        parts.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    }

    /// Lines of prose that could be broken and are too long. Tables, blocks of code and lines that are one link or one
    /// piece of code cannot.
    pub fn long_lines(&self) -> Vec<String> {
        let mut fenced = false;
        let mut long = Vec::new();
        for (number, line) in self.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            let is_long = !fenced && line.chars().count() > WIDTH && !line.trim_start().starts_with('|');
            if is_long && can_be_broken(line) {
                long.push(format!("{}:{}", self.path, number + 1));
            }
        }
        long
    }
}

/// Whether there is a space outside of code and links.
fn can_be_broken(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches(['-', '*']).trim_start();
    let (mut code, mut depth) = (false, 0_u32);
    line.chars().any(|c| {
        match c {
            '`' => code = !code,
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ' ' && !code && depth == 0
    })
}

/// All pages in a folder and those in it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|end| end == "md") {
            files.push(path);
        }
    }
}
