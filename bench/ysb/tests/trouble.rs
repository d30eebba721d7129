//! What becomes of a run whose Redis is not there, dies, restarts empty, is slow or has something else: an
//! error in words, or the results of a run that was left alone. Without redis-server each test says so.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use alluvium_timely::RedisConfig;
use alluvium_ysb::cell::{Cell, LOADED, TablePlace, load, port_of};
use alluvium_ysb::event::{Events, write_uuid};
use alluvium_ysb::job::{Figures, Job, Placement, Remote, run};
use alluvium_ysb::oracle::{Answers, difference, recount};
use alluvium_ysb::proxy::Proxy;
use alluvium_ysb::server::{Listen, Options, PATIENCE, Server, connection, installed};
use alluvium_ysb::{Result, sink};

const EVENTS: Events =
    Events { seed: 11, ads: 1_000, zipf: 0.0, rate: 1_000, count: 40_000, is_skewed: false };

/// Two at a time: each has several threads and servers, but waits most of its time.
static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

fn turn(of: usize) -> MutexGuard<'static, ()> {
    TURNS[of].lock().unwrap_or_else(|poison| poison.into_inner())
}

fn may_run() -> bool {
    let is_there = installed().is_some();
    if !is_there {
        println!("skipped: redis-server is not installed");
    }
    is_there
}

/// A table, results and what runs over them.
struct Setup {
    table: Server,
    results: Server,
    directory: tempfile::TempDir,
    patience: Duration,
    /// To connect, and to answer.
    within: Duration,
    nap: Duration,
    /// Instead of the table's own address.
    url: Option<String>,
}

