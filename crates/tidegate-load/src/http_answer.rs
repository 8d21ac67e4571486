//! Parses a response: head, then a body by length, in chunks or to the end of the connection (RFC 9112, section 6).

/// The parser's state.
#[derive(Debug, Default)]
pub(crate) enum Answer {
    /// At the head.
    #[default]
    Head,
    /// In a body with so many bytes left.
    Length { left: u64, status: u16, persistence: Persistence },
    /// In a chunked body.
    Chunked { at: ChunkState, status: u16, persistence: Persistence },
    /// In a body that ends with the connection.
    ToEnd { status: u16 },
}

/// What a response does with its connection (RFC 9112, section 9.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Persistence {
    KeepAlive,
    #[default]
    Close,
}

/// What says whether a response has a body (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRule {
    /// Its head.
    ByHead,
    /// The request, which was HEAD: it has none.
    Never,
}

/// Where the reading of a chunked body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkState {
    /// At a line with a size.
    Size,
    /// In the data of a chunk, its line end included.
    Data { left: u64 },
    /// In the trailer.
    Trailer,
}

/// The result of a parser step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParseStep {
    /// More input is needed.
    NeedsMore,
    /// This many bytes were consumed; continue.
    Used(usize),
    /// This many bytes were consumed, of which the first `body` belong to the body; continue.
    Body { used: usize, body: usize },
    /// The response ends after this many bytes, the first `body` of which belong to its body.
    Complete { used: usize, body: usize, status: u16, persistence: Persistence },
    /// The response is invalid.
    Wrong(&'static str),
}

/// A head that was parsed before. Most responses of a server begin with the same bytes, and comparing costs less than
/// parsing.
#[derive(Debug, Default)]
pub(crate) struct KnownHead {
    bytes: Vec<u8>,
    body: u64,
    status: u16,
    persistence: Persistence,
}

/// Maximum bytes of a head, or of a line of a chunked body.
const HEAD_LIMIT: usize = 64 * 1024;

impl Answer {
    /// Continues parsing at the front of `input`.
    pub(crate) fn step(&mut self, input: &[u8], known: &mut KnownHead, rule: BodyRule) -> ParseStep {
        match self {
            Self::Head => self.head(input, known, rule),
            Self::Length { left, status, persistence } => {
                let used = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= used as u64;
                if *left > 0 {
                    return ParseStep::Body { used, body: used };
                }
                let step =
                    ParseStep::Complete { used, body: used, status: *status, persistence: *persistence };
                *self = Self::Head;
                step
            }
            Self::Chunked { at, status, persistence } => match chunk(at, input) {
                ParseStep::Complete { used, .. } => {
                    let step =
                        ParseStep::Complete { used, body: 0, status: *status, persistence: *persistence };
                    *self = Self::Head;
                    step
                }
                step => step,
            },
            Self::ToEnd { .. } => ParseStep::Body { used: input.len(), body: input.len() },
        }
    }

    /// The status, if the end of the connection ends the response.
    pub(crate) fn ends_with_the_connection(&self) -> Option<u16> {
        match self {
            Self::ToEnd { status } => Some(*status),
            _ => None,
        }
    }

    fn head(&mut self, input: &[u8], known: &mut KnownHead, rule: BodyRule) -> ParseStep {
        if !known.bytes.is_empty() && input.starts_with(&known.bytes) {
            return self.begin_body(known.bytes.len(), known.body, known.status, known.persistence);
        }
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Response::new(&mut fields);
        let length = match parsed.parse(input) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if input.len() < HEAD_LIMIT => return ParseStep::NeedsMore,
            Ok(httparse::Status::Partial) => return ParseStep::Wrong("its head does not end"),
            Err(_) => return ParseStep::Wrong("its head is not HTTP"),
        };
        let status = parsed.code.unwrap_or(0);
        let (mut body, mut chunked) = (None, false);
        let mut open = parsed.version == Some(1);
        for field in parsed.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                match std::str::from_utf8(field.value).ok().and_then(|v| v.trim().parse().ok()) {
                    Some(n) if body.is_none_or(|old| old == n) => body = Some(n),
                    _ => return ParseStep::Wrong("its Content-Length is not one number"),
                }
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = has_token(field.value, b"chunked");
            } else if field.name.eq_ignore_ascii_case("connection") {
                open = (open || has_token(field.value, b"keep-alive")) && !has_token(field.value, b"close");
            }
        }
        let persistence = if open { Persistence::KeepAlive } else { Persistence::Close };
        if matches!(status, 100..=199) {
            return ParseStep::Used(length); // an interim answer; the final one follows
        }
        if rule == BodyRule::Never || matches!(status, 204 | 304) {
            return self.begin_body(length, 0, status, persistence);
        }
        match (chunked, body) {
            (true, _) => {
                *self = Self::Chunked { at: ChunkState::Size, status, persistence };
                ParseStep::Used(length)
            }
            (false, Some(body)) => {
                *known = KnownHead { bytes: input[..length].to_vec(), body, status, persistence };
                self.begin_body(length, body, status, persistence)
            }
            (false, None) => {
                *self = Self::ToEnd { status };
                ParseStep::Used(length)
            }
        }
    }

    fn begin_body(&mut self, used: usize, body: u64, status: u16, persistence: Persistence) -> ParseStep {
        if body == 0 {
            return ParseStep::Complete { used, body: 0, status, persistence };
        }
        *self = Self::Length { left: body, status, persistence };
        ParseStep::Used(used)
    }
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

