//! What a session receives and how it closes, in plain types: the protocol's implementation may change.

/// A message of the peer, complete and unmasked. It is lent: what a session keeps, it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketMessage<'a> {
    /// A text; it is UTF-8.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

/// Why a WebSocket is closed: the status code of the close frame (RFC 6455, section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseCode {
    /// 1000: its purpose is fulfilled.
    Normal,
    /// 1001: the server stops.
    Away,
    /// 1002: the peer violated the protocol.
    Protocol,
    /// 1003: a message of a type that is not accepted, such as binary.
    Unsupported,
    /// 1007: a message whose content does not match its type, such as a text that is not UTF-8.
    Invalid,
    /// 1008: a message against the server's rules, where no other code fits.
    Policy,
    /// 1009: a message that is too large.
    Size,
    /// 1011: an unexpected condition of the server.
    Error,
    /// 1012: the server restarts; the peer may reconnect.
    Restart,
    /// 1013: the server is overloaded; the peer may try again later.
    Again,
    /// 1014: the server is a gateway, and what is behind it has failed.
    BadGateway,
    /// A code of the application, from 3000 to 4999. Any other number is sent as [`Error`](Self::Error).
    Application(u16),
}

impl CloseCode {
    /// The number that is sent.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Normal => 1000,
            Self::Away => 1001,
            Self::Protocol => 1002,
            Self::Unsupported => 1003,
            Self::Invalid => 1007,
            Self::Policy => 1008,
            Self::Size => 1009,
            Self::Application(code @ 3000..=4999) => code,
            Self::Error | Self::Application(_) => 1011,
            Self::Restart => 1012,
            Self::Again => 1013,
            Self::BadGateway => 1014,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_no_endpoint_may_send_is_an_error_of_the_server() {
        for (code, number) in
            [(2999, 1011), (3000, 3000), (4999, 4999), (5000, 1011), (1006, 1011), (0, 1011)]
        {
            assert_eq!(CloseCode::Application(code).number(), number);
        }
        assert_eq!((CloseCode::Normal.number(), CloseCode::Again.number()), (1000, 1013));
    }
}
