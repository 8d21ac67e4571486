//! The words of the sources: no type or module has a name that was given up, and no text has a phrase that was.

use std::path::{Path, PathBuf};

use super::pages::Page;

/// Names of types that were given up, and what to say instead.
const TYPES: &[(&str, &str)] = &[
    ("House", "ConnectionRegistry"),
    ("Seat", "RegistrySlot or ConnectionPermits"),
    ("Post", "Inbox"),
    ("PostState", "InboxState"),
    ("PostOffice", "MailSink"),
    ("Clerk", "control thread, or a responder"),
    ("Desk", "LoopState, AgentState or BridgeState"),
    ("Rounds", "LoopDriver"),
    ("Lane", "WorkerContext, RingMemory, DocumentCache or RoomOrder"),
    ("Started", "EngineHandle"),
    ("Gate", "CommandQueue or StartSignal"),
    ("Halt", "StopSignal"),
    ("Bell", "Notify or Waker"),
    ("Crew", "BlockingPool or RunState"),
    ("Shop", "BlockingPool, or what is shared"),
    ("Lot", "IdleSet"),
    ("Held", "PooledConnection, ProcessUsage or PendingBatch"),
    ("Windows", "Permits"),
    ("Window", "FairSemaphore or Measurement"),
    ("Place", "PermitState, Membership or Resource"),
    ("Seats", "ConnectionPermits"),
    ("Port", "CompletionDriver or PortSharing"),
    ("Wire", "Transport or TestConnection"),
    ("Line", "Transport, or what the line is about"),
    ("Door", "Acceptor"),
    ("Ways", "Transports"),
    ("Meeting", "Rendezvous"),
    ("Offer", "Handshake or AgentInfo"),
    ("Turn", "Progress, or the step it names"),
    ("Then", "NextStep"),
    ("Waits", "OverlappedNotifier"),
    ("Wishes", "SessionState"),
    ("Awaits", "Activity"),
    ("Draft", "LayerBuffer"),
    ("Grain", "Resolution"),
    ("Conductor", "Runner"),
    ("Ledger", "Recorder"),
    ("Tally", "ThreadStats"),
    ("Certificate", "Verdict: a certificate is what TLS has"),
    ("Hatch", "EchoPeer"),
    ("Estate", "HandoverState"),
    ("Span", "Federation"),
    ("Far", "RemoteRoom or RemoteEnd"),
    ("Hall", "RoomRegistry"),
];

/// Names of modules that were given up, and what to say instead.
const MODULES: &[(&str, &str)] = &[
    ("house", "registry"),
    ("staff", "acceptor"),
    ("clerk", "control"),
    ("desk", "loop_state or state"),
    ("rounds", "loop_driver"),
    ("lane", "worker or order"),
    ("gate", "command_queue or start_signal"),
    ("bell", "waker"),
    ("crew", "blocking_pool or run_state"),
    ("lot", "idle_set"),
    ("fit", "support"),
    ("door", "acceptor or enter"),
    ("meeting", "rendezvous or abstract_socket"),
    ("offer", "handshake"),
    ("stale", "timeouts"),
    ("siege", "survival"),
    ("crowds", "connections"),
    ("trips", "latency"),
    ("muster", "registration"),
    ("span", "federation"),
    ("far", "remote"),
    ("hall", "registry"),
    ("floor", "baseline"),
    ("conductor", "runner"),
    ("ledger", "recorder"),
    ("tally", "thread_stats"),
    ("certificate", "verdict"),
    ("core", "proto: core is a crate of Rust"),
];

