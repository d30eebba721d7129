//! Connections between the processes of a group: one JSON message per line.
//!
//! Each process says every [`PULSE`] that it is there. One that says nothing for [`SILENCE`], or
//! whose connection ends before it has said how its run ended, is lost, which is a fault.

use std::io::{BufRead, BufReader, ErrorKind as Silent, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use alluvium::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::meeting::WorkerSaid;
use super::{WorkerGroup, locked};

/// How often a process says that it is there.
const PULSE: Duration = Duration::from_secs(1);
/// A process that is silent for so long is lost: its machine is off, or the network is.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// How long a message may take to leave.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a process that is done waits for the others to hang up.
const FAREWELL: Duration = Duration::from_secs(5);

/// What processes tell each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum GroupMessage {
    /// Nothing new.
    Alive,
    /// All workers of the sender are at a meeting.
    Met { number: u64, said: Vec<WorkerSaid> },
    /// Workers of the sender ask for the checkpoint of this number.
    Asked { checkpoint: u64 },
    /// A worker of the sender sends nothing before this time.
    Stands { worker: usize, at: i64 },
    /// The job of a worker of the sender has returned, after so many meetings.
    Returned { worker: usize, meetings: u64 },
    /// The run has failed.
    Failed(ProcessFailure),
    /// All workers of the sender have ended well.
    Done,
}

/// A fault and the process that it happened in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProcessFailure {
    pub(super) process: usize,
    pub(super) address: String,
    pub(super) kind: ErrorKind,
    pub(super) text: String,
}

/// The connections to all other processes.
pub(crate) struct Links {
    process: usize,
    addresses: Vec<String>,
    links: Vec<Link>,
    silence: Duration,
    /// No pulse is needed any more.
    over: AtomicBool,
}

struct Link {
    process: usize,
    writer: Mutex<TcpStream>,
    /// The other process has said how its run ended.
    ended: AtomicBool,
    /// Nothing comes any more.
    closed: AtomicBool,
}

impl Links {
    /// Links over `streams`, which have one for each process but this one; one that is silent for
    /// `silence` is lost.
    ///
    /// # Errors
    /// The system refuses an option.
    pub(crate) fn new(
        process: usize,
        addresses: &[String],
        streams: &[Option<TcpStream>],
        silence: Duration,
    ) -> Result<Self> {
        let mut links = Vec::new();
        for (other, stream) in streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let failed = |error| Error::io("use a connection to", &addresses[other], error);
            stream.set_read_timeout(Some(silence)).map_err(failed)?;
            stream.set_write_timeout(Some(WRITE_PATIENCE)).map_err(failed)?;
            links.push(Link {
                process: other,
                writer: Mutex::new(stream.try_clone().map_err(failed)?),
                ended: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            });
        }
        let (addresses, over) = (addresses.to_vec(), AtomicBool::new(false));
        Ok(Self { process, addresses, links, silence, over })
    }

    /// Tells all other processes. One that cannot be told is found to be lost by who listens.
    pub(super) fn tell(&self, message: &GroupMessage) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        for link in &self.links {
            let _ = locked(&link.writer).write_all(&line);
        }
    }

    /// A fault of this process.
    pub(super) fn failed_here(&self, error: &Error) -> ProcessFailure {
        ProcessFailure {
            process: self.process,
            address: self.addresses[self.process].clone(),
            kind: error.kind(),
            text: error.to_string(),
        }
    }

    fn lost(&self, link: &Link, why: impl Into<String>) -> Error {
        let place = format!("{} at {}", link.process, self.addresses[link.process]);
        let message = format!("process {place} disconnected before its end");
        Error::new(ErrorKind::PeerLost, message).caused_by(why.into())
    }
}

/// A group that is connected, with the threads that listen and keep up the pulse.
pub(crate) struct Connected {
    group: Arc<WorkerGroup>,
    threads: Vec<JoinHandle<()>>,
}

