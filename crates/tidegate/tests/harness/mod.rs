//! What test targets with a harness of their own share: what cannot run here is ignored with its reason, never `ok`.
#![allow(dead_code, reason = "each target uses a part of it")]

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tidegate::{Availability, Model};

/// Tests of this module: functions without arguments.
#[allow(unused_macros, reason = "not every target has such tests")]
macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        vec![$(crate::harness::test(module_path!(), stringify!($test), $test)),*]
    };
}

/// Tests wait for time limits and peers more than they compute, so several share a processor. Not on Windows: under
/// Wine one process serves all system calls.
const TESTS_PER_PROCESSOR: usize = if cfg!(windows) { 1 } else { 3 };

/// Runs what the command line asks for.
pub fn run(trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let processors = std::thread::available_parallelism().map_or(1, Into::into);
    arguments.test_threads.get_or_insert(processors * TESTS_PER_PROCESSOR);
    run_with(&arguments, trials)
}

/// The same, one after the other.
pub fn run_alone(trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    run_with(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, trials)
}

fn run_with(arguments: &Arguments, trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    let own = Trial::ignorable_test("every_test_is_in_a_list", every_test_is_in_a_list);
    libtest_mimic::run(arguments, trials.into_iter().chain([own]).collect()).exit_code()
}

/// A function with the attribute of the usual harness would never be run here.
fn every_test_is_in_a_list() -> Result<Completion, Failed> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/", env!("CARGO_CRATE_NAME"));
    let Ok(files) = std::fs::read_dir(folder) else {
        return Ok(Completion::ignored_with("the sources are not here"));
    };
    for file in files {
        let path = file?.path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.lines().any(|line| line.trim() == "#[test]") {
            return Err(format!("{}: a test that is in no list; see tests![] there", path.display()).into());
        }
    }
    Ok(Completion::Completed)
}

/// The name of a test: its module without the name of the target, which comes twice where all of it is one module.
pub fn name(module: &str, test: &str) -> String {
    let within = module.strip_prefix("conformance::conformance");
    let within = within.or_else(|| Some(module.split_once("::")?.1)).unwrap_or_default();
    format!("{within}::{test}").trim_start_matches("::").to_owned()
}

/// A test that can run everywhere.
pub fn test(module: &str, test: &str, run: fn()) -> Trial {
    Trial::test(name(module, test), move || {
        run();
        Ok(())
    })
}

/// Something that was left out, and why, as a test that is ignored.
pub fn left_out(what: &str, why: impl ToString + Send + 'static) -> Trial {
    Trial::ignorable_test(what, move || Ok(Completion::ignored_with(why.to_string())))
}

/// These tests, if what they need is there.
pub fn needs(is_there: bool, what: &'static str, trials: Vec<Trial>) -> Vec<Trial> {
    if is_there {
        return trials;
    }
    trials.iter().map(|trial| left_out(trial.name(), format!("needs {what}"))).collect()
}

/// The models that this system has; the kernel may still refuse one of them.
pub fn models() -> impl Iterator<Item = Model> {
    Model::ALL.iter().copied().filter(|&model| is_of_this_system(model))
}

/// Says which models are not tested because another system has them.
pub fn models_of_another_system() -> Trial {
    let others = Model::ALL.iter().copied().filter(|&model| !is_of_this_system(model)).map(Model::name);
    let others: Vec<_> = others.collect();
    left_out("models_of_another_system", format!("this system does not have {}", others.join(", ")))
}

fn is_of_this_system(model: Model) -> bool {
    match model {
        Model::Blocking | Model::Pool | Model::Select | Model::Poll | Model::Tokio => true,
        Model::Epoll | Model::Uring => cfg!(target_os = "linux"),
        Model::AsyncSelect | Model::EventSelect | Model::Overlapped | Model::Iocp | Model::Rio => {
            cfg!(windows)
        }
        other => unreachable!("{other}: say which system has it"),
    }
}

/// Runs a case on a model, unless the kernel refuses the model.
pub fn on(model: Model, case: impl FnOnce() -> Result<Completion, Failed>) -> Result<Completion, Failed> {
    match model.availability() {
        Availability::Available(_) => case(),
        Availability::Unavailable(why) => Ok(Completion::ignored_with(why)),
    }
}
