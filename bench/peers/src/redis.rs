//! Redis as the Gadget paper's discussion has it: a server of its own on the same machine, one connection over
//! a Unix socket. Writes are pipelined: their replies are read with that of the next read.
//!
//! The server is started in the cell's directory and ended with it. How much of the time was the network is
//! told: the round trips of the run, at the time of an empty one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use alluvium_gadget::engine::{Directory, Engine, Kind, Open, See, Visit};
use alluvium_gadget::{Error, Result};

const NOTE: &str = "server of its own, one connection over a Unix socket, writes pipelined up to the next read; \
                    nothing is persisted; ranges by an ordered set of keys beside it; processor time and memory of \
                    the row are the client's, and the report says what the server's are and what of the time is \
                    the network";
const WHY: &str = "redis-server is not installed; apt install redis-server";

/// Bytes of commands after which they are sent.
const SENT_AT_BYTES: usize = 16 << 10;
/// Replies that may wait, so that neither side fills the socket.
const REPLIES_MAX: u64 = 512;
/// How long the server may take to start.
const START: Duration = Duration::from_secs(10);
/// Empty round trips that are measured.
const PINGS: usize = 1000;

pub(super) fn kinds() -> Vec<Kind> {
    let Some(version) = version() else { return vec![Kind::missing("redis", WHY)] };
    vec![crate::kind("redis", version, NOTE, 16, |open| Ok(Box::new(Redis::open(open)?)))]
}

/// That of the server, if there is one.
fn version() -> Option<String> {
    let told = Command::new("redis-server").arg("--version").stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    Some(text.split_whitespace().find_map(|word| word.strip_prefix("v="))?.to_owned())
}

/// A server, ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already is waited for all the same.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Redis {
    /// Commands that are not sent yet.
    commands: Vec<u8>,
    /// Replies that were not read yet.
    waiting: u64,
    replies: BufReader<UnixStream>,
    stream: UnixStream,
    value: Vec<u8>,
    round_trips: u64,
    ping: Duration,
    keys: Directory,
    /// Ended after the connection.
    _server: Server,
}

/// A reply of the server.
enum Reply {
    /// A value is in the buffer.
    Value,
    None,
    Done,
}

impl Redis {
    fn open(open: &Open) -> Result<Self> {
        let socket = open.directory.join("redis.sock");
        let server = start(&open.directory, &socket, open.memory_bytes)?;
        let stream = connect(&socket)?;
        let replies = BufReader::with_capacity(64 << 10, stream.try_clone().map_err(failed)?);
        let mut redis = Redis {
            commands: Vec::new(),
            waiting: 0,
            replies,
            stream,
            value: Vec::new(),
            round_trips: 0,
            ping: Duration::ZERO,
            keys: Directory::new(open.ranges()),
            _server: server,
        };
        (redis.ping, redis.round_trips) = (redis.ping()?, 0);
        Ok(redis)
    }

