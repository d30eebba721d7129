//! A Redis server that lives no longer than whoever started it.
//!
//! A shell stands between: it starts the server, kills and starts it again as it is told, and, when its
//! standard input ends, kills it and removes its directory. That ends with this process, however it ends:
//! a server is not left behind by a run that is interrupted or killed.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Where a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// On a Unix socket in its directory.
    Socket,
    /// On a port of the loopback that was free a moment ago.
    Loopback,
    /// On this port of the loopback.
    Port(u16),
}

/// How a server runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: Listen,
    /// Whether each write is on its disk before it is answered; else nothing is, and it restarts empty.
    pub is_durable: bool,
    /// Whether it is a node of a Redis Cluster.
    pub is_cluster: bool,
}

impl Options {
    /// A server without anything on disk.
    pub fn volatile(listen: Listen) -> Self {
        Options { listen, is_durable: false, is_cluster: false }
    }

    /// A server that has what it answered after it was killed.
    pub fn durable(listen: Listen) -> Self {
        Options { listen, is_durable: true, is_cluster: false }
    }
}

/// A server; ends with this.
#[derive(Debug)]
pub struct Server {
    shell: Child,
    tell: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
    directory: PathBuf,
    url: String,
}

/// Commands come line by line; each is answered by a line.
const SHELL: &str = r#"
directory=$1; shift
trap '' INT TERM HUP
start() { "$@" >>"$directory/log" 2>&1 </dev/null & server=$!; }
start "$@"
while read -r word; do
    case $word in
        kill) kill -KILL "$server" 2>/dev/null; wait "$server" 2>/dev/null ;;
        start) start "$@" ;;
        stop) kill -STOP "$server" ;;
        go) kill -CONT "$server" ;;
        alive)
            # A dead child stays a zombie until it is waited for.
            case $(cut -d' ' -f3 "/proc/$server/stat" 2>/dev/null) in
                Z | '') echo no; continue ;;
            esac ;;
    esac
    echo yes
done
kill -KILL "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$directory"
"#;

/// How long a server may take to answer first.
const START_WITHIN: Duration = Duration::from_secs(60);

/// The version of the server that is installed, if one is.
pub fn installed() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    Some(version.to_owned())
}

