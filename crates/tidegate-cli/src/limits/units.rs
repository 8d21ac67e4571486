//! How times that may be none are written on the command line.

use std::time::Duration;

use tidegate::policy::setting::time;

/// A time, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optional(pub Option<Duration>);

/// A [`time`], or `none`.
pub fn time_or_none(text: &str) -> Result<Optional, String> {
    if text == "none" {
        return Ok(Optional(None));
    }
    time(text).map(|time| Optional(Some(time))).map_err(|e| format!("{e}, or none"))
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