/// One step in a chunked body (RFC 9112, section 7.1).
fn chunk(at: &mut ChunkState, input: &[u8]) -> ParseStep {
    if let ChunkState::Data { left } = at {
        let used = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
        // The last two bytes are the line end.
        let body = usize::try_from(left.saturating_sub(2)).unwrap_or(usize::MAX).min(used);
        *left -= used as u64;
        if *left == 0 {
            *at = ChunkState::Size;
        }
        return ParseStep::Body { used, body };
    }
    let Some(end) = input.iter().position(|&b| b == b'\n') else {
        return if input.len() < HEAD_LIMIT {
            ParseStep::NeedsMore
        } else {
            ParseStep::Wrong("a line of its chunks does not end")
        };
    };
    let line = input[..end].trim_ascii();
    if *at == ChunkState::Trailer {
        let last = line.is_empty();
        return if last {
            ParseStep::Complete { used: end + 1, body: 0, status: 0, persistence: Persistence::KeepAlive }
        } else {
            ParseStep::Used(end + 1)
        };
    }
    let digits = line.split(|&b| b == b';').next().unwrap_or(line).trim_ascii();
    let size = std::str::from_utf8(digits).ok().and_then(|d| u64::from_str_radix(d, 16).ok());
    match size {
        Some(0) => *at = ChunkState::Trailer,
        Some(size) if size < u64::MAX - 2 => *at = ChunkState::Data { left: size + 2 },
        _ => return ParseStep::Wrong("the size of a chunk is not a number"),
    }
    ParseStep::Used(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a stream in pieces of the given size; returns the answers found.
    fn read(stream: &[u8], piece: usize, bodies: &mut Vec<u8>) -> Vec<(u16, Persistence)> {
        let (mut answer, mut known, mut found) = (Answer::default(), KnownHead::default(), Vec::new());
        let (mut from, mut to) = (0, 0);
        while to < stream.len() {
            to = (to + piece).min(stream.len());
            while from < to {
                match answer.step(&stream[from..to], &mut known, BodyRule::ByHead) {
                    ParseStep::NeedsMore => break,
                    ParseStep::Used(n) => from += n,
                    ParseStep::Body { used, body } => {
                        bodies.extend_from_slice(&stream[from..from + body]);
                        from += used;
                    }
                    ParseStep::Complete { used, body, status, persistence } => {
                        bodies.extend_from_slice(&stream[from..from + body]);
                        from += used;
                        found.push((status, persistence));
                    }
                    ParseStep::Wrong(why) => panic!("{why}"),
                }
            }
        }
        found.extend(answer.ends_with_the_connection().map(|status| (status, Persistence::Close)));
        found
    }

    #[test]
    fn answers_are_found_whatever_the_pieces() {
        let stream = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
            HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nworld\
            HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\n\
            HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n\
            HTTP/1.1 500 Oh\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx\
            HTTP/1.1 200 OK\r\n\r\nto the end";
        let (keep_alive, close) = (Persistence::KeepAlive, Persistence::Close);
        let expected = [
            (200, keep_alive),
            (200, keep_alive),
            (404, keep_alive),
            (204, keep_alive),
            (200, keep_alive),
            (500, close),
            (200, close),
        ];
        for piece in 1..stream.len() {
            let mut bodies = Vec::new();
            assert_eq!(read(stream, piece, &mut bodies), expected, "pieces of {piece}");
            assert_eq!(bodies, b"helloworldabc0123456789xto the end", "pieces of {piece}");
        }
    }

    #[test]
    fn nonsense_is_called_wrong() {
        for stream in [
            &b"SSH-2.0-x\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        ] {
            let step = Answer::default().step(stream, &mut KnownHead::default(), BodyRule::ByHead);
            assert!(matches!(step, ParseStep::Wrong(_)), "{step:?}");
        }
        let (mut answer, mut known) = (Answer::default(), KnownHead::default());
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(answer.step(head, &mut known, BodyRule::ByHead), ParseStep::Used(head.len()));
        assert!(matches!(answer.step(b"zz\r\n", &mut known, BodyRule::ByHead), ParseStep::Wrong(_)));
    }

    #[test]
    fn an_answer_to_head_ends_with_its_head() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let (mut answer, mut known) = (Answer::default(), KnownHead::default());
        for _ in 0..2 {
            let step = answer.step(head, &mut known, BodyRule::Never);
            assert_eq!(
                step,
                ParseStep::Complete {
                    used: head.len(),
                    body: 0,
                    status: 200,
                    persistence: Persistence::KeepAlive
                }
            );
        }
    }
}
