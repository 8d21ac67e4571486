//! A key-value server that Redis' clients can use: GET, SET, DEL, EXISTS, INCR, PING, FLUSHALL (RESP2).
//!
//! A session without I/O: it takes whole commands from what has arrived and leaves the rest, so pipelines are answered
//! with one send. `cargo run --release --bin kv -- --listen 127.0.0.1:6379`, then `redis-benchmark -t set,get -P 16`.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tidegate::{Consumed, Flow, Outbox, Peer, Refusal, Service, Session};

/// Locks of the store: threads seldom want the same one.
const SHARDS: usize = 64;
/// The longest key or value. A command has to fit into [`Policy::input_bytes`](tidegate::Policy::input_bytes).
const LONGEST: usize = 60 << 10;
/// The most parts of one command.
const MOST_PARTS: usize = 1 << 14;

type Shard = HashMap<Vec<u8>, Bytes>;

struct Store {
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

impl Store {
    fn new() -> Self {
        Self { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[self.hasher.hash_one(key) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to a number, which is 0 if there is none.
    fn add(&self, key: &[u8], by: i64) -> Option<i64> {
        let mut shard = self.shard(key);
        let now = match shard.get(key) {
            Some(text) => std::str::from_utf8(text).ok()?.parse::<i64>().ok()?,
            None => 0,
        };
        let next = now.checked_add(by)?;
        shard.insert(key.to_vec(), next.to_string().into());
        Some(next)
    }
}

/// One command: its parts, as they lie in the input.
type Command<'a> = Vec<&'a [u8]>;

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

/// Takes one command off the front of the input, if all of it is there.
fn command<'a>(input: &mut &'a [u8]) -> Result<Option<Command<'a>>, Malformed> {
    let mut rest = *input;
    let Some(head) = line(&mut rest)? else { return Ok(None) };
    let Some(count) = head.strip_prefix(b"*") else {
        *input = rest; // an inline command, as a person types it
        return Ok(Some(head.split(|byte| *byte == b' ').filter(|part| !part.is_empty()).collect()));
    };
    let count = number(count, MOST_PARTS).ok_or(Malformed("invalid multibulk length"))?;
    let mut parts = Vec::with_capacity(count.min(8));
    for _ in 0..count {
        let Some(head) = line(&mut rest)? else { return Ok(None) };
        let length = head.strip_prefix(b"$").ok_or(Malformed("expected '$'"))?;
        let length = number(length, LONGEST).ok_or(Malformed("invalid bulk length"))?;
        let Some((part, after)) = rest.split_at_checked(length) else { return Ok(None) };
        match after {
            [b'\r', b'\n', more @ ..] => rest = more,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(Malformed("a bulk string does not end where it should")),
        }
        parts.push(part);
    }
    *input = rest;
    Ok(Some(parts))
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
    fn answer(&self, command: &Command<'_>, out: &mut Outbox<'_>) {
        let Some((name, arguments)) = command.split_first() else { return };
        match (name.to_ascii_uppercase().as_slice(), arguments) {
            (b"PING", []) => out.write(b"+PONG\r\n"),
            (b"PING" | b"ECHO", [text]) => bulk(text, out),
            (b"GET", [key]) => {
                let value = self.store.shard(key).get(*key).cloned();
                match value {
                    Some(value) => bulk(&value, out),
                    None => out.write(b"$-1\r\n"),
                }
            }
            (b"SET", [key, value]) => {
                self.store.shard(key).insert(key.to_vec(), Bytes::copy_from_slice(value));
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
    out.write(format!("${}\r\n", bytes.len()).as_bytes());
    out.write(bytes);
    out.write(b"\r\n");
}

fn integer(value: i64, out: &mut Outbox<'_>) {
    out.write(format!(":{value}\r\n").as_bytes());
}

impl Session for Client {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut rest = input;
        while !out.is_full() {
            match command(&mut rest) {
                Ok(Some(command)) => self.answer(&command, out),
                Ok(None) => break,
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
