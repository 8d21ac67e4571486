//! `tidegate completions` and `tidegate man`: what they write is what shells and `man` take.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;

use crate::{harness, has};

/// Shells that can read a script without running it, and how.
const READERS: [(&str, &[&str]); 3] = [("bash", &["-n"]), ("zsh", &["-n"]), ("fish", &["--no-execute"])];

pub fn trials() -> Vec<Trial> {
    let mut all = tests![every_shell_learns_commands_and_options, every_command_has_a_page];
    for (shell, args) in READERS {
        let name = harness::name(module_path!(), &format!("the_shell_reads_its_script::{shell}"));
        let read = Trial::test(name, move || {
            let said = check(shell, args, &script(shell));
            assert!(said.status.success() && said.stderr.is_empty(), "{shell}: {said:?}");
            Ok(())
        });
        all.extend(harness::needs(has(shell), shell, vec![read]));
    }
    let completes = tests![bash_completes_an_option, bash_completes_the_names_of_models];
    all.extend(harness::needs(has("bash"), "bash", completes));
    all.extend(harness::needs(has("man"), "man", tests![man_shows_every_page_without_a_warning]));
    all
}

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

/// The script for a shell.
fn script(shell: &str) -> String {
    let output = tidegate(&["completions", shell]);
    assert_eq!(output.status.code(), Some(0), "{shell}");
    String::from_utf8(output.stdout).unwrap()
}

/// Shows `text` to a program that checks it.
fn check(program: &str, args: &[&str], text: &str) -> Output {
    let mut command = Command::new(program);
    let piped = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn every_shell_learns_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = script(shell);
        for word in ["serve", "compare", "max-connections", "tls-cert", "throughput"] {
            assert!(script.contains(word), "{word} is not in the script for {shell}");
        }
    }
    let none = tidegate(&["completions", "csh"]);
    assert_eq!(none.status.code(), Some(2));
}

fn bash_completes_an_option() {
    let ask = "COMP_WORDS=(tidegate serve http --max-conn); COMP_CWORD=3; _tidegate tidegate --max-conn http; echo \"${COMPREPLY[@]}\"";
    let said = check("bash", &[], &format!("{}\n{ask}\n", script("bash")));
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "--max-connections", "{said:?}");
}

fn bash_completes_the_names_of_models() {
    for (command, option) in
        [("serve http", "--model"), ("load http", "--model"), ("bench", "--models"), ("tune", "--models")]
    {
        let words = format!("tidegate {command} {option} ep");
        let at = words.split(' ').count() - 1;
        let ask = format!(
            "COMP_WORDS=({words}); COMP_CWORD={at}; _tidegate tidegate ep {option}; echo \"${{COMPREPLY[@]}}\""
        );
        let said = check("bash", &[], &format!("{}\n{ask}\n", script("bash")));
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "epoll", "{words}: {said:?}");
    }
}

fn every_command_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = tidegate(&["man", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for (page, says) in [
        ("tidegate", "Exit codes"),
        ("tidegate-serve", "config"),
        ("tidegate-serve-http", "connections"),
        ("tidegate-serve-udp", "segment"),
        ("tidegate-load-echo", "duration"),
        ("tidegate-man", "DIR"),
    ] {
        let path = folder.path().join(format!("{page}.1"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(".TH ") && text.contains(says), "{page}: {text}");
        let (_, examples) = text.split_once("\n.SH EXAMPLES\n.nf\ntidegate ").expect("examples");
        assert!(examples.contains("\n.fi\n.SH VERSION\n") && !text.contains("EXTRA"), "{page}: {text}");
    }
    let alone = tidegate(&["man"]);
    let page = std::fs::read(folder.path().join("tidegate.1")).unwrap();
    assert!(String::from_utf8_lossy(&alone.stdout).contains(".TH tidegate 1"), "{alone:?}");
    assert!(!page.is_empty());
    let nowhere = tidegate(&["man", "/none/at/all"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/none/at/all is not a directory"));
}

fn man_shows_every_page_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let output = tidegate(&["man", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let pages: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap().path()).collect();
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        // Into a pipe, so that there is no pager.
        let said = check("man", &["--warnings", "-l", page.to_str().unwrap()], "");
        assert!(said.status.success() && said.stderr.is_empty(), "{}: {said:?}", page.display());
    }
}
