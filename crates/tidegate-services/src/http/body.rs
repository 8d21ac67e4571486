//! Skips a request's body (RFC 9112, sections 6 and 7), without storing it.

use super::HttpLimits;
use super::fault::RequestError;
use super::scan::is_token;

/// Maximum bytes of a chunk-size line without its extensions: 16 hexadecimal digits hold any 64-bit number.
const MOST_SIZE_DIGITS: u8 = 16;

/// A body that has not ended yet.
#[derive(Debug)]
pub(super) enum Body {
    /// Bytes that are still to come.
    Length(u64),
    /// Chunks, then trailers.
    Chunked(Chunks),
}

/// The progress of one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BodyProgress {
    /// Bytes consumed, from the front.
    pub(super) used: usize,
    /// Whether the body has ended; what follows is the next request.
    pub(super) ended: bool,
}

impl Body {
    pub(super) fn advance(
        &mut self,
        input: &[u8],
        limits: &HttpLimits,
    ) -> Result<BodyProgress, RequestError> {
        match self {
            Self::Length(left) => {
                let used = skip(left, input);
                Ok(BodyProgress { used, ended: *left == 0 })
            }
            Self::Chunked(chunks) => chunks.advance(input, limits),
        }
    }
}

/// Consumes up to `left` bytes of the input; returns their number.
fn skip(left: &mut u64, input: &[u8]) -> usize {
    let used = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    *left -= used as u64;
    used
}

/// The position of the next byte in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a chunk-size, after so many digits.
    Size(u8),
    /// In white space that only a `;` may follow.
    Space,
    /// In a chunk extension (section 7.1.1): before its name, in it, and in white space behind it.
    NameSpace,
    ExtName,
    NameEnd,
    /// Before its value, in a token value, in a quoted value, after a backslash in it, and after its closing quote.
    ValueSpace,
    ExtValue,
    Quoted,
    Escaped,
    QuotedEnd,
    /// After the CR of a chunk-size line.
    SizeEnd,
    /// In a chunk's data.
    Data,
    /// Before the CR, and before the LF, that follow the data.
    DataCr,
    DataLf,
    /// At the start of a trailer line, in its name, in its value, and after its CR.
    Trailer,
    Name,
    Value,
    ValueEnd,
    /// After the CR of the empty line that ends everything.
    End,
}

