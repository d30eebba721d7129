//! A job is killed again and again and goes on with another number of workers; now and then its servers are
//! killed too. The results in Redis are those of a run that was left alone: each view counts once.

use std::process::{Command, Stdio};
use std::time::Duration;

use alluvium_ysb::cell::load;
use alluvium_ysb::event::Events;
use alluvium_ysb::oracle::{difference, recount};
use alluvium_ysb::server::{Listen, Options, Server, installed};
use alluvium_ysb::sink;

const EVENTS: Events = Events { seed: 5, ads: 1_000, zipf: 0.0, rate: 1_000, count: 300_000 };

#[test]
fn each_view_counts_once_whatever_is_killed() {
    if installed().is_none() {
        println!("skipped: redis-server is not installed");
        return;
    }
    let mut table = Server::start(Options::durable(Listen::Socket)).unwrap();
    load(&table, &EVENTS, 0..16384).unwrap();
    let mut results = Server::start(Options::durable(Listen::Socket)).unwrap();
    let place = tempfile::tempdir().unwrap();
    let (table_url, results_url) = (table.url().to_owned(), results.url().to_owned());
    let start = |workers: usize, nap_us: u64| {
        Command::new(env!("CARGO_BIN_EXE_alluvium-ysb"))
            .args(["job", "--seed", "5", "--events", "300000", "--rate", "1000"])
            .args(["--checkpoint-every", "6000"])
            .args(["--table", &table_url, "--results", &results_url])
            .args(["--workers", &workers.to_string(), "--nap-us", &nap_us.to_string()])
            .arg("--directory")
            .arg(place.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let record = place.path().join("state/COMMITTED");
    let (mut killed, mut after_a_checkpoint) = (0, 0);
    for (workers, wait_ms) in [(2, 700), (1, 1_100), (3, 900), (2, 1_300)] {
        let mut child = start(workers, 3_000);
        let before = std::fs::read(&record).ok();
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_secs(20) && child.try_wait().unwrap().is_none() {
            let is_later = std::fs::read(&record).ok() != before;
            if is_later || begin.elapsed() > Duration::from_millis(wait_ms) * 8 {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(wait_ms % 90));
        if child.try_wait().unwrap().is_none() {
            killed += 1;
            after_a_checkpoint += u32::from(record.exists());
        }
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(killed >= 3 && after_a_checkpoint >= 2, "{killed} and {after_a_checkpoint}");
    let shown = sink::answers(results.url()).unwrap();
    let expected = recount(&EVENTS);
    assert!(!shown.is_empty() && shown.len() < expected.len(), "{} are visible", shown.len());
    // What is visible before the end is right, too.
    assert!(shown.iter().all(|(key, views)| expected.get(key) == Some(views)));
    let child = start(2, 0);
    std::thread::sleep(Duration::from_millis(300));
    table.kill().unwrap();
    results.kill().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    table.restart().unwrap();
    results.restart().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(difference(&expected, &sink::answers(results.url()).unwrap()), None);
    println!("killed {killed} times, {after_a_checkpoint} of them after a checkpoint");
}
