//! Which options each experiment takes; others have no effect on it, and are refused.

use anyhow::anyhow;
use clap::ValueEnum;
use tidegate_lab::experiment::distinct;

use super::{Args, ExperimentName};
use crate::Failure;

/// The words of the user's own server.
const COMMAND: &str = "a command after `--`";

impl ExperimentName {
    /// Options that change what it measures, beside those that all experiments have.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::All => &[], // those of its experiments
            Self::Models => &["--connections", "--seconds", "--repeats", "--page"],
            Self::Concurrency => {
                &["--connections", "--seconds", "--requests", "--repeats", "--page", "--keepalive"]
            }
            Self::Reuse => &["--connections", "--seconds", "--requests", "--repeats"],
            Self::Demand => &["--connections", "--seconds", "--repeats", "--rates", "--threads"],
            Self::Connections | Self::Survival => &["--connections", "--seconds"],
            Self::Memory => &["--connections", "--seconds", "--repeats"],
            Self::Files => &["--connections", "--repeats", "--rates"],
            Self::Udp | Self::Latency => &["--seconds", "--repeats"],
            Self::Peers => &["--connections", "--requests", "--repeats", "--peers", "--only"],
            Self::App => &["--connections", "--seconds", "--requests", "--repeats", "--path", COMMAND],
        }
    }

    /// Whether all its rows have the same number of connections.
    fn has_one_size(self) -> bool {
        matches!(self, Self::Reuse | Self::Demand | Self::Memory | Self::Files | Self::Survival)
    }

    /// As on the command line.
    fn words(self) -> String {
        let value = self.to_possible_value();
        format!("`bench {}`", value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl Args {
    /// The experiments that are named, in order.
    pub(super) fn experiments(&self) -> Vec<ExperimentName> {
        use ExperimentName::{
            All, Concurrency, Connections, Demand, Files, Latency, Memory, Models, Reuse, Survival, Udp,
        };
        match self.experiment {
            None => vec![Concurrency, Connections],
            Some(All) => {
                vec![Models, Concurrency, Reuse, Demand, Connections, Memory, Files, Survival, Udp, Latency]
            }
            Some(one) => vec![one],
        }
    }

    /// Lists with each value once, in the order given: others would measure and name rows twice.
    pub(super) fn without_duplicates(self) -> Self {
        Self {
            models: distinct(self.models),
            connections: distinct(self.connections),
            rates: distinct(self.rates),
            page: distinct(self.page),
            ..self
        }
    }

    /// Of the options that not all experiments take, those that are given.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--connections", !self.connections.is_empty()),
            ("--rates", !self.rates.is_empty()),
            ("--threads", !self.threads.is_empty()),
            ("--seconds", self.seconds.is_some()),
            ("--requests", self.requests.is_some()),
            ("--repeats", self.repeats.is_some()),
            ("--page", !self.page.is_empty()),
            ("--peers", self.peers.is_some()),
            ("--only", !self.only.is_empty()),
            ("--keepalive", self.keepalive),
            ("--path", self.path.is_some()),
            (COMMAND, !self.command.is_empty()),
        ];
        options.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// Refuses options without effect on what is named; of several experiments one has to take it.
    pub(super) fn refuse_what_has_no_effect(&self) -> Result<(), Failure> {
        let refused = |why: String| Err(Failure::Usage(anyhow!(why)));
        let named = self.experiments();
        let is_taken = |option: &&str| named.iter().any(|one| one.options().contains(option));
        if let Some(alien) = self.given().find(|option| !is_taken(option)) {
            let here = self.experiment.map_or("`bench` without a name".into(), ExperimentName::words);
            return refused(format!("{alien} belongs to {}; it has no effect on {here}", takers(alien)));
        }
        let [one] = named[..] else { return Ok(()) };
        if one.has_one_size() && self.connections.len() > 1 {
            return refused(format!("{} takes one number of --connections", one.words()));
        }
        if self.requests.is_some() && self.seconds.is_some() {
            return refused(
                "--requests and --seconds both set the length of a round: give one of them".into(),
            );
        }
        Ok(())
    }
}

/// The experiments that take an option, in words.
fn takers(option: &str) -> String {
    let all = ExperimentName::value_variants().iter();
    let mut takers: Vec<String> =
        all.filter(|one| one.options().contains(&option)).map(|one| one.words()).collect();
    match (takers.pop(), takers.is_empty()) {
        (Some(last), false) => format!("{} and {last}", takers.join(", ")),
        (last, _) => last.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::super::tests::args;
    use super::*;

    /// What is said to these words; nothing if they are good.
    fn refusal(words: &[&str]) -> String {
        match args(words).refuse_what_has_no_effect() {
            Ok(()) => String::new(),
            Err(Failure::Usage(why) | Failure::Run(why)) => why.to_string(),
        }
    }

    #[test]
    fn an_option_without_effect_is_refused_and_who_takes_it_is_named() {
        for (words, why) in [
            (&["peers", "--seconds", "5"][..], "--seconds belongs to `bench models`, `bench concurrency`, "),
            (&["files", "--seconds", "5"], "it has no effect on `bench files`"),
            (
                &["memory", "--requests", "5"],
                "`bench concurrency`, `bench reuse`, `bench peers` and `bench app`; it has no effect on `bench memory`",
            ),
            (&["connections", "--repeats", "5"], "no effect on `bench connections`"),
            (&["survival", "--repeats", "5"], "no effect on `bench survival`"),
            (&["app", "--keepalive"], "--keepalive belongs to `bench concurrency`; it has"),
            (&["udp", "--connections", "5"], "no effect on `bench udp`"),
            (&["models", "--rates", "5"], "--rates belongs to `bench demand` and `bench files`; it has"),
            (&["--path", "/a"], "--path belongs to `bench app`; it has no effect on `bench` without a name"),
            (&["all", "--only", "go"], "--only belongs to `bench peers`; it has no effect on `bench all`"),
            (&["demand", "--connections", "5,6"], "`bench demand` takes one number of --connections"),
            (&["reuse", "--requests", "5", "--seconds", "5"], "give one of them"),
        ] {
            let said = refusal(words);
            assert!(said.contains(why), "{words:?}: {said}");
        }
        for words in [
            &["--connections", "5,6", "--seconds", "1", "--requests", "9", "--keepalive"][..],
            &["all", "--rates", "5", "--threads", "1,2", "--connections", "5,6", "--page", "1k"],
            &["concurrency", "--seconds", "5", "--keepalive"],
            &["app", "--requests", "5", "--", "a"],
        ] {
            assert_eq!(refusal(words), "", "{words:?}");
        }
    }

    #[test]
    fn what_is_named_twice_is_measured_once() {
        let lists =
            ["--models", "poll,epoll,poll", "--connections", "9,5,9", "--rates", "7,7", "--page", "4k,4096"];
        let args = args(&lists).without_duplicates();
        assert_eq!(args.models, [tidegate::Model::Poll, tidegate::Model::Epoll]);
        assert_eq!((args.connections, args.rates, args.page), (vec![9, 5], vec![7], vec![4096]));
    }

    #[test]
    fn every_option_is_one_of_all_experiments_or_of_some() {
        let of_all = ["models", "quick", "out", "nats", "agents", "server-address"];
        let of_some = ExperimentName::value_variants().iter().flat_map(|one| one.options());
        let of_some: Vec<&str> = of_some.filter_map(|option| option.strip_prefix("--")).collect();
        let bench = Args::augment_args(clap::Command::new("bench"));
        for option in bench.get_arguments().filter_map(|arg| arg.get_long()) {
            let is_known =
                of_all.contains(&option) || option.starts_with("nats-") || of_some.contains(&option);
            assert!(is_known, "--{option} has an effect on which experiments?");
        }
    }
}
