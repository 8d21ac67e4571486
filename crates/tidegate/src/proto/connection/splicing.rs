//! Input that stays in the kernel: received into pipes, as long as the session wants it so.

use super::{Connection, ConnectionState, Context};
use crate::policy::sends::{SPLICE_LEAST, SPLICE_QUANTUM};
use crate::proto::outbox::Splicing;
use crate::proto::spliced::Spliced;
use crate::types::{CloseReason, Flow};

impl Connection {
    /// Lets it send from pipes, and receive into them if its session wants that. Before [`Event::Opened`].
    ///
    /// [`Event::Opened`]: super::Event::Opened
    pub(crate) fn can_splice(&mut self) {
        self.state_of_session.splicing = Splicing::Able;
    }

    /// From now on it receives into memory.
    #[cold]
    pub(crate) fn receive_no_pipes(&mut self) {
        if self.state_of_session.splicing != Splicing::Unable {
            self.state_of_session.splicing = Splicing::Sends;
        }
    }

    /// Most bytes that may now be received into a pipe; 0 if they are to be received into memory.
    pub(crate) fn splice_room(&self) -> usize {
        let room = self.rare().splice_room;
        match self.state_of_session.splicing {
            Splicing::Receives if room >= SPLICE_LEAST && self.takes_spliced() => SPLICE_QUANTUM.min(room),
            _ => 0,
        }
    }

    /// Its session takes input in pipes, and has no room for any.
    pub(super) fn has_no_splice_room(&self) -> bool {
        self.state_of_session.splicing == Splicing::Receives && self.rare().splice_room == 0
    }

    /// Nothing that has arrived before is still to be shown.
    fn takes_spliced(&self) -> bool {
        self.state == ConnectionState::Open && self.left() == 0 && !self.is_held_by_outbox()
    }

    pub(super) fn spliced(&mut self, spliced: Spliced, context: &Context<'_>) {
        let (mut refused, bytes) = (None, spliced.len() as u64);
        if self.takes_spliced() {
            self.heard(context);
            self.call(context, |session, out| {
                session.on_spliced(spliced, out).unwrap_or_else(|spliced| {
                    refused = Some(spliced);
                    Flow::Continue
                })
            });
        } else {
            refused = Some(spliced);
        }
        let Some(spliced) = refused else { return context.counters.bytes_spliced.add(bytes) };
        self.receive_no_pipes();
        match spliced.read() {
            // As if it had been received into the buffer.
            Ok(bytes) => {
                bytes.chunks(context.policy.buffer_bytes).for_each(|bytes| self.received(bytes, context))
            }
            Err(e) => self.reset(CloseReason::of(e.kind()), context),
        }
    }
}
