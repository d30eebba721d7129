//! A proxy before a Redis server that passes everything on after a delay, in either direction half of it.
//!
//! A delay is no limit of throughput: what comes while other bytes wait is passed on so much later too.
//! A delay is never shorter than it should be, and longer by what a sleeping thread wakes late.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

/// A proxy on a port of the loopback; ends with this.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Of one direction, in nanoseconds.
    delay: AtomicU64,
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts one before the server on port `upstream`, with a delay of a round trip.
    ///
    /// # Errors
    /// There is no port.
    pub fn start(upstream: u16, delay: Duration) -> Result<Self> {
        Self::start_on(0, upstream, delay)
    }

    /// The same on this port.
    ///
    /// # Errors
    /// The port is in use.
    pub fn start_on(port: u16, upstream: u16, delay: Duration) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            delay: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let accepted = shared.clone();
        let accepting = Some(thread::spawn(move || accept(&listener, upstream, &accepted)));
        let proxy = Self { port, shared, accepting };
        proxy.set_delay(delay);
        Ok(proxy)
    }

    /// Delays what comes from now on by so much a round trip.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay.store((delay / 2).as_nanos() as u64, Ordering::Relaxed);
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, for Redis's client.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in self.shared.streams.lock().expect("no thread panics").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, upstream: u16, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        // Without an upstream the client finds its connection closed.
        let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let both = [(&client, &server), (&server, &client)];
        for (from, to) in both {
            if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
                pass_on(from, to, shared.clone());
            }
        }
        shared.streams.lock().expect("no thread panics").extend([client, server]);
    }
}

/// Bytes, and when they are to go on.
type Due = (Instant, Vec<u8>);

/// Passes on what comes, on threads of its own, until either side closes.
fn pass_on(mut from: TcpStream, to: TcpStream, shared: Arc<Shared>) {
    let (sender, receiver) = channel::<Due>();
    thread::spawn(move || {
        let mut buffer = [0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            let delay = Duration::from_nanos(shared.delay.load(Ordering::Relaxed));
            if sender.send((Instant::now() + delay, buffer[..bytes].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || write_when_due(&receiver, to));
}

fn write_when_due(receiver: &Receiver<Due>, mut to: TcpStream) {
    while let Ok((due, bytes)) = receiver.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
