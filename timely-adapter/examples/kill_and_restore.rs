//! Counts words on two workers with a checkpoint every 1,000 lines, is killed three times on the way,
//! and goes on each time, with another number of workers; then compares the counts with those of a run
//! that was left alone.
//!
//! `cargo run -p alluvium-timely --example kill_and_restore`

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium::{Error, StoreConfig, Time};
use alluvium_timely::{Counting, JobCheckpoints, KeyBy, Rolling, Spec, Turn, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};

const LINES: u64 = 20_000;
/// Lines between two checkpoints.
const EVERY: u64 = 1_000;
const WORDS: [&str; 7] = ["to", "be", "or", "not", "the", "question", "is"];

/// The input: a line per number, which can be read again from any place on.
fn line(number: u64) -> String {
    // The last ones have every word, so that every count is said once more at the end.
    let words = (0..3).map(|at| WORDS[((number * (at + 3)) % 7) as usize]);
    if number < LINES - 10 { words.collect::<Vec<_>>().join(" ") } else { WORDS.join(" ") }
}

/// When a line was written. Some have the same time, and times never fall.
fn time_of(number: u64) -> Time {
    Time((number / 5).cast_signed())
}

/// Counts the words of all lines on so many workers in `directory`, from the last checkpoint there on.
/// Gives the counts and the line that it began at.
fn count(
    directory: &Path,
    workers: u64,
    slowly: bool,
) -> alluvium::Result<(BTreeMap<String, i64>, u64)> {
    let store = StoreConfig { directory: Some(directory.into()), ..StoreConfig::default() };
    let config = timely::Config::process(workers as usize);
    let parts = execute(config, store.into(), move |worker, state| {
        let probe = ProbeHandle::new();
        let (told, counts) = std::sync::mpsc::channel();
        let input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, lines) = scope.new_input::<String>();
            lines
                .flat_map(|line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
                .key_by(state, String::clone)
                .rolling(Spec::new("words"), Counting)?
                .inspect(move |(change, _, diff)| {
                    if *diff > 0 {
                        let _ = told.send(change.clone());
                    }
                })
                .probe_with(&probe);
            Ok::<_, Error>(input)
        })?;
        // Of all workers' lines each reads every so manieth. The least that one of the workers at the
        // checkpoint had not read is the first that none had: from there on, whoever reads.
        let mine = state.index() as u64;
        let unread =
            state.restored().and_then(|all| all.workers.iter().map(|w| w.position[0]).min());
        let unread = unread.unwrap_or(0);
        let begin = unread + (mine + workers - unread % workers) % workers;
        let (mut next, mut asked) = (begin, begin);
        let mut checkpoints = JobCheckpoints::new(state, probe)?;
        let mut input = checkpoints.input(input);
        loop {
            if mine == 0 && next >= asked + EVERY {
                asked = next;
                checkpoints.request();
            }
            match checkpoints.turn(next >= LINES)? {
                Turn::Go if next < LINES => {
                    input.send(time_of(next), line(next))?;
                    next += workers;
                    input.advance_to(time_of(next))?;
                }
                Turn::Go | Turn::Wait => {}
                Turn::Until(until) => {
                    while next < LINES && time_of(next) < until {
                        input.send(time_of(next), line(next))?;
                        next += workers;
                    }
                    input.advance_to(until)?;
                }
                Turn::Seal { .. } => checkpoints.seal(&[next])?,
                Turn::End(_) => break,
            }
            state.step_or_nap(worker, Duration::from_micros(50))?;
            if slowly {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        input.close();
        while worker.has_dataflows() {
            state.step(worker)?;
        }
        Ok((counts.into_iter().collect::<BTreeMap<_, _>>(), begin))
    })?;
    let begin = parts.iter().map(|part| part.1).min().unwrap_or(0);
    Ok((parts.into_iter().flat_map(|part| part.0).collect(), begin))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This program started again, to be killed.
    if let (Some(directory), Some(workers)) = (std::env::args().nth(1), std::env::args().nth(2)) {
        count(Path::new(&directory), workers.parse()?, true)?;
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let (whole, _) = count(&place.path().join("whole"), 2, false)?;
    let directory = place.path().join("killed");
    let record = directory.join("COMMITTED");
    for workers in [2, 3, 1] {
        let written = || std::fs::read(&record).ok();
        let before = written();
        let exe = std::env::current_exe()?;
        let mut child = Command::new(exe)
            .arg(&directory)
            .arg(workers.to_string())
            .stdin(Stdio::null())
            .spawn()?;
        // Until it has made a checkpoint, and is somewhere after it.
        let begin = Instant::now();
        while written() == before && child.try_wait()?.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "there is no checkpoint");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(15));
        child.kill()?;
        child.wait()?;
        println!("killed with {workers} workers");
    }
    let (counts, begin) = count(&directory, 2, false)?;
    println!("went on at line {begin} of {LINES}");
    for (word, count) in &counts {
        println!("{count:>6} {word}");
    }
    assert!(begin > 0, "it went on");
    assert_eq!(counts, whole, "as if nothing had happened");
    println!("the counts are those of a run that was left alone");
    Ok(())
}
