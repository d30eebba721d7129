//! Counts words and writes each change of a count to files, once: a run that is killed three times on
//! the way, and goes on with another number of workers each time, leaves the rows of a run that was left
//! alone.
//!
//! `cargo run -p alluvium-timely --example exactly_once`

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium::{Error, StoreConfig, Time};
use alluvium_timely::{
    Counting, FileSink, JobCheckpoints, JobSink, KeyBy, Rolling, Spec, Turn, WriteTo,
    committed_files, execute,
};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;

const WORDS: [&str; 7] = ["to", "be", "or", "not", "the", "question", "is"];
const LINES: u64 = 20_000;
/// Lines between two checkpoints.
const EVERY: u64 = 500;

/// The input: a word per line, which can be read again from any place on.
fn line(number: u64) -> &'static str {
    WORDS[(number * number % 7) as usize]
}

/// When a line was written. Some have the same time, and times never fall.
fn time_of(number: u64) -> Time {
    Time((number / 5).cast_signed())
}

/// Does the job on so many workers, from the last checkpoint on: state in `place/state`, rows in
/// `place/rows`.
fn count(place: &Path, workers: u64, slowly: bool) -> alluvium::Result<()> {
    let (state, rows) = (place.join("state"), place.join("rows"));
    let store = StoreConfig { directory: Some(state), ..StoreConfig::default() };
    let config = timely::Config::process(workers as usize);
    execute(config, store.into(), move |worker, state| {
        // What a run before has written after its last checkpoint is cut back in here.
        let encode = |((word, count), _, diff): &((String, i64), i64, i64), out: &mut Vec<u8>| {
            out.extend_from_slice(format!("{word} {count} {diff:+}\n").as_bytes());
        };
        let sink = JobSink::open(worker, state, FileSink::new(state, &rows, encode)?)?;
        let probe = ProbeHandle::new();
        let input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, lines) = scope.new_input::<String>();
            lines
                .key_by(state, String::clone)
                .rolling(Spec::new("words"), Counting)?
                .write_to(&sink)
                .probe_with(&probe);
            Ok::<_, Error>(input)
        })?;
        let mine = state.index() as u64;
        let unread =
            state.restored().and_then(|all| all.workers.iter().map(|w| w.position[0]).min());
        let unread = unread.unwrap_or(0);
        let mut next = unread + (mine + workers - unread % workers) % workers;
        let mut asked = next;
        let mut job = JobCheckpoints::new(state, probe)?;
        let mut input = job.input(input);
        loop {
            if mine == 0 && next >= asked + EVERY {
                asked = next;
                job.request();
            }
            match job.turn(next >= LINES)? {
                Turn::Go if next < LINES => {
                    input.send(time_of(next), line(next).to_owned())?;
                    next += workers;
                    input.advance_to(time_of(next))?;
                }
                Turn::Go | Turn::Wait => {}
                Turn::Until(until) => {
                    while next < LINES && time_of(next) < until {
                        input.send(time_of(next), line(next).to_owned())?;
                        next += workers;
                    }
                    input.advance_to(until)?;
                }
                Turn::Seal { .. } => job.seal(&[next])?,
                Turn::End(_) => break,
            }
            state.step_or_nap(worker, Duration::from_micros(50))?;
            if slowly {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// The rows that count, in order.
fn rows(place: &Path) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut rows = Vec::new();
    for file in committed_files(place.join("rows"))? {
        rows.extend(std::fs::read_to_string(file.path)?.lines().map(str::to_owned));
    }
    rows.sort_unstable();
    Ok(rows)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This program started again, to be killed.
    if let (Some(place), Some(workers)) = (std::env::args().nth(1), std::env::args().nth(2)) {
        count(Path::new(&place), workers.parse()?, true)?;
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let (whole, killed) = (directory.path().join("whole"), directory.path().join("killed"));
    count(&whole, 2, false)?;
    for workers in [2, 3, 1] {
        let record = || std::fs::read(killed.join("state/COMMITTED")).ok();
        let before = record();
        let mut child = Command::new(std::env::current_exe()?)
            .arg(&killed)
            .arg(workers.to_string())
            .stdin(Stdio::null())
            .spawn()?;
        // Until it has made a checkpoint, and is somewhere after it.
        let begin = Instant::now();
        while record() == before && child.try_wait()?.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "there is no checkpoint");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(15));
        child.kill()?;
        child.wait()?;
        println!("killed with {workers} workers, {} rows count", rows(&killed)?.len());
    }
    count(&killed, 2, false)?;
    let (whole, killed) = (rows(&whole)?, rows(&killed)?);
    assert!(whole.len() as u64 > LINES && whole == killed, "as if nothing had happened");
    println!("{} rows, those of a run that was left alone", killed.len());
    Ok(())
}
