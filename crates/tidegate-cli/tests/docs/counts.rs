//! The counts of the documentation on the page of measurements are those that the script prints.

use std::process::Command;

use super::pages::root;

fn run(words: &[&str]) -> Option<(bool, String)> {
    let output =
        Command::new("python3").arg(root().join("scenarios/docs/counts")).args(words).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn they_are_those_of_the_script() {
    match run(&["--check"]) {
        None => eprintln!("NOT TESTED: counts of the documentation: there is no python3"),
        Some((_, said)) if said.contains("not tested: ") => {
            eprintln!("NOT TESTED: counts of the documentation: {said}")
        }
        Some((is_current, said)) => assert!(is_current, "{said}"),
    }
}