impl Connected {
    /// Begins to listen to the links of `group`; `streams` are theirs.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(group: &Arc<WorkerGroup>, streams: Vec<Option<TcpStream>>) -> Result<Self> {
        let mut connected = Self { group: group.clone(), threads: Vec::new() };
        for (at, stream) in streams.into_iter().flatten().enumerate() {
            connected.spawn(&format!("group-{at}"), move |group| listen(group, at, stream))?;
        }
        connected.spawn("group-pulse", pulse)?;
        Ok(connected)
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(&WorkerGroup) + Send + 'static,
    ) -> Result<()> {
        let group = self.group.clone();
        let thread = std::thread::Builder::new().name(format!("alluvium:{name}"));
        let started = thread.spawn(move || work(&group));
        self.threads.push(started.map_err(|e| Error::io("start a thread", name, e))?);
        Ok(())
    }

    /// Says how the run ended here and, if it ended well, waits until it has for all others or
    /// there is a fault after all. Then hangs up.
    pub(crate) fn finish(self) {
        let group = &self.group;
        let Some(links) = group.links.get() else { return };
        let all = |flag: fn(&Link) -> &AtomicBool| {
            links.links.iter().all(|link| flag(link).load(Ordering::Acquire))
        };
        if group.fault().is_none() {
            links.tell(&GroupMessage::Done);
            group.wait_until(None, || group.fault().is_some() || all(|link| &link.ended));
        }
        // What was told last is on its way; hanging up at once could make the system drop it.
        for link in &links.links {
            let _ = locked(&link.writer).shutdown(Shutdown::Write);
        }
        group.wait_until(Some(Instant::now() + FAREWELL), || all(|link| &link.closed));
        links.over.store(true, Ordering::Release);
        group.changed.notify_all();
        for link in &links.links {
            let _ = locked(&link.writer).shutdown(Shutdown::Both);
        }
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Hears what another process says until it hangs up.
fn listen(group: &WorkerGroup, at: usize, stream: TcpStream) {
    let Some(links) = group.links.get() else { return };
    let link = &links.links[at];
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        let why = match lines.read_line(&mut line) {
            Ok(0) => "the connection ended".to_owned(),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(message) => {
                    hear(group, link, message);
                    continue;
                }
                Err(error) => format!("it says what is no message: {error}"),
            },
            Err(error) if matches!(error.kind(), Silent::WouldBlock | Silent::TimedOut) => {
                format!("it said nothing for {} s", links.silence.as_secs_f64())
            }
            Err(error) => error.to_string(),
        };
        if !link.ended.load(Ordering::Acquire) {
            group.fail(links.lost(link, why));
        }
        link.closed.store(true, Ordering::Release);
        return group.wake();
    }
}

fn hear(group: &WorkerGroup, link: &Link, message: GroupMessage) {
    match message {
        GroupMessage::Alive => {}
        GroupMessage::Met { number, said } => group.met_elsewhere(number, said),
        GroupMessage::Asked { checkpoint } => group.asked_elsewhere(checkpoint),
        GroupMessage::Stands { worker, at } => group.stands.note(worker, at),
        GroupMessage::Returned { worker, meetings } => group.note_returned(worker, meetings),
        GroupMessage::Failed(failed) => {
            link.ended.store(true, Ordering::Release);
            group.fail_elsewhere(failed);
        }
        GroupMessage::Done => {
            link.ended.store(true, Ordering::Release);
            group.wake();
        }
    }
}

/// Says that this process is there.
fn pulse(group: &WorkerGroup) {
    let Some(links) = group.links.get() else { return };
    let over = || links.over.load(Ordering::Acquire);
    while !group.wait_until(Some(Instant::now() + PULSE), over) {
        links.tell(&GroupMessage::Alive);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A group of two processes of which this is the first, and the other's end of their link.
    fn group(silence: Duration) -> (Arc<WorkerGroup>, Connected, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (there, _) = listener.accept().unwrap();
        let addresses = ["here:1", "there:2"].map(str::to_owned);
        let (group, streams) = (Arc::new(WorkerGroup::new(1, 2)), vec![None, Some(here)]);
        group.attach(Links::new(0, &addresses, &streams, silence).unwrap());
        let connected = Connected::start(&group, streams).unwrap();
        (group, connected, there)
    }

    fn fault(group: &WorkerGroup) -> String {
        assert!(group.await_fault(Duration::from_secs(20)), "no fault");
        group.fault().map(Error::to_string).unwrap_or_default()
    }

    const PATIENT: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_that_says_nothing_is_lost() {
        let (group, connected, there) = group(Duration::from_millis(100));
        let lost = "process 1 at there:2 disconnected before its end: it said nothing for 0.1 s";
        assert_eq!(fault(&group), lost);
        drop(there);
        connected.finish();
    }

    #[test]
    fn what_is_no_message_or_the_end_of_all_messages_is_a_loss() {
        let (first, connected, mut there) = group(PATIENT);
        there.write_all(b"\"Alive\"\nGET / HTTP/1.1\n").unwrap();
        assert!(fault(&first).contains("it says what is no message"), "{}", fault(&first));
        drop(there);
        connected.finish();
        let (second, connected, there) = group(PATIENT);
        drop(there);
        assert!(fault(&second).ends_with("the connection ended"), "{}", fault(&second));
        connected.finish();
    }

    #[test]
    fn the_first_fault_is_told_once_and_who_has_said_the_end_may_go() {
        let (first, connected, there) = group(PATIENT);
        first.fail(Error::new(ErrorKind::Input, "one"));
        first.fail(Error::new(ErrorKind::Input, "two"));
        let mut lines = BufReader::new(there).lines().map(std::result::Result::unwrap);
        let told = lines.find(|line| !line.contains("Alive")).unwrap();
        let failed = r#"{"Failed":{"process":0,"address":"here:1","kind":"Input","text":"one"}}"#;
        assert_eq!(told, failed);
        let rest = std::thread::spawn(move || lines.filter(|line| !line.contains("Alive")).count());
        connected.finish();
        assert_eq!(rest.join().unwrap(), 0);
        let (second, connected, mut there) = group(PATIENT);
        there.write_all(b"\"Done\"\n").unwrap();
        drop(there);
        connected.finish();
        assert!(second.fault().is_none());
    }
}