    /// Measures the median of empty round trips.
    fn ping(&mut self) -> Result<Duration> {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let began = Instant::now();
            self.add(&[b"PING"]);
            self.read()?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times[PINGS / 2])
    }

    /// Adds a command to the pipeline.
    fn add(&mut self, words: &[&[u8]]) {
        // Writing to a vector cannot fail.
        let _ = write!(self.commands, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.commands, "${}\r\n", word.len());
            self.commands.extend_from_slice(word);
            self.commands.extend_from_slice(b"\r\n");
        }
        self.waiting += 1;
    }

    /// Adds one whose reply nobody waits for, and sends them when they are many.
    fn queue(&mut self, words: &[&[u8]]) -> Result<()> {
        self.add(words);
        if self.commands.len() >= SENT_AT_BYTES {
            self.send()?;
        }
        if self.waiting >= REPLIES_MAX { self.settle() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.commands).map_err(failed)?;
        self.commands.clear();
        Ok(())
    }

    /// Reads all replies that wait.
    fn settle(&mut self) -> Result<()> {
        if self.waiting > 0 {
            self.read()?;
        }
        Ok(())
    }

    /// Reads all replies that wait; returns the last.
    fn read(&mut self) -> Result<Reply> {
        self.send()?;
        self.round_trips += 1;
        let mut last = Reply::Done;
        while self.waiting > 0 {
            self.waiting -= 1;
            last = self.reply()?;
        }
        Ok(last)
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = Vec::new();
        self.replies.read_until(b'\n', &mut line).map_err(failed)?;
        let text = String::from_utf8_lossy(&line);
        match (text.chars().next(), text.get(1..).map(str::trim)) {
            (Some('+' | ':'), _) => Ok(Reply::Done),
            (Some('$'), Some("-1")) => Ok(Reply::None),
            (Some('$'), Some(bytes)) => {
                let bytes: usize = bytes.parse().map_err(|_| refused(&text))?;
                self.value.resize(bytes + 2, 0);
                self.replies.read_exact(&mut self.value).map_err(failed)?;
                self.value.truncate(bytes);
                Ok(Reply::Value)
            }
            (None, _) => Err(Error::Engine("redis: the server has ended".to_owned())),
            _ => Err(refused(&text)),
        }
    }

    /// What the server says of itself.
    fn info(&mut self, name: &str) -> Result<Option<String>> {
        self.settle()?;
        self.add(&[b"INFO"]);
        let Reply::Value = self.read()? else { return Ok(None) };
        let text = String::from_utf8_lossy(&self.value).into_owned();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(found.map(|found| found.trim().to_owned()))
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::Engine(format!("redis: {error}"))
}

fn refused(text: &str) -> Error {
    Error::Engine(format!("redis: {}", text.trim()))
}

fn start(directory: &Path, socket: &Path, memory_bytes: u64) -> Result<Server> {
    let memory = memory_bytes.to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    command.args(["--maxmemory", &memory, "--maxmemory-policy", "noeviction"]);
    command.arg("--unixsocket").arg(socket).arg("--dir").arg(directory);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.map(Server).map_err(failed)
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if began.elapsed() > START => return Err(failed(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

impl Engine for Redis {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        self.add(&[b"GET", key]);
        let reply = self.read()?;
        see(matches!(reply, Reply::Value).then_some(&self.value[..]));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keys.insert(key);
        self.queue(&[b"SET", key, value])
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.keys.insert(key);
        self.queue(&[b"APPEND", key, operand])
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keys.remove(key);
        self.queue(&[b"DEL", key])
    }

    /// All values in one round trip for each hundred keys.
    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let keys: Vec<Vec<u8>> = self.keys.range(from, to).map(<[u8]>::to_vec).collect();
        self.settle()?;
        for some in keys.chunks(100) {
            some.iter().for_each(|key| self.add(&[b"GET", key]));
            self.send()?;
            self.round_trips += 1;
            for key in some {
                self.waiting -= 1;
                if let Reply::Value = self.reply()? {
                    visit(key, &self.value);
                }
            }
        }
        Ok(())
    }

    fn remark(&mut self) -> Result<Option<String>> {
        self.settle()?;
        let trips = self.round_trips;
        // The lesser of before and after the run: the machine may have been busy at one of them.
        let ping = self.ping.min(self.ping()?);
        let network = ping.as_secs_f64() * trips as f64;
        let memory = self.info("used_memory_human")?.unwrap_or_default();
        let user = self.info("used_cpu_user")?.unwrap_or_default();
        let system = self.info("used_cpu_sys")?.unwrap_or_default();
        Ok(Some(format!(
            "{trips} round trips; an empty one takes {:.1} us (median), so that {network:.2} s were the network; \
             the server has {memory}, and took {user} s of processor time and {system} s in the kernel",
            ping.as_secs_f64() * 1e6
        )))
    }
}
