//! The servers of a table, as one worker asks them.
//!
//! What it keeps true: a key is asked for where its slot is, as far as is known. A server that says that the
//! slot has moved, or that the key is on its way, is believed, and the key asked for there in the same call.

use std::sync::atomic::Ordering;

use alluvium::moving::KeyGroup;
use alluvium::{Error, ErrorKind, Result};
use redis::{Client, Connection, ConnectionAddr, RedisError, Value};

use super::{RedisConfig, SLOTS, of_redis, redis_slot};
use crate::external::on_thread::ServeTable;

/// How often a key is sent on before the operator has to ask again.
const ROUNDS_MAX: usize = 4;

/// All servers that are known.
pub(super) struct Shards<E, D> {
    pub(super) config: RedisConfig,
    pub(super) servers: Vec<Shard>,
    /// The server of each slot; empty as long as one has all.
    pub(super) of_slot: Vec<u16>,
    encode: E,
    decode: D,
    name: Vec<u8>,
    redirected: Vec<RedirectedKey>,
}

/// A key that another server has.
struct RedirectedKey {
    /// Of the keys that are looked up.
    at: usize,
    slot: u16,
    address: String,
    /// The server that has said so.
    by: usize,
    /// The key is there already, the slot is not.
    is_ask: bool,
}

impl<E, D> Shards<E, D> {
    pub(super) fn new(config: &RedisConfig, encode: E, decode: D) -> Result<Self> {
        let mut servers = Vec::new();
        for (shard, (url, _)) in config.shards.iter().enumerate() {
            let client = Client::open(url.as_str()).map_err(|error| {
                Error::new(ErrorKind::Config, format!("{url:?} is no Redis: {error}"))
            })?;
            let marker = config.requires.as_ref().map(|key| config.marker(key, shard));
            servers.push(Shard::new(url.clone(), client, marker));
        }
        if let Some(to) = config.brings_to.filter(|to| *to >= servers.len()) {
            let message = format!("slots cannot follow to server {to} of {}", servers.len());
            return Err(Error::new(ErrorKind::Config, message));
        }
        let (name, redirected) = (Vec::new(), Vec::new());
        let mut shards = Self {
            config: config.clone(),
            servers,
            of_slot: Vec::new(),
            encode,
            decode,
            name,
            redirected,
        };
        if shards.servers.len() > 1 {
            shards.of_slot = vec![0; usize::from(SLOTS)];
            let mut begin = 0;
            for (server, (_, end)) in (0..).zip(&config.shards) {
                shards.of_slot[begin..usize::from(*end)].fill(server);
                begin = usize::from(*end);
            }
        }
        Ok(shards)
    }

    /// The server at an address that another one has told, which leaves its own host out if it does not
    /// know it.
    pub(super) fn server_at(&mut self, address: &str, by: usize) -> Result<usize> {
        let parts = address.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let Some((host, port)) = parts else {
            let message = format!("Redis names a server {address:?}, which is no address");
            return Err(Error::new(ErrorKind::Mismatch, message));
        };
        let info = self.servers[by].client.get_connection_info().clone();
        let host = match (host, info.addr()) {
            ("", ConnectionAddr::Tcp(own, _)) => own.clone(),
            (host, _) => host.to_owned(),
        };
        let is_it = |shard: &Shard| {
            matches!(shard.client.get_connection_info().addr(),
            ConnectionAddr::Tcp(at, of) if *at == host && *of == port)
        };
        if let Some(known) = self.servers.iter().position(is_it) {
            return Ok(known);
        }
        let url = format!("redis://{host}:{port}");
        let client = Client::open(info.set_addr(ConnectionAddr::Tcp(host, port)));
        self.servers.push(Shard::new(url, client.map_err(of_redis)?, None));
        Ok(self.servers.len() - 1)
    }

    /// From now on a slot is asked for there.
    pub(super) fn note(&mut self, slot: u16, server: usize) {
        if self.of_slot.is_empty() {
            self.of_slot = vec![0; usize::from(SLOTS)];
        }
        if let Some(of_slot) = self.of_slot.get_mut(usize::from(slot)) {
            *of_slot = server as u16;
        }
    }
}

impl<K, V, E, D> ServeTable<K, V> for Shards<E, D>
where
    E: Fn(&K, &mut Vec<u8>) + Send + 'static,
    D: Fn(&[u8]) -> Result<V> + Send + 'static,
{
    fn look_up(&mut self, keys: &[K], values: &mut Vec<Result<Option<V>>>) {
        let mut found: Vec<_> = keys.iter().map(|_| None).collect();
        for (at, key) in keys.iter().enumerate() {
            self.name.clear();
            (self.encode)(key, &mut self.name);
            let server = match self.of_slot.get(usize::from(redis_slot(&self.name))) {
                Some(server) => usize::from(*server),
                None => 0,
            };
            self.servers[server].add(at, &self.name, false);
        }
        for _ in 0..ROUNDS_MAX {
            for (by, server) in self.servers.iter_mut().enumerate() {
                if !server.asked.is_empty() {
                    server.ask(by, &self.config, &self.decode, &mut found, &mut self.redirected);
                }
            }
            if self.redirected.is_empty() {
                break;
            }
            for RedirectedKey { at, slot, address, by, is_ask } in
                std::mem::take(&mut self.redirected)
            {
                match self.server_at(&address, by) {
                    Ok(server) => {
                        if !is_ask {
                            self.note(slot, server);
                        }
                        self.name.clear();
                        (self.encode)(&keys[at], &mut self.name);
                        self.servers[server].add(at, &self.name, is_ask);
                    }
                    Err(error) => found[at] = Some(Err(error)),
                }
            }
        }
        self.servers.iter_mut().for_each(Shard::clear);
        let unanswered = || Error::new(ErrorKind::Io, "Redis sends a key from server to server");
        values.extend(found.into_iter().map(|found| found.unwrap_or_else(|| Err(unanswered()))));
    }

    fn follow(&mut self, group: KeyGroup, groups: u16) -> Result<()> {
        self.bring(group, groups)
    }
}

