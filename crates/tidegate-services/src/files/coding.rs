//! Content codings: precompressed variants next to a file (RFC 9110, sections 8.4 and 12.5.3).

use std::fmt;
use std::str::FromStr;

use crate::http::head::list;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Coding {
    /// `.gz`.
    Gzip,
    /// `.br`.
    Brotli,
    /// `.zst`.
    Zstd,
}

impl Coding {
    /// All codings.
    pub const ALL: &'static [Self] = &[Self::Zstd, Self::Brotli, Self::Gzip];

    /// Its name in HTTP.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Its file name extension, without the dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Gzip => "gz",
            Self::Brotli => "br",
            Self::Zstd => "zst",
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.extension())
    }
}

/// A file name extension that is not one of a [`Coding`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseCodingError {
    /// The unknown extension.
    pub extension: String,
}

impl fmt::Display for ParseCodingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not one of gz, br and zst", self.extension)
    }
}

impl std::error::Error for ParseCodingError {}

impl FromStr for Coding {
    type Err = ParseCodingError;

    fn from_str(text: &str) -> Result<Self, ParseCodingError> {
        let found = Self::ALL.iter().copied().find(|coding| coding.extension() == text);
        found.ok_or_else(|| ParseCodingError { extension: text.to_owned() })
    }
}

/// The weight of a coding in thousandths; `None` is the uncompressed file. Codings not listed have weight 0, except the
/// uncompressed file.
pub(super) fn quality<'a>(accepts: impl Iterator<Item = &'a [u8]>, coding: Option<Coding>) -> u16 {
    let name = coding.map_or("identity", Coding::name).as_bytes();
    let (mut named, mut any) = (None, None);
    for member in accepts.flat_map(list) {
        let mut parts = member.split(|&b| b == b';').map(<[u8]>::trim_ascii);
        let token = parts.next().unwrap_or_default();
        let weight = parts.find_map(weight).unwrap_or(1000);
        let is_alias = token.eq_ignore_ascii_case(b"x-gzip") && name == b"gzip";
        if token.eq_ignore_ascii_case(name) || is_alias {
            named = Some(weight);
        } else if token == b"*" {
            any = Some(weight);
        }
    }
    // With equal weights, listed codings come before the uncompressed file.
    named.or(any).unwrap_or(u16::from(coding.is_none()))
}

/// Parses `q=0.5`; `None` for another parameter.
fn weight(parameter: &[u8]) -> Option<u16> {
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    let value: f32 = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some((value.clamp(0.0, 1.0) * 1000.0) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_extension_leads_back_to_its_coding() {
        for &coding in Coding::ALL {
            assert_eq!(coding.extension().parse(), Ok(coding));
        }
        let error = "lz4".parse::<Coding>().unwrap_err();
        assert_eq!(error.to_string(), "\"lz4\" is not one of gz, br and zst");
    }

    #[test]
    fn codings_are_weighed() {
        let gzip = Some(Coding::Gzip);
        for (accepts, coding, expected) in [
            ("gzip", gzip, 1000),
            ("GZIP;q=0.5", gzip, 500),
            ("x-gzip", gzip, 1000),
            ("br, gzip ; q=0.25", gzip, 250),
            ("br", gzip, 0),
            ("*", gzip, 1000),
            ("*;q=0.1, gzip;q=0", gzip, 0),
            ("", gzip, 0),
            ("gzip", None, 1),
            ("identity;q=0.5", None, 500),
            ("*;q=0", None, 0),
            ("gzip;q=nonsense", gzip, 1000),
        ] {
            assert_eq!(quality([accepts.as_bytes()].into_iter(), coding), expected, "{accepts:?} {coding:?}");
        }
    }
}
