//! `tidegate completions` and `tidegate man`: what they write is what shells and `man` take.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

/// The script for a shell.
fn script(shell: &str) -> String {
    let output = tidegate(&["completions", shell]);
    assert_eq!(output.status.code(), Some(0), "{shell}");
    String::from_utf8(output.stdout).unwrap()
}

/// Shows `text` to a program that checks it; `None` where there is no such program.
fn check(program: &str, args: &[&str], text: &str) -> Option<Output> {
    let mut command = Command::new(program);
    let piped = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().ok()?;
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

#[test]
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

#[test]
fn the_shells_that_are_here_read_their_scripts() {
    for (shell, args) in [("bash", ["-n"].as_slice()), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let Some(said) = check(shell, args, &script(shell)) else { continue };
        assert!(said.status.success() && said.stderr.is_empty(), "{shell}: {said:?}");
    }
}

#[test]
fn bash_completes_an_option() {
    let ask = "COMP_WORDS=(tidegate serve http --max-conn); COMP_CWORD=3; _tidegate tidegate --max-conn http; echo \"${COMPREPLY[@]}\"";
    let Some(said) = check("bash", &[], &format!("{}\n{ask}\n", script("bash"))) else { return };
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "--max-connections", "{said:?}");
}

#[test]
fn bash_completes_the_names_of_models() {
    for (command, option) in
        [("serve http", "--model"), ("load http", "--model"), ("bench", "--models"), ("tune", "--models")]
    {
        let words = format!("tidegate {command} {option} ep");
        let at = words.split(' ').count() - 1;
        let ask = format!(
            "COMP_WORDS=({words}); COMP_CWORD={at}; _tidegate tidegate ep {option}; echo \"${{COMPREPLY[@]}}\""
        );
        let Some(said) = check("bash", &[], &format!("{}\n{ask}\n", script("bash"))) else { return };
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "epoll", "{words}: {said:?}");
    }
}

#[test]
fn every_command_has_a_page_that_man_can_show() {
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
        // As `man --warnings` does, without a pager.
        if let Some(said) = check("man", &["--warnings", "-l", path.to_str().unwrap()], "") {
            assert!(said.status.success() && said.stderr.is_empty(), "{page}: {said:?}");
        }
    }
    let alone = tidegate(&["man"]);
    let page = std::fs::read(folder.path().join("tidegate.1")).unwrap();
    assert!(String::from_utf8_lossy(&alone.stdout).contains(".TH tidegate 1"), "{alone:?}");
    assert!(!page.is_empty());
    let nowhere = tidegate(&["man", "/none/at/all"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/none/at/all is not a directory"));
}
