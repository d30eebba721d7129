//! A job is killed again and again and goes on with another number of workers; now and then its servers are
//! killed too. The results in Redis are those of a run that was left alone: each view counts once. So it is
//! while key groups move between the workers, and with them the slots of a Redis Cluster.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use alluvium_ysb::cell::{cluster, load};
use alluvium_ysb::event::Events;
use alluvium_ysb::job::slot_ends;
use alluvium_ysb::oracle::{difference, recount};
use alluvium_ysb::server::{Listen, Options, Server, installed};
use alluvium_ysb::sink;

const EVENTS: Events =
    Events { seed: 5, ads: 1_000, zipf: 0.0, rate: 1_000, count: 300_000, is_skewed: false };

/// One at a time: each has several processes.
static TURN: Mutex<()> = Mutex::new(());

/// A job in a directory, on servers that outlive it.
struct Job {
    place: tempfile::TempDir,
    results: Server,
    tables: Vec<String>,
    more: &'static [&'static str],
}

impl Job {
    fn new(tables: Vec<String>, more: &'static [&'static str]) -> Self {
        let results = Server::start(Options::durable(Listen::Socket)).unwrap();
        Self { place: tempfile::tempdir().unwrap(), results, tables, more }
    }

    fn start(&self, workers: usize, nap_us: u64) -> Child {
        Command::new(env!("CARGO_BIN_EXE_alluvium-ysb"))
            .args(["job", "--seed", "5", "--events", "300000", "--rate", "1000"])
            .args(["--checkpoint-every", "6000"])
            .args(["--table", &self.tables.join(","), "--results", self.results.url()])
            .args(["--workers", &workers.to_string(), "--nap-us", &nap_us.to_string()])
            .args(self.more)
            .arg("--directory")
            .arg(self.place.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn record(&self) -> PathBuf {
        self.place.path().join("state/COMMITTED")
    }

    /// Runs it until a checkpoint is committed, or for a while, and kills it then. Says whether it was there to
    /// be killed, and had a checkpoint.
    fn kill_one(&self, workers: usize, wait_ms: u64) -> (bool, bool) {
        let mut child = self.start(workers, 3_000);
        let before = std::fs::read(self.record()).ok();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) && child.try_wait().unwrap().is_none() {
            let is_later = std::fs::read(self.record()).ok() != before;
            if is_later || begin.elapsed() > Duration::from_millis(wait_ms) * 8 {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(wait_ms % 90));
        let is_there = child.try_wait().unwrap().is_none();
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(is_there || output.status.success(), "{words}");
        (is_there, is_there && self.record().exists())
    }

    /// What is visible is right, though not all of it is there.
    fn check_part(&self, killed: &[(bool, bool)]) {
        let count = |is: fn(&(bool, bool)) -> bool| killed.iter().filter(|one| is(one)).count();
        let (there, after_a_checkpoint) = (count(|one| one.0), count(|one| one.1));
        assert!(there >= 3 && after_a_checkpoint >= 2, "{there} and {after_a_checkpoint}");
        let (shown, expected) = (sink::answers(self.results.url()).unwrap(), recount(&EVENTS));
        assert!(!shown.is_empty() && shown.len() < expected.len(), "{} are visible", shown.len());
        assert!(shown.iter().all(|(key, views)| expected.get(key) == Some(views)));
        println!("killed {there} times, {after_a_checkpoint} of them after a checkpoint");
    }

    fn finish(&self, child: Child) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(
            difference(&recount(&EVENTS), &sink::answers(self.results.url()).unwrap()),
            None
        );
    }
}

#[test]
fn each_view_counts_once_whatever_is_killed() {
    let _turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
    if installed().is_none() {
        println!("skipped: redis-server is not installed");
        return;
    }
    let mut table = Server::start(Options::durable(Listen::Socket)).unwrap();
    load(&table, &EVENTS, 0..16384).unwrap();
    let mut job = Job::new(vec![table.url().to_owned()], &[]);
    let killed = [(2, 700), (1, 1_100), (3, 900), (2, 1_300)];
    job.check_part(&killed.map(|(workers, wait_ms)| job.kill_one(workers, wait_ms)));
    let child = job.start(2, 0);
    std::thread::sleep(Duration::from_millis(300));
    table.kill().unwrap();
    job.results.kill().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    table.restart().unwrap();
    job.results.restart().unwrap();
    job.finish(child);
}

#[test]
fn each_view_counts_once_while_key_groups_and_slots_move() {
    let _turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
    if installed().is_none() {
        println!("skipped: redis-server is not installed");
        return;
    }
    let durable = Options::durable(Listen::Loopback);
    let mut servers = cluster(&slot_ends(3), durable, true, &EVENTS).unwrap();
    let keys = |servers: &[Server]| -> Vec<u64> {
        servers.iter().map(|server| server.query(&redis::cmd("DBSIZE")).unwrap()).collect()
    };
    let loaded = keys(&servers);
    let urls = servers.iter().map(|server| server.url().to_owned()).collect();
    let job = Job::new(urls, &["--moves-every", "700"]);
    let killed = [(3, 700), (3, 1_100), (2, 900), (3, 1_300)];
    job.check_part(&killed.map(|(workers, wait_ms)| job.kill_one(workers, wait_ms)));
    // Now servers die while slots move from and to them, and come back with what they had.
    let child = job.start(3, 1_000);
    for nth in [1, 0, 2] {
        std::thread::sleep(Duration::from_millis(400));
        servers[nth].kill().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        servers[nth].restart().unwrap();
    }
    job.finish(child);
    // Each key is on one server: none was lost, and none left behind. And they are not where they were.
    let left = keys(&servers);
    assert_eq!(left.iter().sum::<u64>(), loaded.iter().sum::<u64>());
    assert_ne!(left, loaded);
}