/// Phrases that were given up, and what to say instead. They count in texts, and in the `--help` of the program.
const PHRASES: &[(&str, &str)] = &[
    ("can not", "cannot"),
    ("is told", "an active verb: receives, is notified"),
    ("are told", "an active verb: receive, are notified"),
    ("was told", "an active verb: received, was asked"),
    ("stands", "is established, is at"),
    ("stood", "was established, remained"),
    ("has leave", "may"),
    ("have leave", "may"),
    ("whoever", "the peer, the client, the caller"),
    ("of its own", "separate, dedicated, its own …"),
    ("of their own", "separate, dedicated, their own …"),
    ("of one's own", "your own …"),
    ("says so", "an active verb: reports, logs, states"),
    ("say so", "an active verb: report, log, state"),
    ("what there is", "what exists, what is available"),
    ("as ever", "as usual, as before"),
    ("anybody", "every client, any user"),
    ("whom", "the client, the user"),
    ("come again", "retry later, reconnect"),
    ("goes away", "is stopping, closes"),
    ("means nothing", "has no effect"),
    ("mean nothing", "have no effect"),
    ("cannot be had", "is not available, is not possible"),
    ("vouches for", "signs"),
    ("vouch for", "sign"),
    ("by and by", "over time"),
    ("spoken here", "supported"),
    ("vouched", "signed"),
    ("told apart", "distinguished; or: does not differ measurably"),
    ("told otherwise", "unless another value is given"),
    ("in doubt", "by default"),
    ("everybody", "every client, all users"),
    ("of them all", "of all"),
    ("stranger", "another user, another connection"),
    ("strangers", "other users"),
    ("to be had", "available, free"),
    ("the begin", "the start"),
    ("for want of", "because … is missing"),
    ("is lacking", "is missing"),
    ("such a one", "one"),
    ("what is so", "the right answer"),
    ("it is so", "it is true"),
    ("said so", "an active verb: confirmed, reported"),
    ("counts for nothing", "is ignored"),
    ("taken up", "resumed, accepted"),
    ("believes", "accepts, relies on"),
    ("lets go", "releases, closes"),
    ("hand-over door", "hand-over socket"),
    ("with proof", "with the measurement"),
];

/// A line of the sources that is against a rule.
fn fault(path: &Path, line: usize, what: &str, instead: &str) -> String {
    format!("{}:{line}: {what:?}; say {instead}", path.display())
}

/// The name that a line defines, and whether it is that of a module.
fn defined(line: &str) -> Option<(bool, &str)> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.trim_start();
        if let Some(inside) = rest.strip_prefix('(') {
            rest = inside.split_once(')')?.1.trim_start();
        }
    }
    let (kind, rest) = rest.split_once(' ')?;
    let is_module = match kind {
        "mod" => true,
        "struct" | "enum" | "trait" | "type" | "union" => false,
        _ => return None,
    };
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| (is_module, &rest[..end]))
}

/// What a source says, line by line: its texts, and its doc comments if those are `--help`.
///
/// Texts in tests are not looked at: they are quotations.
fn said(source: &str, with_docs: bool) -> Vec<(usize, String)> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let (mut all, mut open) = (Vec::new(), None);
    for (number, line) in source.lines().enumerate() {
        if open.is_none()
            && let Some(comment) = line.trim_start().strip_prefix("//")
        {
            if with_docs && comment.starts_with(['/', '!']) {
                all.push((number + 1, comment.to_owned()));
            }
            continue;
        }
        all.push((number + 1, texts(line, &mut open)));
    }
    all.retain(|(_, text)| !text.is_empty());
    all
}

/// The parts of a line that are in texts. `open` is how many `#` end the text that has begun on a line before.
fn texts(line: &str, open: &mut Option<usize>) -> String {
    let (mut found, mut rest) = (String::new(), line);
    loop {
        if let Some(hashes) = *open {
            let end = match hashes {
                0 => rest
                    .char_indices()
                    .scan(false, |escaped, (at, c)| {
                        let was = std::mem::replace(escaped, c == '\\' && !*escaped);
                        Some((at, c == '"' && !was))
                    })
                    .find(|(_, ends)| *ends)
                    .map(|(at, _)| at),
                _ => rest.find(&format!("\"{}", "#".repeat(hashes))),
            };
            let Some(end) = end else { return found + rest };
            found += &rest[..end];
            found.push('\n');
            rest = &rest[end + 1 + hashes..];
            *open = None;
        }
        let before = rest.split_once("//").map_or(rest, |(code, _)| code);
        let Some(at) = before.find('"') else { return found };
        let hashes = before[..at].len() - before[..at].trim_end_matches('#').len();
        let is_character = before[..at].ends_with(['\'', '\\']) && before[at + 1..].starts_with('\'');
        rest = &rest[at + 1..];
        if !is_character {
            *open = Some(hashes);
        }
    }
}

