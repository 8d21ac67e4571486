//! A key-value server that Redis' clients can use: GET, SET, DEL, EXISTS, INCR, PING, FLUSHALL (RESP2).
//!
//! A session without I/O: it takes whole commands from what has arrived and leaves the rest, so pipelines are answered
//! with one send. `cargo run --release --bin kv -- --listen 127.0.0.1:6379`, then `redis-benchmark -t set,get -P 16`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tidegate::{Consumed, Flow, Outbox, Peer, Refusal, Service, Session};

/// Locks of the store: threads seldom want the same one.
const SHARDS: usize = 64;
/// The longest key or value. A command has to fit into [`Policy::input_bytes`](tidegate::Policy::input_bytes).
const LONGEST: usize = 60 << 10;
/// The most parts of one command.
const MOST_PARTS: usize = 1 << 14;

/// A key or a value: short ones lie in the table itself, with no second place in memory to wait for.
type Text = SmallVec<[u8; 23]>;
type Shard = HashMap<Text, Text>;

struct Store {
    shards: [Mutex<Shard>; SHARDS],
}

impl Store {
    fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The part of the store that has this key. The map inside is what withstands keys chosen to collide.
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let hash = key.iter().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add((*byte).into()));
        self.shards[hash % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to a number, which is 0 if there is none.
    fn add(&self, key: &[u8], by: i64) -> Option<i64> {
        let mut shard = self.shard(key);
        let now = match shard.get(key) {
            Some(text) => std::str::from_utf8(text).ok()?.parse::<i64>().ok()?,
            None => 0,
        };
        let next = now.checked_add(by)?;
        shard.insert(key.into(), itoa::Buffer::new().format(next).as_bytes().into());
        Some(next)
    }
}

/// The input is not RESP; the connection cannot go on.
struct Malformed(&'static str);

/// Takes one line without its end off the front, if it is there.
fn line<'a>(input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let Some(end) = input.iter().take(64 << 10).position(|&byte| byte == b'\n') else {
        return if input.len() < 64 << 10 { Ok(None) } else { Err(Malformed("too big inline request")) };
    };
    let line = &input[..end];
    *input = &input[end + 1..];
    Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
}

fn number(text: &[u8], most: usize) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|&n| n <= most)
}

/// Takes one command off the front of the input, if all of it is there: its parts are put into `parts`.
fn command<'a>(input: &mut &'a [u8], parts: &mut Vec<&'a [u8]>) -> Result<bool, Malformed> {
    parts.clear();
    let mut rest = *input;
    let Some(head) = line(&mut rest)? else { return Ok(false) };
    let Some(count) = head.strip_prefix(b"*") else {
        *input = rest; // an inline command, as a person types it
        parts.extend(head.split(|byte| *byte == b' ').filter(|part| !part.is_empty()));
        return Ok(true);
    };
    let count = number(count, MOST_PARTS).ok_or(Malformed("invalid multibulk length"))?;
    for _ in 0..count {
        let Some(head) = line(&mut rest)? else { return Ok(false) };
        let length = head.strip_prefix(b"$").ok_or(Malformed("expected '$'"))?;
        let length = number(length, LONGEST).ok_or(Malformed("invalid bulk length"))?;
        let Some((part, after)) = rest.split_at_checked(length) else { return Ok(false) };
        match after {
            [b'\r', b'\n', more @ ..] => rest = more,
            [] | [b'\r'] => return Ok(false),
            _ => return Err(Malformed("a bulk string does not end where it should")),
        }
        parts.push(part);
    }
    *input = rest;
    Ok(true)
}

struct KeyValue(Arc<Store>);

impl Service for KeyValue {
    type Session = Client;

    fn open(&self, _: &Peer) -> Result<Client, Refusal> {
        Ok(Client { store: self.0.clone() })
    }
}

struct Client {
    store: Arc<Store>,
}

impl Client {
    fn answer(&self, parts: &[&[u8]], out: &mut Outbox<'_>) {
        let Some((name, arguments)) = parts.split_first() else { return };
        let mut upper = [0; 8]; // as long as the longest name
        let name = match upper.get_mut(..name.len()) {
            Some(upper) => {
                upper.copy_from_slice(name);
                upper.make_ascii_uppercase();
                &*upper
            }
            None => name,
        };
        match (name, arguments) {
            (b"PING", []) => out.write(b"+PONG\r\n"),
            (b"PING" | b"ECHO", [text]) => bulk(text, out),
            (b"GET", [key]) => match self.store.shard(key).get(*key) {
                Some(value) => bulk(value, out),
                None => out.write(b"$-1\r\n"),
            },
            (b"SET", [key, value]) => {
                self.store.shard(key).insert((*key).into(), (*value).into());
                out.write(b"+OK\r\n");
            }
            (b"INCR", [key]) => match self.store.add(key, 1) {
                Some(value) => integer(value, out),
                None => out.write(b"-ERR value is not an integer or out of range\r\n"),
            },
            (b"DEL", keys @ [_, ..]) => {
                let gone = keys.iter().filter(|key| self.store.shard(key).remove(**key).is_some()).count();
                integer(gone as i64, out);
            }
            (b"EXISTS", keys @ [_, ..]) => {
                let there = keys.iter().filter(|key| self.store.shard(key).contains_key(**key)).count();
                integer(there as i64, out);
            }
            (b"FLUSHALL", []) => {
                self.store.shards.iter().for_each(|shard| {
                    shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
                });
                out.write(b"+OK\r\n");
            }
            // What redis-benchmark and redis-cli ask for when they begin.
            (b"CONFIG" | b"COMMAND", _) => out.write(b"*0\r\n"),
            _ => out.write(b"-ERR unknown command or wrong number of arguments\r\n"),
        }
    }
}

fn bulk(bytes: &[u8], out: &mut Outbox<'_>) {
    out.write(b"$");
    out.write(itoa::Buffer::new().format(bytes.len()).as_bytes());
    out.write(b"\r\n");
    out.write(bytes);
    out.write(b"\r\n");
}

fn integer(value: i64, out: &mut Outbox<'_>) {
    out.write(b":");
    out.write(itoa::Buffer::new().format(value).as_bytes());
    out.write(b"\r\n");
}

impl Session for Client {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut rest = input;
        let mut parts = Vec::with_capacity(8);
        while !out.is_full() {
            match command(&mut rest, &mut parts) {
                Ok(true) => self.answer(&parts, out),
                Ok(false) => break,
                Err(Malformed(why)) => {
                    out.write(format!("-ERR Protocol error: {why}\r\n").as_bytes());
                    return Consumed::all(input).then(Flow::Linger);
                }
            }
        }
        Consumed::bytes(input.len() - rest.len())
    }
}

fn main() -> anyhow::Result<()> {
    tidegate_apps::serve(KeyValue(Arc::new(Store::new())))
}