impl Server {
    /// Starts a server in a directory of its own and waits until it answers.
    ///
    /// # Errors
    /// There is none installed, or it does not come up: its last words.
    pub fn start(options: Options) -> Result<Self> {
        if installed().is_none() {
            return Err(Error::new("redis-server is not installed (Debian: redis-server)"));
        }
        let directory = tempfile::Builder::new().prefix("alluvium-ysb-").tempdir()?.keep();
        let (url, port) = match options.listen {
            Listen::Socket => (format!("unix://{}", directory.join("socket").display()), 0),
            Listen::Loopback => {
                let port = free_port(options.is_cluster)?;
                (format!("redis://127.0.0.1:{port}"), port)
            }
            Listen::Port(port) => (format!("redis://127.0.0.1:{port}"), port),
        };
        let mut command = Command::new("sh");
        command.arg("-c").arg(SHELL).arg("keeper").arg(&directory).arg("redis-server");
        for (name, value) in arguments(&directory, port, options) {
            command.arg(format!("--{name}")).arg(value);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn()?;
        let tell = shell.stdin.take();
        let told = BufReader::new(shell.stdout.take().expect("it is piped"));
        let mut server = Self { shell, tell, told, directory, url };
        server.wait_until_it_answers()?;
        if options.is_cluster {
            // A second node is not asked: it has none of these slots.
            server.query::<()>(
                redis::cmd("CONFIG").arg("SET").arg("cluster-require-full-coverage").arg("no"),
            )?;
        }
        Ok(server)
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its directory, which goes with it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills the server; its address stays free for the next [`restart`](Server::restart).
    ///
    /// # Errors
    /// The shell is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.command("kill").map(drop)
    }

    /// Starts it again in its directory: empty, if it is not durable.
    ///
    /// # Errors
    /// It does not come up.
    pub fn restart(&mut self) -> Result<()> {
        self.command("start")?;
        self.wait_until_it_answers()
    }

    /// Stops it where it is, or lets it go on.
    ///
    /// # Errors
    /// The shell is gone.
    pub fn pause(&mut self, is_paused: bool) -> Result<()> {
        self.command(if is_paused { "stop" } else { "go" }).map(drop)
    }

    /// Asks it something, on a connection of its own.
    ///
    /// # Errors
    /// Those of Redis.
    pub fn query<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T> {
        Ok(command.query(&mut connection(&self.url, PATIENCE)?)?)
    }

    /// GETs that it has answered since its start: found and not found.
    ///
    /// # Errors
    /// Those of Redis.
    pub fn gets(&self) -> Result<u64> {
        let text: String = self.query(redis::cmd("INFO").arg("commandstats"))?;
        let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls="));
        let calls = calls.and_then(|rest| rest.split(',').next()?.parse().ok());
        Ok(calls.unwrap_or_default())
    }

    fn command(&mut self, word: &str) -> Result<bool> {
        let tell = self.tell.as_mut().expect("it is there until the end");
        writeln!(tell, "{word}")?;
        let mut answer = String::new();
        self.told.read_line(&mut answer)?;
        Ok(answer.trim() == "yes")
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let is_alive = self.command("alive")?;
            if self.is_this() {
                return Ok(());
            }
            if !is_alive || begin.elapsed() > START_WITHIN {
                let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let warnings = log.lines().filter_map(|line| Some(line.split_once(" # ")?.1));
                let warnings: Vec<_> = warnings.collect();
                let words = warnings[warnings.len().saturating_sub(2)..].join("; ");
                return Err(Error::new(format!("redis-server does not come up: {words}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Server {
    /// Whether it answers. On a port that was in use another one does.
    fn is_this(&self) -> bool {
        let directory = redis::cmd("CONFIG").arg("GET").arg("dir").to_owned();
        let found = self.query::<Vec<String>>(&directory).unwrap_or_default();
        found.get(1).is_some_and(|found| Path::new(found) == self.directory)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The shell's input ends.
        self.tell = None;
        let _ = self.shell.wait();
    }
}

/// A connection whose calls fail after `within`.
///
/// # Errors
/// Those of Redis.
pub fn connection(url: &str, within: Duration) -> Result<redis::Connection> {
    let connection = redis::Client::open(url)?.get_connection_with_timeout(within)?;
    connection.set_read_timeout(Some(within))?;
    connection.set_write_timeout(Some(within))?;
    Ok(connection)
}

/// For what is not repeated if it fails: longer than a slow disk needs for a sync.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A free port; of a cluster's node, the one 10,000 above has to be free too.
fn free_port(is_cluster: bool) -> Result<u16> {
    for _ in 0..100 {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let bus = port.checked_add(10_000);
        let is_fit = bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok());
        if !is_cluster || is_fit {
            return Ok(port);
        }
    }
    Err(Error::new("no port of the loopback is free for a node of a cluster"))
}

fn arguments(directory: &Path, port: u16, options: Options) -> Vec<(&'static str, String)> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let mut arguments = vec![
        ("dir", directory.display().to_string()),
        ("bind", "127.0.0.1".to_owned()),
        ("port", port.to_string()),
        ("save", String::new()),
        ("appendonly", yes(options.is_durable)),
        ("appendfsync", "always".to_owned()),
    ];
    if port == 0 {
        arguments.push(("unixsocket", directory.join("socket").display().to_string()));
    }
    if options.is_cluster {
        arguments.push(("cluster-enabled", yes(true)));
        arguments.push(("cluster-config-file", "nodes.conf".to_owned()));
    }
    arguments
}