fn has_phrase(text: &str, phrase: &str) -> bool {
    let text = text.to_lowercase();
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(phrase).any(|(at, _)| {
        !is_word(text[..at].chars().next_back()) && !is_word(text[at + phrase.len()..].chars().next())
    })
}

/// What is wrong with a source.
pub fn faults_of(path: &Path, source: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let Some((is_module, name)) = defined(line) else { continue };
        let names = if is_module { MODULES } else { TYPES };
        let given_up = names.iter().find(|(old, _)| *old == name);
        faults.extend(given_up.map(|(old, new)| fault(path, number + 1, old, new)));
    }
    let path_text = path.to_string_lossy().replace('\\', "/");
    if path_text.contains("/src/") && !path_text.ends_with("tests.rs") {
        let is_program = path_text.contains("tidegate-cli/src");
        for (number, text) in said(source, is_program) {
            let phrases = PHRASES.iter().filter(|(old, _)| has_phrase(&text, old));
            faults.extend(phrases.map(|(old, new)| fault(path, number, old, new)));
        }
    }
    faults
}

/// What is wrong with a page: phrases in its prose, also over the end of a line, and names as code.
pub fn page_faults(page: &Page) -> Vec<String> {
    let prose = page.prose();
    let phrases = PHRASES.iter().filter(|(old, _)| has_phrase(&prose, old));
    let names = TYPES.iter().filter(|(old, _)| page.spans.iter().any(|span| span == old));
    phrases.chain(names).map(|(old, new)| format!("{}: {old:?}; say {new}", page.path)).collect()
}

/// The sources in a folder and those inside it.
pub fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What is wrong with the sources of all crates.
pub fn faults() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(crates).expect("crates") {
        let own = entry.expect("a crate").path();
        ["src", "tests"]
            .map(|part| own.join(part))
            .iter()
            .filter(|p| p.is_dir())
            .for_each(|p| sources(p, &mut all));
    }
    all.sort();
    assert!(all.len() > 400, "only {} sources in {}", all.len(), crates.display());
    all.iter().flat_map(|path| faults_of(path, &std::fs::read_to_string(path).expect("a source"))).collect()
}

#[test]
fn names_and_phrases_that_were_given_up_are_found() {
    let of = |path: &str, source: &str| faults_of(Path::new(path), source).len();
    assert_eq!(of("x/src/a.rs", "pub(crate) struct Door {\nmod siege;\nstruct Doors;\nstruct Acceptor;"), 2);
    assert_eq!(of("x/src/a.rs", "let a = \"it stands there\"; // it stands\n/// It stands.\n"), 1);
    assert_eq!(of("x/src/a.rs", "f(\"one\\\" \\\n  whoever comes\", '\"', r#\"it \"can not\"\"#);"), 2);
    assert_eq!(of("crates/tidegate-cli/src/a.rs", "/// A socket of its own.\n/// It withstands.\n"), 1);
    assert_eq!(of("x/src/a.rs", "let a = \"the server says so; come again\"; // as ever"), 2);
    assert_eq!(of("x/tests/a.rs", "assert!(a, \"it stands\");"), 0);
    let page = Page::of(
        "docs/a.md",
        "It has limits of\nits own, a `Door` and `Doors`.\n\n```\nit stands\n```\n\nOn.\n",
    );
    assert_eq!(page_faults(&page).len(), 2, "{:?}", page_faults(&page));
}
