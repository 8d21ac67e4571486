//! Turns the table of limits into command-line options.

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use tidegate::policy::{Limit, Limited, Unit};

/// Limits given on the command line, in the order of the table, each with its text.
pub struct Given<P: Limited>(Vec<(&'static Limit<P>, String)>);

impl<P: Limited> Given<P> {
    /// Whether the limit with this name was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(limit, _)| limit.name == name)
    }

    /// Applies the given limits to a policy.
    pub fn apply(&self, policy: &mut P) {
        let set = self.try_apply(policy);
        debug_assert_eq!(set, Ok(()), "read before: see from_arg_matches");
    }

    fn try_apply(&self, policy: &mut P) -> Result<(), String> {
        self.0.iter().try_for_each(|(limit, text)| {
            limit.set(policy, text).map_err(|e| format!("--{} {e}", limit.option))
        })
    }
}

impl<P: Limited> FromArgMatches for Given<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |limit: &Limit<P>| match limit.unit {
            Unit::Switch => matches.get_flag(limit.name).then(|| "true".to_owned()),
            _ => matches.get_one::<String>(limit.name).cloned(),
        };
        let given = Self(P::limits().filter_map(|limit| Some((limit, text(limit)?))).collect());
        let set = given.try_apply(&mut P::default());
        set.map_err(|e| clap::Error::raw(ErrorKind::ArgumentConflict, format!("{e}\n")))?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<P: Limited> clap::Args for Given<P> {
    fn augment_args(command: Command) -> Command {
        command.args(P::limits().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg<P: Limited>(limit: &'static Limit<P>) -> Arg {
    let default = match (limit.default_note, limit.unit) {
        (Some(note), _) => note.to_owned(),
        (None, Unit::Switch) => "off".into(),
        (None, _) => limit.default_text(),
    };
    let arg = Arg::new(limit.name)
        .long(limit.option)
        .help(format!("{} [default: {default}]", limit.what))
        .help_heading("Limits");
    let arg = match limit.unit {
        Unit::Switch => arg.action(ArgAction::SetTrue),
        Unit::Words(words) => arg.value_parser(PossibleValuesParser::new(words)),
        _ => arg.value_parser(|text: &str| limit.check_text(text).map(|()| text.to_owned())),
    };
    let arg = match limit.unit {
        Unit::Switch => arg,
        unit => arg.value_name(unit.placeholder()),
    };
    let arg = match limit.with {
        Some(option) => arg.requires(option),
        None => arg,
    };
    match limit.needs {
        Some((needed, _)) => arg.requires(needed),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use tidegate::Policy;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        given: Given<Policy>,
    }

    fn given(words: &[&str]) -> Result<Policy, String> {
        let line = TestArgs::try_parse_from([&["x"], words].concat()).map_err(|e| e.to_string())?;
        let mut policy = Policy::default();
        line.given.apply(&mut policy);
        Ok(policy)
    }

    #[test]
    fn every_limit_of_the_table_is_an_option_with_its_text_and_default() {
        let help = TestArgs::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for limit in Policy::limits() {
            let option = limit.option;
            let shown = format!("--{option} ");
            assert!(help.contains(&shown) && help.contains(limit.what), "{shown}");
            let default = limit.default_text();
            if limit.unit != Unit::Switch && limit.needs.is_none() && default != "none" {
                let policy = given(&[&format!("--{option}={default}")]);
                assert_eq!(policy, Ok(Policy::default()), "{option}");
            }
        }
    }

    #[test]
    fn an_option_without_the_one_it_needs_is_refused() {
        assert!(given(&["--ring-bytes", "8k"]).unwrap_err().contains("--fast-path"));
        assert!(given(&["--fast-path", "--ring-bytes", "8k"]).is_ok());
        let text = given(&["--min-rate", "none", "--min-rate-grace", "1s"]).unwrap_err();
        assert!(text.contains("--min-rate-grace has no effect without"), "{text}");
    }
}