/// One server.
pub(super) struct Shard {
    pub(super) url: String,
    pub(super) client: Client,
    connection: Option<Connection>,
    marker: Option<String>,
    /// GETs to be sent, which keys they are of, and whether each has an ASKING before it.
    packed: Vec<u8>,
    asked: Vec<(usize, bool)>,
}

impl Shard {
    fn new(url: String, client: Client, marker: Option<String>) -> Self {
        let (packed, asked) = (Vec::new(), Vec::new());
        Self { url, client, connection: None, marker, packed, asked }
    }

    /// Whether this key says that the server's table is loaded.
    pub(super) fn is_marker(&self, key: &[u8]) -> bool {
        self.marker.as_ref().is_some_and(|marker| marker.as_bytes() == key)
    }

    fn add(&mut self, at: usize, name: &[u8], is_asking: bool) {
        self.asked.push((at, is_asking));
        if is_asking {
            redis::cmd("ASKING").write_packed_command(&mut self.packed);
        }
        redis::cmd("GET").arg(name).write_packed_command(&mut self.packed);
    }

    fn clear(&mut self) {
        self.asked.clear();
        self.packed.clear();
    }

    /// Sends what was added, and puts each answer where it belongs.
    fn ask<V>(
        &mut self,
        by: usize,
        config: &RedisConfig,
        decode: &impl Fn(&[u8]) -> Result<V>,
        found: &mut [Option<Result<Option<V>>>],
        redirected: &mut Vec<RedirectedKey>,
    ) {
        config.gets.fetch_add(self.asked.len() as u64, Ordering::Relaxed);
        match self.exchange(config) {
            Ok(values) => {
                for (&(at, _), value) in self.asked.iter().zip(values) {
                    match self.read(value, decode) {
                        ServerReply::Value(value) => found[at] = Some(value),
                        ServerReply::Elsewhere { slot, address, is_ask } => {
                            redirected.push(RedirectedKey { at, slot, address, by, is_ask });
                        }
                    }
                }
            }
            Err(error) => {
                self.connection = None;
                for &(at, _) in &self.asked {
                    let copy = Error::new(error.kind(), error.message());
                    found[at] = Some(Err(copy.with("server", &self.url)));
                }
            }
        }
        self.clear();
    }

    fn exchange(&mut self, config: &RedisConfig) -> Result<Vec<Value>> {
        self.be_connected(config)?;
        let connection = self.connection.as_mut().expect("just made sure of");
        connection.send_packed_command(&self.packed).map_err(of_redis)?;
        // Not `req_packed_commands`, which waits once more for each answer after one that does not come.
        let mut values = Vec::with_capacity(self.asked.len());
        for &(_, is_asking) in &self.asked {
            if is_asking {
                connection.recv_response().map_err(of_redis)?;
            }
            values.push(connection.recv_response().map_err(of_redis)?);
        }
        Ok(values)
    }

    fn be_connected(&mut self, config: &RedisConfig) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(self.connect(config)?);
        }
        Ok(())
    }

    fn connect(&self, config: &RedisConfig) -> Result<Connection> {
        let connected = self.client.get_connection_with_timeout(config.connect_within);
        let mut connection = connected.map_err(of_redis)?;
        connection.set_read_timeout(Some(config.answer_within)).map_err(of_redis)?;
        connection.set_write_timeout(Some(config.answer_within)).map_err(of_redis)?;
        if let Some(marker) = &self.marker {
            match redis::cmd("EXISTS").arg(marker).query::<bool>(&mut connection) {
                Ok(true) => {}
                Ok(false) => {
                    let message = format!("the table is not loaded: there is no key {marker:?}");
                    return Err(Error::new(ErrorKind::Io, message));
                }
                // Its slot is elsewhere now.
                Err(error) if error.redirect_node().is_some() => {}
                Err(error) => return Err(of_redis(error)),
            }
        }
        Ok(connection)
    }

    /// Asks the server something on its connection, which is made anew after an error.
    pub(super) fn query<R>(
        &mut self,
        config: &RedisConfig,
        ask: impl FnOnce(&mut Connection) -> redis::RedisResult<R>,
    ) -> Result<R> {
        self.be_connected(config)?;
        let connection = self.connection.as_mut().expect("just made sure of");
        ask(connection).map_err(|error| {
            self.connection = None;
            of_redis(error).with("server", &self.url)
        })
    }

    fn read<V>(&self, value: Value, decode: &impl Fn(&[u8]) -> Result<V>) -> ServerReply<V> {
        let read = match value {
            Value::Nil => return ServerReply::Value(Ok(None)),
            Value::BulkString(bytes) => decode(&bytes).map(Some),
            Value::ServerError(error) => {
                let error = RedisError::from(error);
                let is_ask = error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::Ask);
                if let Some((address, slot)) = error.redirect_node() {
                    return ServerReply::Elsewhere { slot, address: address.to_owned(), is_ask };
                }
                Err(of_redis(error))
            }
            other => {
                let message = format!("Redis answered a GET with {other:?}");
                Err(Error::new(ErrorKind::Mismatch, message))
            }
        };
        ServerReply::Value(read.map_err(|error| error.with("server", &self.url)))
    }
}

/// What a server has answered.
enum ServerReply<V> {
    Value(Result<Option<V>>),
    Elsewhere { slot: u16, address: String, is_ask: bool },
}
