//! A table in Redis: one string per key.
//!
//! What it keeps true: each question has one answer, and no answer takes longer than connecting and
//! reading may. A connection that has failed is made anew with the next questions; how long that is tried
//! is the operator's [patience](super::External::patience). An answer of the wrong type ends the run.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alluvium::{Error, ErrorKind, Result};
use redis::{Client, Connection, RedisError, ServerErrorKind, Value};

use super::OnThread;

/// Slots of a Redis Cluster.
const SLOTS: u16 = 16384;

/// Where a table is, and how it is asked.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// Each server and the first slot that is not its any more.
    shards: Vec<(String, u16)>,
    pipeline: usize,
    connect_within: Duration,
    answer_within: Duration,
    requires: Option<String>,
    gets: Arc<AtomicU64>,
}

impl RedisConfig {
    /// A table on one server, `redis://127.0.0.1:6379` or `unix:///run/redis.sock`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            shards: vec![(url.into(), SLOTS)],
            pipeline: 64,
            connect_within: Duration::from_secs(1),
            answer_within: Duration::from_secs(1),
            requires: None,
            gets: Arc::default(),
        }
    }

    /// A table on several servers, by the [slots](redis_slot) of its keys: each server with the first slot
    /// after its own, in order. The last of them is 16384. A Redis Cluster's nodes can be given so; where
    /// its slots are is not asked, and an answer that a key has moved ends the run.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the slots are not in order, or are not all.
    pub fn sharded(shards: Vec<(String, u16)>) -> Result<Self> {
        let are_ordered = shards.windows(2).all(|pair| pair[0].1 < pair[1].1);
        let is_whole = shards.last().is_some_and(|(_, end)| *end == SLOTS);
        if !are_ordered || !is_whole || shards[0].1 == 0 {
            let message = format!("the shards' slots have to rise from 1 up to {SLOTS}");
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { shards, ..Self::new("") })
    }

    /// Sends so many GETs to a server before it waits for the answers. 1 waits for each of them.
    /// Default: 64.
    #[must_use]
    pub fn pipeline(mut self, gets: usize) -> Self {
        self.pipeline = gets.max(1);
        self
    }

    /// How long connecting may take, and how long a server may be silent. Default: 1 s each.
    #[must_use]
    pub fn within(mut self, connect: Duration, answer: Duration) -> Self {
        (self.connect_within, self.answer_within) = (connect, answer);
        self
    }

    /// Asks a server only after this key was found there, once a connection. The loader of the table
    /// writes it last: a server that has restarted empty is waited for, instead of saying that keys have
    /// no values. A table that is emptied while a connection stands is not noticed. With several servers
    /// each has one: see [`marker_of`](RedisConfig::marker_of).
    #[must_use]
    pub fn requires(mut self, key: impl Into<String>) -> Self {
        self.requires = Some(key.into());
        self
    }

    /// The name of the marker `key` on the server of these slots: with a hash tag of them, unless they are
    /// all.
    pub fn marker_of(key: &str, slots: Range<u16>) -> String {
        if slots == (0..SLOTS) {
            return key.to_owned();
        }
        let marker = (0u32..).map(|n| format!("{key}{{{n}}}"));
        let mut marker = marker.filter(|name| slots.contains(&redis_slot(name.as_bytes())));
        marker.next().expect("each slot has a number that hashes to it")
    }

    fn marker(&self, key: &str, shard: usize) -> String {
        let begin = if shard == 0 { 0 } else { self.shards[shard - 1].1 };
        Self::marker_of(key, begin..self.shards[shard].1)
    }

    /// GETs sent by all that are made of this, of which clones are the same.
    pub fn gets(&self) -> Arc<AtomicU64> {
        self.gets.clone()
    }

    /// The table, as one worker asks it, on a thread of its own: `encode` writes a key's name, `decode`
    /// reads its value. Connects with the first questions.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for addresses that are none, [`ErrorKind::Io`] if there can be no thread.
    pub fn open<K: Send + 'static, V: Send + 'static>(
        &self,
        encode: impl Fn(&K, &mut Vec<u8>) + Send + 'static,
        decode: impl Fn(&[u8]) -> Result<V> + Send + 'static,
    ) -> Result<OnThread<K, V>> {
        let mut shards = Vec::new();
        for (shard, (url, end)) in self.shards.iter().enumerate() {
            let client = Client::open(url.as_str()).map_err(|error| {
                Error::new(ErrorKind::Config, format!("{url:?} is no Redis: {error}"))
            })?;
            let marker = self.requires.as_ref().map(|key| self.marker(key, shard));
            let (url, packed, asked) = (url.clone(), Vec::new(), Vec::new());
            shards.push(Shard { url, end: *end, client, connection: None, marker, packed, asked });
        }
        let (config, mut name) = (self.clone(), Vec::new());
        let look_up = move |keys: &[K], values: &mut Vec<Result<Option<V>>>| {
            let mut found: Vec<_> = keys.iter().map(|_| None).collect();
            for (at, key) in keys.iter().enumerate() {
                name.clear();
                encode(key, &mut name);
                shard_of(&mut shards, &name).add(at, &name);
            }
            for shard in shards.iter_mut().filter(|shard| !shard.asked.is_empty()) {
                shard.ask(&config, &decode, &mut found);
            }
            values
                .extend(found.into_iter().map(|found| found.unwrap_or_else(|| Err(unanswered()))));
        };
        OnThread::new("redis", self.pipeline * self.shards.len(), look_up)
    }
}

