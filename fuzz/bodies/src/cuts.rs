//! A stream, and where it is cut.

/// Most cuts.
const MOST: usize = 16;

/// The first byte of the data says how many bytes are lengths of pieces; what comes after those is the stream.
pub(crate) struct Cuts<'a> {
    pub(crate) stream: &'a [u8],
    lengths: &'a [u8],
}

impl<'a> Cuts<'a> {
    pub(crate) fn of(data: &'a [u8]) -> Option<Self> {
        let (&count, rest) = data.split_first()?;
        let (lengths, stream) = rest.split_at_checked(usize::from(count) % (MOST + 1))?;
        Some(Self { stream, lengths })
    }

    /// The pieces, none of them empty; lengths come round again until the stream ends. No length: byte by byte.
    pub(crate) fn pieces(&self) -> Vec<&'a [u8]> {
        let mut rest = self.stream;
        let mut pieces = Vec::new();
        let mut lengths = self.lengths.iter().map(|&length| usize::from(length).max(1)).cycle();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(lengths.next().unwrap_or(1).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces
    }
}

/// An answer of HTTP without its date: the clock may strike between two plays.
pub(crate) fn without_date(answer: Vec<u8>) -> Vec<u8> {
    let Some(at) = answer.windows(6).position(|window| window == b"Date: ") else { return answer };
    let rest = answer[at..].iter().position(|&byte| byte == b'\n').map_or(answer.len(), |end| at + end + 1);
    [&answer[..at], &answer[rest..]].concat()
}
