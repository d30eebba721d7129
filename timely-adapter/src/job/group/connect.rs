//! How the processes of a group find each other: two connections between each two of them, one
//! for Timely's data and one for the group.
//!
//! A process calls those before it in the list of addresses and is called by those behind it. Both
//! ends of a connection say first who they are and what they believe of the group, so that
//! processes that were started with different options refuse each other by name. Timely's own way
//! waits for ever and takes whoever calls at their word.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use alluvium::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(50);
/// How long a caller may take to say who it is.
const CALLER_PATIENCE: Duration = Duration::from_secs(5);
/// The longest that a caller may say who it is.
const HELLO_BYTES_MAX: usize = 1 << 10;
/// What begins a hello.
const MAGIC: &str = "alluvium group 1";

/// What the processes of a group have to agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) processes: usize,
    /// Workers of each process.
    pub(crate) threads: usize,
    pub(crate) key_groups: u16,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Purpose {
    Data,
    Group,
}

/// How a connection begins, in both directions: one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    magic: String,
    process: usize,
    purpose: Purpose,
    terms: Terms,
}

/// Connections to all processes; `None` to this one.
#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) data: Vec<Option<TcpStream>>,
    pub(crate) group: Vec<Option<TcpStream>>,
}

/// Connects process `process` with all others.
///
/// # Errors
/// [`ErrorKind::PeerLost`] naming a process that has not come `within`, [`ErrorKind::Mismatch`]
/// naming one that was started with other terms, [`ErrorKind::Io`] if the own address cannot be
/// listened at.
pub(crate) fn connect(
    process: usize,
    addresses: &[String],
    terms: &Terms,
    within: Duration,
) -> Result<Mesh> {
    let meeting =
        Connecting { process, addresses, terms, deadline: Instant::now() + within, within };
    let mut mesh = Mesh { data: none(addresses.len()), group: none(addresses.len()) };
    // Callers wait in the listener's queue while this process calls others.
    let listener = match process + 1 < addresses.len() {
        true => Some(meeting.listen()?),
        false => None,
    };
    for other in 0..process {
        mesh.data[other] = Some(meeting.call(other, Purpose::Data)?);
        mesh.group[other] = Some(meeting.call(other, Purpose::Group)?);
    }
    if let Some(listener) = listener {
        meeting.answer(&listener, &mut mesh)?;
    }
    Ok(mesh)
}

fn none(processes: usize) -> Vec<Option<TcpStream>> {
    (0..processes).map(|_| None).collect()
}

struct Connecting<'a> {
    process: usize,
    addresses: &'a [String],
    terms: &'a Terms,
    deadline: Instant,
    within: Duration,
}

impl Connecting<'_> {
    fn hello(&self, purpose: Purpose) -> Hello {
        let (magic, terms) = (MAGIC.to_owned(), self.terms.clone());
        Hello { magic, process: self.process, purpose, terms }
    }

    fn place(&self, process: usize) -> String {
        format!("process {process} at {}", self.addresses[process])
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The error for a process that has not come.
    fn absent(&self, process: usize) -> Error {
        let (place, seconds) = (self.place(process), self.within.as_secs_f64());
        let message = format!("{place} did not connect within {seconds} s");
        Error::new(ErrorKind::PeerLost, message)
    }

    fn listen(&self) -> Result<TcpListener> {
        let address = &self.addresses[self.process];
        let failed = |error| Error::io("listen at", address, error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Calls a process until it answers.
    fn call(&self, other: usize, purpose: Purpose) -> Result<TcpStream> {
        loop {
            let refused = match self.call_once(other, purpose) {
                Ok((stream, answer)) => {
                    self.agree(&answer, other)?;
                    return Ok(stream);
                }
                Err(refused) => refused,
            };
            if self.left().is_zero() {
                return Err(self.absent(other).caused_by(refused));
            }
            std::thread::sleep(RETRY.min(self.left()));
        }
    }

    fn call_once(&self, other: usize, purpose: Purpose) -> std::io::Result<(TcpStream, Hello)> {
        let left = || self.left().max(RETRY);
        let mut refused = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for address in self.addresses[other].to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left().min(CALLER_PATIENCE)) {
                Ok(mut stream) => {
                    say(&mut stream, &self.hello(purpose), CALLER_PATIENCE)?;
                    // It answers once it has connected with those before it.
                    let answer = hear(&mut stream, left())?;
                    return Ok((ready(stream)?, answer));
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Answers the processes behind this one until all have called.
    fn answer(&self, listener: &TcpListener, mesh: &mut Mesh) -> Result<()> {
        loop {
            let behind = self.process + 1..self.addresses.len();
            let missing =
                |other: &usize| mesh.data[*other].is_none() || mesh.group[*other].is_none();
            let Some(absent) = behind.clone().find(missing) else { return Ok(()) };
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if self.left().is_zero() {
                        return Err(self.absent(absent));
                    }
                    std::thread::sleep(RETRY.min(self.left()));
                    continue;
                }
                Err(error) => {
                    return Err(Error::io("listen at", &self.addresses[self.process], error));
                }
            };
            // Whoever is no process of a group is not spoken to.
            let greeted = stream.set_nonblocking(false);
            let Ok(hello) = greeted.and_then(|()| hear(&mut stream, CALLER_PATIENCE)) else {
                continue;
            };
            // An answer that does not arrive is missed by the caller, who calls again.
            let answered = say(&mut stream, &self.hello(hello.purpose), CALLER_PATIENCE);
            if !behind.contains(&hello.process) {
                let (caller, here) = (hello.process, self.process);
                let message = format!("a process {caller} has called process {here}");
                return Err(Error::new(ErrorKind::Mismatch, message));
            }
            self.agree(&hello, hello.process)?;
            let Ok(stream) = answered.and_then(|()| ready(stream)) else { continue };
            let place = match hello.purpose {
                Purpose::Data => &mut mesh.data[hello.process],
                Purpose::Group => &mut mesh.group[hello.process],
            };
            if place.replace(stream).is_some() {
                let message = format!("two processes say that they are process {}", hello.process);
                return Err(Error::new(ErrorKind::Mismatch, message));
            }
        }
    }

    /// Whether what a process says of itself and the group is what is believed here.
    fn agree(&self, hello: &Hello, process: usize) -> Result<()> {
        let refused = |message| Err(Error::new(ErrorKind::Mismatch, message));
        if hello.process != process {
            let place = self.place(process);
            return refused(format!("{place} says that it is process {}", hello.process));
        }
        let (here, there) = (self.terms, &hello.terms);
        if here != there {
            let words = |terms: &Terms| {
                let Terms { processes, threads, key_groups } = terms;
                format!("{processes} processes of {threads} workers, {key_groups} key groups")
            };
            let place = self.place(process);
            return refused(format!("{place} has {}; here are {}", words(there), words(here)));
        }
        Ok(())
    }
}

fn say(stream: &mut TcpStream, hello: &Hello, patience: Duration) -> std::io::Result<()> {
    stream.set_write_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(hello)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads one hello and nothing behind it, which is not ours.
fn hear(stream: &mut TcpStream, patience: Duration) -> std::io::Result<Hello> {
    stream.set_read_timeout(Some(patience))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') && line.len() < HELLO_BYTES_MAX {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let hello: Hello = serde_json::from_slice(&line)?;
    match hello.magic == MAGIC {
        true => Ok(hello),
        false => Err(std::io::Error::from(std::io::ErrorKind::InvalidData)),
    }
}

/// A connection as Timely expects it.
fn ready(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}