/// The slot of a Redis Cluster that has the key of this name: CRC16 of the name, or of what is between
/// its first brace and the next closing one if that is not empty.
pub fn redis_slot(name: &[u8]) -> u16 {
    let tag = name.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        let end = rest.iter().position(|&byte| byte == b'}')?;
        (end > 0).then_some(&rest[..end])
    });
    let step = |crc: u16, &byte: &u8| crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
    tag.unwrap_or(name).iter().fold(0, step) % SLOTS
}

/// The remainders of each byte by the polynomial that Redis takes, x^16 + x^12 + x^5 + 1.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// One server.
struct Shard {
    url: String,
    end: u16,
    client: Client,
    connection: Option<Connection>,
    marker: Option<String>,
    /// GETs to be sent, and which keys they are of.
    packed: Vec<u8>,
    asked: Vec<usize>,
}

fn shard_of<'a>(shards: &'a mut [Shard], name: &[u8]) -> &'a mut Shard {
    let at = match shards.len() {
        1 => 0,
        _ => {
            let slot = redis_slot(name);
            shards.partition_point(|shard| shard.end <= slot)
        }
    };
    &mut shards[at]
}

impl Shard {
    fn add(&mut self, at: usize, name: &[u8]) {
        self.asked.push(at);
        redis::cmd("GET").arg(name).write_packed_command(&mut self.packed);
    }

    /// Sends what was added, and puts each answer where it belongs.
    fn ask<V>(
        &mut self,
        config: &RedisConfig,
        decode: &impl Fn(&[u8]) -> Result<V>,
        found: &mut [Option<Result<Option<V>>>],
    ) {
        config.gets.fetch_add(self.asked.len() as u64, Ordering::Relaxed);
        match self.exchange(config) {
            Ok(values) => {
                for (&at, value) in self.asked.iter().zip(values) {
                    found[at] = Some(self.read(value, decode));
                }
            }
            Err(error) => {
                self.connection = None;
                for &at in &self.asked {
                    let copy = Error::new(error.kind(), error.message());
                    found[at] = Some(Err(copy.with("server", &self.url)));
                }
            }
        }
        self.asked.clear();
        self.packed.clear();
    }

