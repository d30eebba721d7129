//! A table in Redis: one string per key. How servers are [asked](shards), and how slots of a cluster
//! [follow](slots) key groups.
//!
//! What it keeps true: each question has one answer, and no answer takes longer than connecting and
//! reading may. A connection that has failed is made anew with the next questions; how long that is tried
//! is the operator's [patience](super::External::patience). An answer of the wrong type ends the run.

mod shards;
mod slots;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use alluvium::{Error, ErrorKind, Result};
use redis::{RedisError, ServerErrorKind};

use super::OnThread;
use shards::Shards;

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
    /// The server that slots follow to.
    brings_to: Option<usize>,
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
            brings_to: None,
            gets: Arc::default(),
        }
    }

    /// A table on several servers, by the [slots](redis_slot) of its keys: each server with the first slot
    /// after its own, in order. The last of them is 16384. A Redis Cluster's nodes can be given so. If one of
    /// them answers that a slot has moved, or is on its way, it is followed.
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

    /// Sets how long connecting may take, and how long a server may be silent. Default: 1 s each.
    #[must_use]
    pub fn within(mut self, connect: Duration, answer: Duration) -> Self {
        (self.connect_within, self.answer_within) = (connect, answer);
        self
    }

    /// Asks a server only after this key was found there, once a connection. The loader of the table
    /// writes it last: a server that has restarted empty is waited for, instead of saying that keys have
    /// no values. A table that is emptied while a connection stands is not noticed. With several servers
    /// each has one: see [`marker_of`](RedisConfig::marker_of). A server of a cluster that says that this key's
    /// slot is elsewhere now is not asked further.
    #[must_use]
    pub fn requires(mut self, key: impl Into<String>) -> Self {
        self.requires = Some(key.into());
        self
    }

    /// Has slots follow to this server, of those that were given: when key groups come to the worker that asks
    /// with this configuration, it moves their slots there, by `MIGRATE`, before it asks for their keys. For
    /// operators whose key groups [move](crate::Keyed::migratable); give each worker its own server.
    ///
    /// The servers are in cluster mode, for their slots, but do not know each other: each serves all slots
    /// (`CLUSTER ADDSLOTSRANGE 0 16383`), and they reach each other without a password. A key's slot is the
    /// highest 14 bits of its hash, and the number of key groups divides 16384. What a run that was killed has
    /// left on its way is brought along by the next one.
    #[must_use]
    pub fn brings_slots_to(mut self, server: usize) -> Self {
        self.brings_to = Some(server);
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
        let shards = Shards::new(self, encode, decode)?;
        let keys_max = self.pipeline * self.shards.len();
        OnThread::serving("redis", keys_max, shards, self.brings_to.is_some())
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
        let nowhere = config.brings_slots_to(3).open(|_: &u64, _| (), |_| Ok(0u64));
        assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::Config);
    }
}
