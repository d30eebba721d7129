//! One run of one placement: servers, the job, the check of its answers.

use std::time::Duration;

use alluvium_timely::RedisConfig;
use serde::{Deserialize, Serialize};

use crate::event::{Events, write_uuid};
use crate::job::{Ad, Figures, Job, Placement, Remote, run, slot_ends};
use crate::oracle::{difference, recount};
use crate::proxy::Proxy;
use crate::server::{Listen, Options, PATIENCE, Server, connection};
use crate::{Error, Result, sink};

/// The key that says that a server's table is loaded.
pub const LOADED: &str = "ysb:loaded";

/// Where the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TablePlace {
    /// In the process, whole, shared by the workers.
    Shared,
    /// In the process, divided as the stream is.
    Partitioned,
    /// In Redis on a Unix socket.
    Socket,
    /// In Redis on the loopback.
    Loopback,
    /// In Redis behind a proxy with a delay.
    Delayed,
    /// In a Redis Cluster of one shard a worker, its delayed; each worker asks all of them.
    Shards,
    /// The same, and the stream divided by slots: each worker asks its own shard, without the delay.
    SlotShards,
    /// A whole table in a Redis for each worker.
    Replicas,
}

/// What to run.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct Cell {
    /// Where the table of ads is.
    #[arg(long, value_enum)]
    pub place: TablePlace,
    /// Operator instances.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Delay of a round trip, where one is injected, in microseconds.
    #[arg(long, default_value_t = 0)]
    pub delay_us: u64,
    /// GETs sent before their answers are waited for; 1 is one after the other.
    #[arg(long, default_value_t = 1)]
    pub pipeline: usize,
    /// Bytes of a cache in front of Redis; 0 is none.
    #[arg(long, default_value_t = 0)]
    pub cache_bytes: u64,
    /// How long the cache keeps an answer, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    pub ttl_ms: u64,
    /// Events.
    #[arg(long, default_value_t = 300_000)]
    pub events: u64,
    /// Ads of all 100 campaigns.
    #[arg(long, default_value_t = 1_000)]
    pub ads: u64,
    /// Exponent of the ads' Zipf distribution; 0 is uniform, as in the original.
    #[arg(long, default_value_t = 0.0)]
    pub zipf: f64,
    /// Events a second of event time.
    #[arg(long, default_value_t = 10_000)]
    pub rate: u64,
    /// Of the generator.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Times are skewed and some events late, as the original's generator can make them.
    #[arg(long)]
    pub skew: bool,
    /// A key group of the join and its part of the table move to another worker each time so many events have
    /// come; 0 is never. For tables that are divided as the stream is.
    #[arg(long, default_value_t = 0)]
    pub moves_every: u64,
    /// Marks the second of two runs of the same, by which the noise is seen.
    #[arg(long)]
    pub again: bool,
}

impl Default for Cell {
    fn default() -> Self {
        Self {
            place: TablePlace::Shared,
            workers: 1,
            delay_us: 0,
            pipeline: 1,
            cache_bytes: 0,
            ttl_ms: 10_000,
            events: 300_000,
            ads: 1_000,
            zipf: 0.0,
            rate: 10_000,
            seed: 7,
            skew: false,
            moves_every: 0,
            again: false,
        }
    }
}

/// What a run of a cell gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What was run.
    pub cell: Cell,
    /// Its figures; none if it failed.
    pub figures: Option<Figures>,
    /// GETs that the servers counted.
    pub served: u64,
    /// Why there are none.
    pub why: Option<String>,
}

/// A server of the table, and the proxy before it.
#[derive(Debug)]
struct Table {
    server: Server,
    proxy: Option<Proxy>,
}

impl Table {
    fn url(&self) -> String {
        self.proxy.as_ref().map_or_else(|| self.server.url().to_owned(), Proxy::url)
    }
}