/// A chunked body. Lines must end in CR LF: accepting a lone LF or CR where another hop does not enables request
/// smuggling.
#[derive(Debug)]
pub(super) struct Chunks {
    /// The current chunk: its size while that is parsed, then the bytes left of it.
    size: u64,
    /// Data bytes of all chunks so far.
    total: u64,
    /// Bytes of extensions and trailers so far.
    extra: u32,
    at: At,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self { size: 0, total: 0, extra: 0, at: At::Size(0) }
    }

    fn advance(&mut self, input: &[u8], limits: &HttpLimits) -> Result<BodyProgress, RequestError> {
        let mut rest = input;
        while let Some((&byte, after)) = rest.split_first() {
            if self.at == At::Data {
                let used = skip(&mut self.size, rest);
                rest = rest.get(used..).unwrap_or_default();
                if self.size == 0 {
                    self.at = At::DataCr;
                }
                continue;
            }
            rest = after;
            if (self.at, byte) == (At::End, b'\n') {
                return Ok(BodyProgress { used: input.len() - rest.len(), ended: true });
            }
            self.at = self.after(byte, limits)?;
        }
        Ok(BodyProgress { used: input.len(), ended: false })
    }

    /// The state transition for a byte.
    fn after(&mut self, byte: u8, limits: &HttpLimits) -> Result<At, RequestError> {
        let next = match (self.at, byte) {
            (At::Size(digits), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => return self.digit(digits, byte),
            (At::Size(1..) | At::ExtName | At::ExtValue | At::QuotedEnd, b'\r') => At::SizeEnd,
            (At::Size(1..) | At::Space | At::ExtName | At::NameEnd | At::ExtValue | At::QuotedEnd, b';') => {
                At::NameSpace
            }
            (At::Size(1..) | At::Space | At::ExtValue | At::QuotedEnd, b' ' | b'\t') => At::Space,
            (At::NameSpace, b' ' | b'\t') => At::NameSpace,
            (At::ExtName | At::NameEnd, b' ' | b'\t') => At::NameEnd,
            (At::ExtName | At::NameEnd, b'=') => At::ValueSpace,
            (At::ValueSpace, b' ' | b'\t') => At::ValueSpace,
            (At::ValueSpace, b'"') => At::Quoted,
            (At::NameSpace | At::ExtName, byte) if is_token(byte) => At::ExtName,
            (At::ValueSpace | At::ExtValue, byte) if is_token(byte) => At::ExtValue,
            (At::Quoted, b'"') => At::QuotedEnd,
            (At::Quoted, b'\\') => At::Escaped,
            (At::Quoted | At::Escaped, b'\t' | b' '..=b'~' | 0x80..) => At::Quoted,
            (At::SizeEnd, b'\n') => return self.size_line_ended(limits),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size(0),
            (At::Trailer, b'\r') => At::End,
            (At::Name, b':') => At::Value,
            (At::Trailer | At::Name, byte) if is_token(byte) => At::Name,
            (At::Value, b'\r') => At::ValueEnd,
            (At::Value, b'\t' | b' '..=b'~' | 0x80..) => At::Value,
            (At::ValueEnd, b'\n') => At::Trailer,
            (At::Data | At::DataCr | At::DataLf, _) => {
                return Err(RequestError::bad("a chunk of the body is longer than its size says"));
            }
            (At::Trailer | At::Name | At::Value | At::ValueEnd | At::End, _) => {
                return Err(RequestError::bad("the body has an invalid trailer (RFC 9112, section 7.1.2)"));
            }
            _ => {
                return Err(RequestError::bad(
                    "a chunk of the body has no valid size line (RFC 9112, section 7.1)",
                ));
            }
        };
        if !matches!(next, At::SizeEnd | At::DataLf | At::Size(_) | At::Trailer | At::ValueEnd | At::End) {
            self.extra = self.extra.saturating_add(1);
            if self.extra as usize > limits.head_bytes {
                return Err(RequestError::trailers_too_large(limits.head_bytes));
            }
        }
        Ok(next)
    }

    fn digit(&mut self, digits: u8, byte: u8) -> Result<At, RequestError> {
        if digits >= MOST_SIZE_DIGITS {
            return Err(RequestError::bad("the size of a chunk has too many digits"));
        }
        let value = char::from(byte).to_digit(16).unwrap_or_default();
        if digits == 0 {
            self.size = 0;
        }
        self.size = (self.size << 4) | u64::from(value); // 16 digits fit
        Ok(At::Size(digits + 1))
    }

    fn size_line_ended(&mut self, limits: &HttpLimits) -> Result<At, RequestError> {
        if self.size == 0 {
            return Ok(At::Trailer);
        }
        self.total = self.total.saturating_add(self.size);
        if self.total > limits.body_bytes {
            return Err(RequestError::body_too_large(limits.body_bytes));
        }
        Ok(At::Data)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Status;
    use super::*;

    /// What becomes of a chunked body shown in steps of `step` bytes: bytes used once it ended, or the fault.
    fn read(input: &[u8], step: usize, limits: &HttpLimits) -> Result<Option<usize>, RequestError> {
        let mut chunks = Chunks::new();
        let mut used = 0;
        for piece in input.chunks(step) {
            let progress = chunks.advance(piece, limits)?;
            used += progress.used;
            if progress.ended {
                return Ok(Some(used));
            }
        }
        Ok(None)
    }

    #[test]
    fn chunked_bodies_end_where_they_should_in_any_steps() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "A\r\n0123456789\r\n00001;name=\"a;b\" ; x\r\n.\r\n0 ;last\r\n\r\n",
            "1;a=b;c = \"d\\\"\\\\;\t\u{fc}\";e\t;f=\"\" ;g\r\n.\r\n0;z=9\r\n\r\n",
            "1\r\n\n\r\n0\r\nDigest: abc\r\nX-Empty:\r\n\r\n",
        ] {
            let input = format!("{body}GET ");
            for step in 1..=input.len() {
                let used = read(input.as_bytes(), step, &HttpLimits::default());
                assert_eq!(used, Ok(Some(body.len())), "{body:?} in steps of {step}");
            }
        }
    }

    #[test]
    fn what_others_might_read_differently_is_a_bad_request() {
        for body in [
            "\r\n",
            ";x\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1 \r\n",
            "1 2\r\n",
            "1\n",
            "1;a\nb\r\n",
            "1;\r\n",
            "1; \r\n",
            "1;;a\r\n",
            "1;=b\r\n",
            "1;a=\r\n",
            "1;a=b c\r\n",
            "1;a b\r\n",
            "1;a \r\n",
            "1;a=b \r\n",
            "1;a=\"b\r\n",
            "1;a=\"b\\\r\n",
            "1;a=\"b\"c\r\n",
            "1;\u{fc}\r\n",
            "1;a=\"\0\"\r\n",
            "1;a\rb\r\n",
            "1\r\nab\r\n",
            "1\r\na\n",
            "1\r\na\r0",
            "0\r\n\n",
            "0\r\n x: y\r\n",
            "0\r\nno colon\r\n",
            "0\r\n: nameless\r\n",
            "0\r\na: b\nc: d\r\n",
            "0\r\n\rx",
            "11111111111111111\r\n",
        ] {
            for step in [1, 2, body.len()] {
                let fault = read(body.as_bytes(), step, &HttpLimits::default()).unwrap_err();
                assert_eq!(fault.status, Status::BadRequest, "{body:?}");
            }
        }
    }

    #[test]
    fn the_sum_of_chunks_and_the_extras_are_bounded() {
        let limits = HttpLimits { body_bytes: 10, head_bytes: 20, ..HttpLimits::default() };
        let ten = b"5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n";
        assert_eq!(read(ten, 3, &limits), Ok(Some(ten.len())));
        let status = |body: &str| read(body.as_bytes(), 3, &limits).unwrap_err().status;
        assert_eq!(status("5\r\nhello\r\n6\r\n"), Status::ContentTooLarge);
        assert_eq!(status("FFFFFFFFFFFFFFFF\r\n"), Status::ContentTooLarge);
        assert_eq!(status("1;aaaaaaaaaaaaaaaaaaaaa"), Status::FieldsTooLarge);
        assert_eq!(status("0\r\nname: aaaaaaaaaaaaaaaaaaaaa"), Status::FieldsTooLarge);
    }

    #[test]
    fn a_length_ends_exactly() {
        let mut body = Body::Length(5);
        let limits = HttpLimits::default();
        assert_eq!(body.advance(b"abc", &limits), Ok(BodyProgress { used: 3, ended: false }));
        assert_eq!(body.advance(b"deGET", &limits), Ok(BodyProgress { used: 2, ended: true }));
    }
}
