//! The counts of the documentation on the page of measurements are those that the script prints.

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};

use crate::{harness, has};

pub fn trials() -> Vec<Trial> {
    let name = harness::name(module_path!(), "they_are_those_of_the_script");
    harness::needs(has("python3"), "python3", vec![Trial::ignorable_test(name, they_are_those_of_the_script)])
}

fn they_are_those_of_the_script() -> Result<Completion, Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("the root");
    let output = Command::new("python3").arg(root.join("scenarios/docs/counts")).arg("--check").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if let Some((_, why)) = said.split_once("not tested: ") {
        return Ok(Completion::ignored_with(why.trim()));
    }
    assert!(output.status.success(), "{said}");
    Ok(Completion::Completed)
}
