//! A member that uses the line protocol.

use tidegate::{Activity, Consumed, Flow, Mail, Outbox};

use super::member::{Member, Next};

pub(super) struct LineMember {
    pub(super) member: Member,
    pub(super) line_bytes: usize,
}

impl LineMember {
    /// Handles complete lines while the outbox has room for responses, and the member is not paused.
    pub(super) fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = 0;
        while !out.is_full() && self.member.takes_more() {
            let rest = input.get(used..).unwrap_or_default();
            let end = memchr::memchr(b'\n', rest);
            if end.unwrap_or(rest.len()) > self.line_bytes {
                self.member.send_line("! line too long; closing", out);
                return Consumed::all(input).then(Flow::Linger);
            }
            let Some(end) = end else { break };
            used += end + 1;
            let line = rest.get(..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Ok(line) = std::str::from_utf8(line) else {
                self.member.hear_noise(out);
                continue;
            };
            let flow = flow(self.member.hear(line, out));
            if flow != Flow::Continue {
                return Consumed::all(input).then(flow);
            }
        }
        self.hold_input(out);
        Consumed::bytes(used)
    }

    pub(super) fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let flow = flow(self.member.on_mail(mail, out));
        self.hold_input(out);
        flow
    }

    /// Unconsumed input is passed again when it accepts more.
    fn hold_input(&self, out: &mut Outbox<'_>) {
        out.set_activity(if self.member.takes_more() { Activity::Nothing } else { Activity::Work });
    }
}

fn flow(next: Next) -> Flow {
    match next {
        Next::Stays => Flow::Continue,
        Next::Quits => Flow::Linger,
        Next::TooSlow => Flow::Abort,
    }
}