impl Setup {
    fn new(table: Options) -> Self {
        let table = Server::start(table).unwrap();
        load(&table, &EVENTS, 0..16384).unwrap();
        let results = Server::start(Options::durable(Listen::Socket)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (patience, within) = (Duration::from_secs(20), Duration::from_millis(300));
        let nap = Duration::from_millis(20);
        Self { table, results, directory, patience, within, nap, url: None }
    }

    fn job(&self) -> Job {
        let url = self.url.clone().unwrap_or_else(|| self.table.url().to_owned());
        let config = RedisConfig::new(url).pipeline(16).requires(LOADED);
        let config = config.within(self.within, self.within);
        Job {
            events: EVENTS,
            placement: Placement::Redis(Remote {
                tables: vec![config],
                cache: None,
                asked_max: 64,
                patience: Some(self.patience),
            }),
            is_by_slot: false,
            workers: 2,
            directory: self.directory.path().join("state"),
            results: self.results.url().to_owned(),
            checkpoint_every: 4_000,
            batch: 500,
            under_way: 4,
            nap: self.nap,
            moves_every: 0,
        }
    }

    /// Runs the job, and has `accident` happen while it does.
    fn run_with(&mut self, accident: impl FnOnce(&mut Self)) -> Result<Figures> {
        let job = self.job();
        let running = std::thread::spawn(move || run(&job));
        std::thread::sleep(Duration::from_millis(300));
        accident(self);
        running.join().expect("no panic")
    }

    fn answers(&self) -> Answers {
        sink::answers(self.results.url()).unwrap()
    }

    /// The results are those of a run that was left alone.
    fn check(&self) {
        assert_eq!(difference(&recount(&EVENTS), &self.answers()), None);
    }
}

#[test]
fn results_are_those_of_an_undisturbed_run_whatever_dies_in_the_middle() {
    let _turn = turn(0);
    if !may_run() {
        return;
    }
    // The table's server dies, and comes back with what it had.
    let mut setup = Setup::new(Options::durable(Listen::Loopback));
    setup
        .run_with(|setup| {
            setup.table.kill().unwrap();
            std::thread::sleep(Duration::from_millis(200));
            setup.table.restart().unwrap();
        })
        .unwrap();
    setup.check();
    // It comes back empty: it is waited for until it is loaded again.
    let mut setup = Setup::new(Options::volatile(Listen::Loopback));
    setup
        .run_with(|setup| {
            setup.table.kill().unwrap();
            setup.table.restart().unwrap();
            std::thread::sleep(Duration::from_millis(300));
            load(&setup.table, &EVENTS, 0..16384).unwrap();
        })
        .unwrap();
    setup.check();
    // It answers nothing for longer than the client waits.
    let mut setup = Setup::new(Options::volatile(Listen::Socket));
    setup
        .run_with(|setup| {
            setup.table.pause(true).unwrap();
            std::thread::sleep(Duration::from_millis(900));
            setup.table.pause(false).unwrap();
        })
        .unwrap();
    setup.check();
}

#[test]
fn a_proxy_or_the_results_may_die_and_come_back() {
    let _turn = turn(0);
    if !may_run() {
        return;
    }
    let mut setup = Setup::new(Options::volatile(Listen::Loopback));
    let upstream = port_of(&setup.table).unwrap();
    let proxy = Proxy::start(upstream, Duration::from_micros(300)).unwrap();
    let port = proxy.port();
    setup.url = Some(proxy.url());
    let mut again = None;
    setup
        .run_with(|_| {
            drop(proxy);
            std::thread::sleep(Duration::from_millis(100));
            again = Some(Proxy::start_on(port, upstream, Duration::ZERO).unwrap());
        })
        .unwrap();
    setup.check();
    drop(again);
    let mut setup = Setup::new(Options::volatile(Listen::Socket));
    setup
        .run_with(|setup| {
            for _ in 0..3 {
                setup.results.kill().unwrap();
                std::thread::sleep(Duration::from_millis(150));
                setup.results.restart().unwrap();
                std::thread::sleep(Duration::from_millis(250));
            }
        })
        .unwrap();
    setup.check();
}

#[test]
fn a_table_that_is_not_there_ends_the_run_in_words() {
    let _turn = turn(1);
    if !may_run() {
        return;
    }
    // Nobody is there.
    let mut setup = Setup::new(Options::volatile(Listen::Loopback));
    setup.patience = Duration::from_secs(5);
    // With less, a slow machine would be told that the server does not answer.
    setup.within = Duration::from_secs(2);
    setup.table.kill().unwrap();
    let begin = Instant::now();
    let failed = words(run(&setup.job()));
    assert!(failed.contains("refused") && begin.elapsed() < Duration::from_secs(60), "{failed}");
    // It has restarted empty, and stays so.
    setup.table.restart().unwrap();
    let failed = words(run(&setup.job()));
    assert!(failed.contains("the table is not loaded"), "{failed}");
}

fn words(failed: Result<Figures>) -> String {
    failed.expect_err("it fails").to_string()
}

#[test]
fn what_does_not_pass_ends_the_run_in_words() {
    let _turn = turn(0);
    if !may_run() {
        return;
    }
    // It hangs.
    let mut setup = Setup::new(Options::volatile(Listen::Loopback));
    setup.patience = Duration::from_millis(400);
    // The job takes 4 s at the least, so that the server hangs before it ends.
    setup.nap = Duration::from_millis(100);
    let failed = words(setup.run_with(|setup| setup.table.pause(true).unwrap()));
    assert!(failed.contains("has not answered") || failed.contains("Redis"), "{failed}");
    setup.table.pause(false).unwrap();
    setup.patience = Duration::from_secs(20);
    setup.within = Duration::from_secs(2);
    setup.nap = Duration::from_millis(20);
    // A key is a list.
    let mut name = Vec::new();
    write_uuid(EVENTS.ad(17), &mut name);
    setup.table.query::<()>(redis::cmd("DEL").arg(&name)).unwrap();
    setup.table.query::<()>(redis::cmd("RPUSH").arg(&name).arg("a list")).unwrap();
    let failed = words(run(&setup.job()));
    assert!(failed.contains("WRONGTYPE"), "{failed}");
    // A value is no campaign.
    setup.table.query::<()>(redis::cmd("SET").arg(&name).arg("what is this")).unwrap();
    let failed = words(run(&setup.job()));
    assert!(failed.contains("is no campaign"), "{failed}");
    // A port is in use.
    let port = port_of(&setup.table).unwrap();
    let failed = Server::start(Options::volatile(Listen::Port(port))).unwrap_err().to_string();
    assert!(failed.contains("Address already in use"), "{failed}");
    assert!(Proxy::start_on(port, port, Duration::ZERO).is_err());
}

#[test]
fn a_key_that_is_missing_has_no_views() {
    let _turn = turn(0);
    if !may_run() {
        return;
    }
    let setup = Setup::new(Options::volatile(Listen::Socket));
    let mut name = Vec::new();
    write_uuid(EVENTS.ad(17), &mut name);
    setup.table.query::<()>(redis::cmd("DEL").arg(&name)).unwrap();
    run(&setup.job()).unwrap();
    let (found, whole) = (setup.answers(), recount(&EVENTS));
    let mut missing: i64 = 0;
    for ((campaign, window), views) in &whole {
        let less = views - found.get(&(*campaign, *window)).copied().unwrap_or_default();
        assert!(less == 0 || *campaign == EVENTS.campaign(17), "another campaign lost {less}");
        missing += less;
    }
    let views = (0..EVENTS.count).map(|number| EVENTS.event(number));
    let views = views.filter(|event| event.ad == EVENTS.ad(17) && event.kind == 0).count();
    assert!(missing as usize == views && views > 0, "{missing} of {views}");
}

/// What is left of servers in a directory.
fn left(place: &Path) -> usize {
    std::fs::read_dir(place).unwrap().count()
}

/// Whether this process ignores what Ctrl-C sends, as far as the system tells.
fn interrupts_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 2 > 0)
}