impl Cell {
    fn events(&self) -> Events {
        let Cell { seed, ads, zipf, rate, events: count, .. } = *self;
        Events { seed, ads, zipf, rate, count, is_skewed: self.skew }
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us)
    }

    /// What to type to run it again.
    pub fn command(&self) -> String {
        let place = serde_json::to_string(&self.place).unwrap_or_default();
        let mut text = format!("alluvium-ysb cell --place {}", place.trim_matches('"'));
        let numbers: [(&str, u64, u64); 10] = [
            ("workers", self.workers as u64, 1),
            ("delay-us", self.delay_us, 0),
            ("pipeline", self.pipeline as u64, 1),
            ("cache-bytes", self.cache_bytes, 0),
            ("ttl-ms", self.ttl_ms, 10_000),
            ("events", self.events, 300_000),
            ("ads", self.ads, 1_000),
            ("rate", self.rate, 10_000),
            ("seed", self.seed, 7),
            ("moves-every", self.moves_every, 0),
        ];
        for (name, value, default) in numbers {
            if value != default {
                text.push_str(&format!(" --{name} {value}"));
            }
        }
        if self.zipf != 0.0 {
            text.push_str(&format!(" --zipf {}", self.zipf));
        }
        let flags = [(self.skew, " --skew"), (self.again, " --again")];
        flags.iter().filter(|(is_set, _)| *is_set).for_each(|(_, flag)| text.push_str(flag));
        text
    }

    /// Servers of the table, loaded.
    fn tables(&self) -> Result<Vec<Table>> {
        let volatile = |listen| Options::volatile(listen);
        let (options, count, is_delayed) = match self.place {
            TablePlace::Shared | TablePlace::Partitioned => return Ok(Vec::new()),
            TablePlace::Socket => (volatile(Listen::Socket), 1, false),
            TablePlace::Loopback => (volatile(Listen::Loopback), 1, false),
            TablePlace::Delayed => (volatile(Listen::Loopback), 1, true),
            TablePlace::Replicas => (volatile(Listen::Loopback), self.workers, false),
            TablePlace::Shards | TablePlace::SlotShards => {
                let options = Options { is_cluster: true, ..volatile(Listen::Loopback) };
                (options, self.workers, self.place == TablePlace::Shards)
            }
        };
        let events = self.events();
        let ends = match options.is_cluster {
            true => slot_ends(self.workers),
            false => vec![16384; count],
        };
        if options.is_cluster {
            let servers = cluster(&ends, options, self.moves_every > 0, &events)?;
            return servers.into_iter().map(|server| self.table(server, is_delayed)).collect();
        }
        let mut tables = Vec::new();
        for end in ends {
            let server = Server::start(options)?;
            load(&server, &events, 0..end)?;
            tables.push(self.table(server, is_delayed)?);
        }
        Ok(tables)
    }

    fn table(&self, server: Server, is_delayed: bool) -> Result<Table> {
        let proxy = match is_delayed {
            true => Some(Proxy::start(port_of(&server)?, self.delay())?),
            false => None,
        };
        Ok(Table { server, proxy })
    }

    fn placement(&self, tables: &[Table]) -> Result<Placement> {
        // No server is paused here. What a busy machine answers late is not asked twice.
        let asked = |config: RedisConfig| {
            config.pipeline(self.pipeline).requires(LOADED).within(PATIENCE, PATIENCE)
        };
        let configs = match self.place {
            TablePlace::Shared => return Ok(Placement::Shared),
            TablePlace::Partitioned => return Ok(Placement::Partitioned),
            TablePlace::Shards | TablePlace::SlotShards => {
                let urls = tables.iter().map(Table::url);
                let all = asked(RedisConfig::sharded(urls.zip(slot_ends(self.workers)).collect())?);
                match self.moves_every {
                    0 => vec![all],
                    _ => (0..self.workers).map(|own| all.clone().brings_slots_to(own)).collect(),
                }
            }
            _ => tables.iter().map(|table| asked(RedisConfig::new(table.url()))).collect(),
        };
        let ttl = Duration::from_millis(self.ttl_ms);
        Ok(Placement::Redis(Remote {
            tables: configs,
            cache: (self.cache_bytes > 0).then_some((self.cache_bytes, ttl)),
            asked_max: 256.max(self.pipeline),
            patience: Some(Duration::from_secs(60)),
        }))
    }

    /// Runs it, and checks its answers.
    ///
    /// # Errors
    /// A server does not come up, the job fails, or an answer is wrong.
    pub fn run(&self) -> Result<(Figures, u64)> {
        self.check()?;
        let tables = self.tables()?;
        let results = Server::start(Options::durable(Listen::Socket))?;
        let before: u64 = tables.iter().map(|table| table.server.gets()).sum::<Result<u64>>()?;
        let figures = run(&Job {
            events: self.events(),
            placement: self.placement(&tables)?,
            is_by_slot: self.place == TablePlace::SlotShards,
            workers: self.workers,
            // Goes with the server, also if this process is killed.
            directory: results.directory().join("state"),
            results: results.url().to_owned(),
            checkpoint_every: 0,
            batch: 1_000,
            under_way: 8,
            nap: Duration::ZERO,
            moves_every: self.moves_every,
        })?;
        let served = tables.iter().map(|table| table.server.gets()).sum::<Result<u64>>()? - before;
        let found = sink::answers(results.url())?;
        let wrong = difference(&recount(&self.events()), &found);
        wrong.map_or(Ok((figures, served)), |wrong| Err(Error::new(format!("wrong: {wrong}"))))
    }

    fn check(&self) -> Result<()> {
        let is_whole = self.ads >= 100 && self.ads % 100 == 0;
        if !is_whole || self.events == 0 || self.rate == 0 || self.workers == 0 || self.zipf < 0.0 {
            let words = "ads are a multiple of 100, events, rate and workers are not 0, zipf is not negative";
            return Err(Error::new(words));
        }
        if self.moves_every > 0
            && !matches!(self.place, TablePlace::Partitioned | TablePlace::SlotShards)
        {
            return Err(Error::new("only a table that is divided as the stream is moves with it"));
        }
        Ok(())
    }
}

