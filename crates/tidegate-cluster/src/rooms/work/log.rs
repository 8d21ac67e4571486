//! The stream: made if it is not there, and read from where this node has come to.

use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::{Config, DiscardPolicy, LastRawMessageErrorKind, StorageType, Stream};
use async_nats::jetstream::{Context, Message};
use bytes::Bytes;
use futures_util::StreamExt as _;

use super::Retention;
use super::wire::{ROOMS, STREAM};

/// Time for an answer about the stream.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// The stream, being read.
pub(super) struct Log {
    stream: Stream,
    messages: Ordered,
    /// When the broker made it: another time is another stream.
    pub(super) made: i64,
    /// Nothing before the next place is kept.
    pub(super) gone: u64,
    /// The last place that was taken when it was opened; what was there may be deleted.
    pub(super) end: u64,
    /// Messages that are kept and did not come yet, as far as the broker has said.
    pub(super) left: u64,
}

/// Something that came last in a room.
pub(super) struct Last {
    pub(super) place: u64,
    pub(super) payload: Bytes,
}

impl Log {
    /// Opens the stream that was made then after a place, or from its beginning if it is another one.
    pub(super) async fn open(
        context: &Context,
        kept: Retention,
        after: Option<(i64, u64)>,
    ) -> Result<Self, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let stream = context.get_or_create_stream(config(kept)).await.map_err(|e| text(&e))?;
        let info = stream.cached_info();
        let made = i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(0); // to the year 2262
        let end = info.state.last_sequence;
        let gone = info.state.first_sequence.saturating_sub(1);
        let from = after
            .filter(|&(then, seen)| then == made && seen <= end)
            .map_or(1, |(_, seen)| seen.saturating_add(1));
        let consumer = OrderedConfig {
            name: Some(format!("node-{:016x}", fastrand::u64(..))),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            filter_subject: ROOMS.into(),
            ..OrderedConfig::default()
        };
        let consumer = stream.create_consumer(consumer).await.map_err(|e| text(&e))?;
        let left = consumer.cached_info().num_pending;
        let messages = consumer.messages().await.map_err(|e| text(&e))?;
        Ok(Self { stream, messages, made, gone, end, left })
    }

    /// The next message; the error is that the log has to be opened again.
    pub(super) async fn next(&mut self) -> Result<Message, String> {
        match self.messages.next().await {
            Some(Ok(message)) => {
                let pending = message.info().map_or(self.left, |info| info.pending);
                self.left = self.left.saturating_sub(1).min(pending);
                Ok(message)
            }
            Some(Err(e)) => Err(e.to_string()),
            None => Err("the stream has ended".into()),
        }
    }

    /// The last place that is taken by now.
    pub(super) async fn end_now(&self) -> Result<u64, String> {
        let info = self.stream.get_info().await.map_err(|e| e.to_string())?;
        Ok(info.state.last_sequence)
    }

    /// What came last in the room with this subject, if that is kept.
    pub(super) async fn last_of(&self, subject: &str) -> Result<Option<Last>, String> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(Last { place: message.sequence, payload: message.payload })),
            Err(e) if e.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }
}

fn config(kept: Retention) -> Config {
    Config {
        name: STREAM.into(),
        subjects: vec![ROOMS.into()],
        max_messages_per_subject: kept.messages.into(),
        max_age: kept.age,
        max_bytes: i64::try_from(kept.bytes).unwrap_or(i64::MAX),
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        num_replicas: kept.replicas.into(),
        ..Config::default()
    }
}