#[test]
fn nothing_is_left_behind_also_by_a_run_that_is_killed() {
    let _turn = turn(0);
    if !may_run() {
        return;
    }
    let server = Server::start(Options::volatile(Listen::Loopback)).unwrap();
    let (directory, url) = (server.directory().to_owned(), server.url().to_owned());
    assert!(directory.exists() && connection(&url, PATIENCE).is_ok());
    drop(server);
    assert!(!directory.exists() && connection(&url, PATIENCE).is_err());
    let cell = ["cell", "--place", "delayed", "--delay-us", "1000", "--events", "1000000"];
    let out = tempfile::tempdir().unwrap();
    let suite = ["suite", "--rounds", "9", "--out", out.path().to_str().unwrap()];
    // A suite is told to end while one of its runs has servers; the run hears of it.
    for (arguments, signal) in
        [(&cell[..], "KILL"), (&cell, "INT"), (&suite, "KILL"), (&suite, "TERM")]
    {
        // Where a shell runs the tests in the background, they and what they start ignore it.
        let signal = if signal == "INT" && interrupts_are_ignored() { "TERM" } else { signal };
        let place = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_alluvium-ysb"))
            .args(arguments)
            .env("TMPDIR", place.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        until(|| left(place.path()) >= 1, "there are no servers");
        std::thread::sleep(Duration::from_millis(300));
        let kill = ["-s", signal, &child.id().to_string()].map(str::to_owned);
        assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
        child.wait().unwrap();
        until(|| left(place.path()) == 0, "servers are left");
    }
}

fn until(is_so: impl Fn() -> bool, otherwise: &str) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{otherwise}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_machine_without_redis_gets_a_row_that_says_so() {
    let (out, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_alluvium-ysb"))
        .args(["suite", "--smoke", "--out"])
        .arg(out.path())
        .env("PATH", empty.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    let report = std::fs::read_to_string(out.path().join("report.md")).unwrap();
    assert!(report.contains("redis-server is not installed"), "{report}");
}

#[test]
fn every_placement_gives_the_recount() {
    let _turn = turn(1);
    if !may_run() {
        return;
    }
    for (place, workers, pipeline, cache_bytes, skew, moves_every) in [
        (TablePlace::Shared, 2, 1, 0, false, 0),
        (TablePlace::Partitioned, 3, 1, 0, false, 0),
        (TablePlace::Partitioned, 3, 1, 0, true, 300),
        (TablePlace::Socket, 1, 1, 0, true, 0),
        (TablePlace::Loopback, 3, 32, 0, false, 0),
        (TablePlace::Delayed, 1, 16, 1 << 14, false, 0),
        (TablePlace::Shards, 3, 16, 0, false, 0),
        (TablePlace::SlotShards, 3, 16, 0, false, 0),
        (TablePlace::SlotShards, 3, 16, 0, true, 400),
        (TablePlace::SlotShards, 2, 8, 1 << 20, false, 500),
        (TablePlace::Replicas, 2, 8, 0, false, 0),
    ] {
        let cell = Cell {
            place,
            workers,
            delay_us: 200,
            pipeline,
            cache_bytes,
            events: 9_000,
            zipf: 0.8,
            rate: 300,
            seed: 3,
            skew,
            moves_every,
            ..Cell::default()
        };
        let (figures, served) = cell.run().unwrap_or_else(|error| panic!("{cell:?}: {error}"));
        let views = (0..9_000).filter(|&n| views_of(&cell).event(n).kind == 0).count() as u64;
        assert_eq!(figures.joined, views, "{cell:?}");
        // The servers count as many GETs as were sent. How many rows find their ad in the cache depends on
        // when answers come: on a busy machine all rows of an ad may wait for one answer.
        assert_eq!(figures.gets, served, "{cell:?}");
        assert!(cache_bytes > 0 || figures.cached == 0, "{cell:?}");
    }
}

fn views_of(cell: &Cell) -> Events {
    let Cell { seed, ads, zipf, rate, events: count, skew: is_skewed, .. } = *cell;
    Events { seed, ads, zipf, rate, count, is_skewed }
}