/// Port of a server on the loopback.
///
/// # Errors
/// It is on a socket.
pub fn port_of(server: &Server) -> Result<u16> {
    let port = server.url().rsplit(':').next().and_then(|port| port.parse().ok());
    port.ok_or_else(|| Error::new("a server on a socket has no port"))
}

/// Nodes of a Redis Cluster whose slots end at these, loaded. They do not know each other; if slots are to move
/// between them, each serves all, and has the keys of its own.
///
/// # Errors
/// They do not come up.
pub fn cluster(
    ends: &[u16],
    options: Options,
    serve_all: bool,
    events: &Events,
) -> Result<Vec<Server>> {
    let (mut servers, mut begin) = (Vec::new(), 0);
    for &end in ends {
        let server = Server::start(Options { is_cluster: true, ..options })?;
        let slots = if serve_all { 0..16384 } else { begin..end };
        take_slots(&server, slots.start, slots.end)?;
        load(&server, events, begin..end)?;
        begin = end;
        servers.push(server);
    }
    Ok(servers)
}

/// Waits until a node says all of this of its cluster.
fn wait_for(server: &Server, words: &[&str]) -> Result<()> {
    for _ in 0..1_000 {
        let info: String = server.query(redis::cmd("CLUSTER").arg("INFO"))?;
        if words.iter().all(|word| info.lines().any(|line| line.trim() == *word)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Error::new("a node of the cluster does not find the others, or does not serve its slots"))
}

/// Gives a node its slots, and waits until it serves them.
fn take_slots(server: &Server, begin: u16, end: u16) -> Result<()> {
    let mut take = redis::cmd("CLUSTER");
    take.arg("ADDSLOTSRANGE").arg(begin).arg(end - 1);
    server.query::<()>(&take)?;
    wait_for(server, &["cluster_state:ok"])
}

/// Loads the ads whose slots are among these, then the key that says so.
///
/// # Errors
/// Those of Redis.
pub fn load(server: &Server, events: &Events, slots: std::ops::Range<u16>) -> Result<()> {
    let mut connection = connection(server.url(), PATIENCE)?;
    let text = |id| {
        let mut text = Vec::new();
        write_uuid(id, &mut text);
        text
    };
    let ads: Vec<u64> = (0..events.ads)
        .filter(|&ad| slots.contains(&((Ad::new(events.ad(ad), true).hash() >> 50) as u16)))
        .collect();
    for ads in ads.chunks(1_000) {
        let mut pipe = redis::pipe();
        for &ad in ads {
            pipe.cmd("SET").arg(text(events.ad(ad))).arg(text(events.campaign(ad))).ignore();
        }
        pipe.query::<()>(&mut connection)?;
    }
    let marker = RedisConfig::marker_of(LOADED, slots);
    redis::cmd("SET").arg(marker).arg(1).query::<()>(&mut connection)?;
    Ok(())
}