    fn exchange(&mut self, config: &RedisConfig) -> Result<Vec<Value>> {
        if self.connection.is_none() {
            self.connection = Some(self.connect(config)?);
        }
        let connection = self.connection.as_mut().expect("just made sure of");
        connection.send_packed_command(&self.packed).map_err(of_redis)?;
        // Not `req_packed_commands`, which waits once more for each answer after one that does not come.
        let mut values = Vec::with_capacity(self.asked.len());
        for _ in &self.asked {
            values.push(connection.recv_response().map_err(of_redis)?);
        }
        Ok(values)
    }

    fn connect(&self, config: &RedisConfig) -> Result<Connection> {
        let connected = self.client.get_connection_with_timeout(config.connect_within);
        let mut connection = connected.map_err(of_redis)?;
        connection.set_read_timeout(Some(config.answer_within)).map_err(of_redis)?;
        connection.set_write_timeout(Some(config.answer_within)).map_err(of_redis)?;
        if let Some(marker) = &self.marker {
            let exists = redis::cmd("EXISTS").arg(marker).query::<bool>(&mut connection);
            if !exists.map_err(of_redis)? {
                let message = format!("the table is not loaded: there is no key {marker:?}");
                return Err(Error::new(ErrorKind::Io, message));
            }
        }
        Ok(connection)
    }

    fn read<V>(&self, value: Value, decode: &impl Fn(&[u8]) -> Result<V>) -> Result<Option<V>> {
        let read = match value {
            Value::Nil => return Ok(None),
            Value::BulkString(bytes) => decode(&bytes).map(Some),
            Value::ServerError(error) => Err(of_redis(error.into())),
            other => {
                let message = format!("Redis answered a GET with {other:?}");
                Err(Error::new(ErrorKind::Mismatch, message))
            }
        };
        read.map_err(|error| error.with("server", &self.url))
    }
}

/// An error of Redis: of its connection or of a server that is starting or full, which pass, or of the
/// request.
fn of_redis(error: RedisError) -> Error {
    use redis::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::Io => ErrorKind::Io,
        Kind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown,
        ) => ErrorKind::Io,
        // Half an answer, as the server went away.
        Kind::Parse if error.is_unrecoverable_error() => ErrorKind::Io,
        Kind::Server(_) | Kind::UnexpectedReturnType | Kind::Extension | Kind::Parse => {
            ErrorKind::Mismatch
        }
        Kind::AuthenticationFailed | Kind::InvalidClientConfig => ErrorKind::Config,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("Redis: {error}"))
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Io, "Redis has not answered")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_redis_cluster() {
        // As told by CLUSTER KEYSLOT.
        for (name, slot) in [("123456789", 12739), ("foo", 12182), ("bar", 5061), ("", 0)] {
            assert_eq!(redis_slot(name.as_bytes()), slot, "{name}");
        }
        let tagged = redis_slot(b"user1000");
        assert_eq!(redis_slot(b"{user1000}.following"), tagged);
        assert_eq!(redis_slot(b"foo{}{bar}"), redis_slot(b"foo{}{bar}"));
        assert_ne!(redis_slot(b"foo{}{bar}"), redis_slot(b"bar"));
        assert_eq!(redis_slot(b"foo{bar}{zap}"), redis_slot(b"bar"));
    }

    #[test]
    fn shards_have_all_slots_and_a_marker_in_their_own() {
        let url = |n: u16| format!("redis://127.0.0.1:{n}");
        for bad in [vec![], vec![(url(1), 100)], vec![(url(1), 0), (url(2), 16384)]] {
            assert_eq!(RedisConfig::sharded(bad).unwrap_err().kind(), ErrorKind::Config);
        }
        let shards = vec![(url(1), 5000), (url(2), 5001), (url(3), 16384)];
        let config = RedisConfig::sharded(shards).unwrap();
        for (shard, slots) in [0..5000, 5000..5001, 5001..16384].into_iter().enumerate() {
            assert!(slots.contains(&redis_slot(config.marker("loaded", shard).as_bytes())));
        }
        assert_eq!(RedisConfig::new(url(1)).marker("loaded", 0), "loaded");
        let unknown = RedisConfig::new("what is this").open(|_: &u64, _| (), |_| Ok(0u64));
        assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Config);
    }
}
