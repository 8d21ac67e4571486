//! How times that may be none, and models, are written on the command line.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate::Model;
use tidegate::policy::setting::time;

/// A time, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optional(pub Option<Duration>);

/// A [`time()`], or `none`.
pub fn time_or_none(text: &str) -> Result<Optional, String> {
    if text == "none" {
        return Ok(Optional(None));
    }
    time(text).map(|time| Optional(Some(time))).map_err(|e| format!("{e}, or none"))
}

/// What `--model` takes: names for the shell to complete.
pub fn models() -> PossibleValuesParser {
    PossibleValuesParser::new(Model::ALL.map(Model::name).into_iter().chain(["auto"]))
}

/// What each of `--models` is: names for the shell to complete.
pub fn each_model() -> impl TypedValueParser<Value = Model> {
    PossibleValuesParser::new(Model::ALL.map(Model::name)).try_map(|name| name.parse::<Model>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_or_are_none() {
        assert_eq!(time_or_none("none"), Ok(Optional(None)));
        assert_eq!(time_or_none("30s"), Ok(Optional(Some(Duration::from_secs(30)))));
        assert!(time_or_none("30").unwrap_err().ends_with("or none"));
    }
}
