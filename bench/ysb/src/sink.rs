//! Window results in Redis, each once, whatever is killed.
//!
//! Rows of a checkpoint are first written as a *part*, a list that nobody reads. A script adds the part to
//! the results and removes it in one step, so that a part counts once however often it is tried. Parts of
//! checkpoints that do not count are removed when a run goes on. Redis has to keep what it answered
//! (`appendfsync always`), or what it forgets is lost. Every request is repeated while Redis is away, as long
//! as the sink's patience.

use std::time::{Duration, Instant};

use alluvium::{Error, ErrorKind, Result};
use alluvium_timely::{Sink, SinkWork};
use redis::{Cmd, FromRedisValue, Pipeline};

use crate::oracle::Answers;
use crate::server;

/// A server that does not answer for so long is asked again.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A campaign's views in the window that begins at a time.
pub type Row = (u128, i64, i64);

/// Names of parts that are sealed.
const PARTS: &str = "ysb:parts";
/// The last checkpoint of which parts are visible.
const VISIBLE: &str = "ysb:visible";
/// Before the name of a campaign: views by window.
const RESULT: &str = "ysb:result:";

/// Adds a part to the results, unless that was done.
const SHOW: &str = r"
if redis.call('SREM', KEYS[1], ARGV[1]) == 0 then return 0 end
local rows = redis.call('LRANGE', ARGV[1], 0, -1)
for at = 1, #rows, 3 do
    redis.call('HINCRBY', ARGV[2] .. rows[at], rows[at + 1], rows[at + 2])
end
redis.call('DEL', ARGV[1])
local visible = tonumber(redis.call('GET', KEYS[2]) or '0')
if tonumber(ARGV[3]) > visible then redis.call('SET', KEYS[2], ARGV[3]) end
return #rows / 3
";

/// One worker's sink.
#[derive(Debug)]
pub struct RedisSink {
    redis: Redis,
    /// In the names of this run's parts, so that no two parts have one name.
    run: String,
    rows: Vec<Row>,
    sealed: Vec<(u64, String)>,
    nth: u64,
}

impl RedisSink {
    /// Rows of worker `worker` go to the server at `url`.
    pub fn new(url: &str, worker: usize, patience: Duration) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let run = format!("{worker}:{}:{now}", std::process::id());
        let redis = Redis { url: url.to_owned(), patience };
        Self { redis, run, rows: Vec::new(), sealed: Vec::new(), nth: 0 }
    }
}

impl Sink<Row> for RedisSink {
    fn restore(&mut self, committed: u64) -> Result<()> {
        let visible: Option<u64> = self.redis.ask(redis::cmd("GET").arg(VISIBLE))?;
        let visible = visible.unwrap_or_default();
        if visible > committed {
            let message =
                format!("Redis shows checkpoint {visible}, the job goes on from {committed}");
            return Err(Error::new(ErrorKind::Mismatch, message));
        }
        let parts: Vec<String> = self.redis.ask(redis::cmd("SMEMBERS").arg(PARTS))?;
        for part in parts {
            let number = part.split(':').nth(2).and_then(|number| number.parse().ok());
            match number {
                Some(number) if number <= committed => self.redis.show(number, &part)?,
                _ => {
                    let mut remove = redis::pipe();
                    remove.atomic().del(&part).ignore().srem(PARTS, &part).ignore();
                    self.redis.send(&remove)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, row: &Row) -> Result<()> {
        self.rows.push(*row);
        Ok(())
    }

    fn seal(&mut self, number: u64) -> Result<SinkWork> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(Box::new(|| Ok(())));
        }
        self.nth += 1;
        let part = format!("ysb:part:{number}:{}:{}", self.run, self.nth);
        self.sealed.push((number, part.clone()));
        let redis = self.redis.clone();
        Ok(Box::new(move || {
            let mut write = redis::pipe();
            write.atomic().del(&part).ignore().sadd(PARTS, &part).ignore();
            for (campaign, window, views) in &rows {
                let words = [format!("{campaign:032x}"), window.to_string(), views.to_string()];
                write.cmd("RPUSH").arg(&part).arg(&words).ignore();
            }
            redis.send(&write)
        }))
    }

    fn commit(&mut self, number: u64) -> Result<SinkWork> {
        let (mut due, redis) = (Vec::new(), self.redis.clone());
        self.sealed.retain(|(of, part)| {
            let is_due = *of <= number;
            if is_due {
                due.push((*of, part.clone()));
            }
            !is_due
        });
        Ok(Box::new(move || due.iter().try_for_each(|(of, part)| redis.show(*of, part))))
    }
}

/// Requests that are repeated while the server is away.
#[derive(Clone, Debug)]
struct Redis {
    url: String,
    patience: Duration,
}

impl Redis {
    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.repeat(|connection| command.query(connection))
    }

    fn send(&self, pipeline: &Pipeline) -> Result<()> {
        self.repeat(|connection| pipeline.query(connection))
    }

    /// Makes a part visible.
    fn show(&self, number: u64, part: &str) -> Result<()> {
        let mut show = redis::cmd("EVAL");
        show.arg(SHOW).arg(2).arg(PARTS).arg(VISIBLE).arg(part).arg(RESULT).arg(number);
        self.ask::<i64>(&show).map(drop)
    }

    fn repeat<T>(
        &self,
        mut request: impl FnMut(&mut redis::Connection) -> redis::RedisResult<T>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            let connected = server::connection(&self.url, ANSWER_WITHIN);
            let (words, passes) = match connected {
                Err(error) => (error.to_string(), true),
                Ok(mut connection) => match request(&mut connection) {
                    Ok(done) => return Ok(done),
                    Err(error) => (format!("Redis: {error}"), is_passing(&error)),
                },
            };
            if !passes || begin.elapsed() >= self.patience {
                return Err(Error::new(ErrorKind::Io, words).with("server", &self.url));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn is_passing(error: &redis::RedisError) -> bool {
    use redis::ServerErrorKind::{BusyLoading, MasterDown, TryAgain};
    let kinds = [BusyLoading, MasterDown, TryAgain].map(redis::ErrorKind::Server);
    error.is_io_error() || error.is_unrecoverable_error() || kinds.contains(&error.kind())
}

/// All results that are visible.
///
/// # Errors
/// Those of Redis, or names that are none of ours.
pub fn answers(url: &str) -> crate::Result<Answers> {
    let mut connection = server::connection(url, server::PATIENCE)?;
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("{RESULT}*")).query(&mut connection)?;
    let mut answers = Answers::new();
    for name in names {
        let campaign = u128::from_str_radix(&name[RESULT.len()..], 16);
        let campaign = campaign.map_err(|_| crate::Error::new(format!("a result {name:?}")))?;
        let views: Vec<(i64, i64)> = redis::cmd("HGETALL").arg(&name).query(&mut connection)?;
        answers.extend(views.into_iter().map(|(window, views)| ((campaign, window), views)));
    }
    Ok(answers)
}
