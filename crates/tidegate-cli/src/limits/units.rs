//! How counts within bounds, times before zero, and models are written on the command line.

use std::ops::RangeInclusive;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate::Model;
use tidegate::policy::ParseLimitError;
use tidegate::policy::setting::{count, time};

/// A [`count()`] of one or more.
pub fn at_least_one<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    count(text)
        .ok()
        .filter(|n: &u64| *n > 0)
        .and_then(|n| N::try_from(n).ok())
        .ok_or_else(|| "not a number from 1; write 500, 10k or 1M".to_owned())
}

/// A [`count()`] within these bounds.
pub fn count_in<N: TryFrom<u64>>(
    bounds: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync {
    move |text| {
        let n = count(text).ok().filter(|n| bounds.contains(n)).and_then(|n| N::try_from(n).ok());
        n.ok_or_else(|| format!("not a number from {} to {}", bounds.start(), bounds.end()))
    }
}

/// A [`time()`] that may be before zero, in seconds.
pub fn signed_seconds(text: &str) -> Result<f64, ParseLimitError> {
    match text.strip_prefix('-') {
        Some(rest) => time(rest).map(|time| -time.as_secs_f64()),
        None => time(text).map(|time| time.as_secs_f64()),
    }
}

/// What `--model` takes: names for the shell to complete.
pub fn models() -> PossibleValuesParser {
    PossibleValuesParser::new(Model::ALL.iter().map(|model| model.name()).chain(["auto"]))
}

/// What each of `--models` is: names for the shell to complete.
pub fn each_model() -> impl TypedValueParser<Value = Model> {
    PossibleValuesParser::new(Model::ALL.iter().map(|model| model.name()))
        .try_map(|name| name.parse::<Model>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_bounds_and_times_may_be_before_zero() {
        assert_eq!((at_least_one::<u32>("1k"), count_in::<u8>(1..=5)("5")), (Ok(1_000), Ok(5)));
        assert!(at_least_one::<u32>("0").is_err() && at_least_one::<u16>("70k").is_err());
        assert!(count_in::<u8>(1..=5)("6").unwrap_err().ends_with("from 1 to 5"));
        assert_eq!((signed_seconds("-500ms"), signed_seconds("2")), (Ok(-0.5), Ok(2.0)));
    }
}
