//! Members on wires without a network.

use tidegate::Policy;
use tidegate_services::Chat;

use crate::frames::{FIN, TEXT, UPGRADE, server_frames, text};
use crate::wire::TestConnection;

pub struct Member {
    pub wire: TestConnection,
    speaks_frames: bool,
    /// Bytes of what it received that were looked at already.
    seen: usize,
}

impl Member {
    pub fn of_lines(chat: &Chat) -> Self {
        Self::under(chat, Policy::default())
    }

    pub fn under(chat: &Chat, policy: Policy) -> Self {
        Self { wire: TestConnection::to(chat, policy), speaks_frames: false, seen: 0 }
    }

    pub fn of_frames(chat: &Chat) -> Self {
        let mut wire = TestConnection::to(chat, Policy::default());
        wire.send(UPGRADE);
        Self { wire, speaks_frames: true, seen: 0 }
    }

    pub fn say(&mut self, line: &str) {
        if self.speaks_frames {
            self.wire.send(text(line));
        } else {
            self.wire.send(format!("{line}\n"));
        }
    }

    /// What it received since the last call.
    pub fn hears(&mut self) -> Vec<String> {
        self.wire.deliver();
        let all: Vec<String> = if self.speaks_frames {
            let frames = server_frames(&self.wire.output).into_iter();
            let texts = frames.filter(|(first, _)| *first == FIN | TEXT);
            texts.map(|(_, text)| String::from_utf8(text).expect("text is UTF-8")).collect()
        } else {
            self.wire.text().lines().map(ToOwned::to_owned).collect()
        };
        let new = all[self.seen..].to_vec();
        self.seen = all.len();
        new
    }
}
