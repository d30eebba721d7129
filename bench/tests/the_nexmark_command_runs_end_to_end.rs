//! `alluvium-bench nexmark` as a user calls it: options, files, errors, checkpoint and kill.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use alluvium_bench::input::export;
use alluvium_bench::nexmark::{Config, Generator, Stride};
use serde_json::Value;

fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-bench"));
    command.arg("nexmark").stdin(Stdio::null());
    command
}

fn run(options: &str) -> Output {
    let memory = if options.contains("--memory") { "" } else { " --memory 64MiB" };
    let options = format!("{options}{memory}");
    bench().args(options.split_whitespace()).output().expect("the program starts")
}

/// Runs and gives the report.
fn report(dir: &Path, options: &str) -> Value {
    let json = dir.join("report.json");
    let output = run(&format!("{options} --json {}", json.display()));
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(json).expect("a report")).expect("JSON")
}

fn refusal(options: &str) -> String {
    let output = run(options);
    assert!(!output.status.success(), "{options}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

type Row = Vec<String>;

/// Header and rows of a CSV file.
fn csv_rows(path: &Path) -> (Row, Vec<Row>) {
    let mut reader = csv::Reader::from_path(path).expect("a file");
    let row = |record: csv::StringRecord| record.iter().map(str::to_owned).collect::<Row>();
    let header = row(reader.headers().expect("a header").clone());
    let mut rows: Vec<_> = reader.records().map(|record| row(record.expect("a row"))).collect();
    rows.sort();
    (header, rows)
}

#[test]
fn results_are_those_of_the_changes_on_all_workers_layouts_and_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let events = || Generator::new(Config::default(), Stride::ALL).unwrap().take(30_000);
    export(&path("input"), events()).unwrap();
    for (query, columns) in [
        ("q0", "auction bidder price date_time extra"),
        ("q1", "auction bidder price date_time extra"),
        ("q2", "auction price"),
        ("q3", "name city state id"),
        ("q4", "category final"),
        ("q13", "auction bidder price date_time value"),
    ] {
        let mut answers = Vec::new();
        for options in [
            "--events 30000 --layout heap",
            "--events 30000 --layout hybrid-log",
            "--events 30000 --workers 2",
            "--events 30000 --workers 3",
            &format!("--input {} --workers 2", path("input").display()),
        ] {
            let (results, changes) = (path("results.csv"), path("changes.csv"));
            let files = format!("--results {} --changes {}", results.display(), changes.display());
            let report = report(dir.path(), &format!("--query {query} {options} {files}"));
            assert_eq!(report["workload"], format!("nexmark-{query}"));
            assert_eq!(report["ops"], 30_000);
            let (header, rows) = csv_rows(&results);
            assert_eq!(header.join(" "), columns);
            let (header, changes) = csv_rows(&changes);
            assert_eq!(header.join(" "), format!("time diff {columns}"));
            let mut sums = BTreeMap::new();
            for change in changes {
                *sums.entry(change[2..].to_vec()).or_insert(0) += change[1].parse::<i64>().unwrap();
            }
            let mut summed = Vec::new();
            for (row, times) in sums {
                summed.extend((0..times).map(|_| row.clone()));
            }
            assert!(!rows.is_empty() && rows == summed, "{query} {options}");
            answers.push((report["checksum"].clone(), rows));
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{query}");
    }
}

#[test]
fn every_query_can_be_run_and_says_its_columns() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.csv");
    let (bid, auction) =
        ("auction bidder price channel url date_time extra", "auction_id auction_item_name");
    let lot = "description initialBid reserve";
    for (query, columns) in [
        ("q3-plain", "name city state id".to_owned()),
        ("q4-hotstorage", "category final".to_owned()),
        ("q6", "seller avg".to_owned()),
        ("q6-hotstorage", "bidder avg".to_owned()),
        (
            "q9",
            format!(
                "id item {lot} date_time expires seller category extra auction bidder price \
                 bid_datetime bid_extra"
            ),
        ),
        (
            "q17",
            "auction day total_bids rank1_bids rank2_bids rank3_bids min_price max_price \
             avg_price sum_price"
                .to_owned(),
        ),
        ("q10", "auction bidder price date_time extra date time".to_owned()),
        ("q14", "auction bidder price bidTimeType date_time extra c_counts".to_owned()),
        ("q21", "auction bidder price channel channel_id".to_owned()),
        ("q22", "auction bidder price channel dir1 dir2 dir3".to_owned()),
        ("q12", "bidder bid_count starttime endtime".to_owned()),
        ("q12-processing-time", "bidder bid_count starttime endtime".to_owned()),
        ("q18", bid.to_owned()),
        ("q19", format!("{bid} rank_number")),
        ("q20", format!("{bid} itemName {lot} ADateTime expires seller category Aextra")),
        ("q101", format!("{auction} current_highest_bid")),
        ("q102", format!("{auction} bid_count")),
        ("q103", auction.to_owned()),
        ("q104", auction.to_owned()),
        ("q105", format!("{auction} bid_count")),
        ("q106", "min_final".to_owned()),
    ] {
        let mut answers = Vec::new();
        for options in ["--layout heap", "--layout hybrid-log --workers 2"] {
            let options = format!("--query {query} --events 8000 {options}");
            let files = format!("--results {}", results.display());
            let report = report(dir.path(), &format!("{options} {files}"));
            let (header, rows) = csv_rows(&results);
            assert_eq!(header.join(" "), columns);
            assert!(!rows.is_empty(), "{options}");
            answers.push((report["checksum"].clone(), rows));
        }
        assert!(answers[0] == answers[1], "{query}");
    }
}

/// 150 s of bids, whose files together are the result: catches a row in another minute's file, a row
/// that is lost when a file is closed, and a file that never gets its name.
#[test]
fn partitions_of_q10_have_the_rows_of_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let [results, root, input] = ["results.csv", "minutes", "input"].map(|n| dir.path().join(n));
    let config = Config { rate: 200, ..Config::default() };
    export(&input, Generator::new(config, Stride::ALL).unwrap().take(30_000)).unwrap();
    for workers in [1, 3] {
        let files = format!("--results {} --partitions {}", results.display(), root.display());
        let options = format!("--query q10 --input {} --workers {workers}", input.display());
        let report = report(dir.path(), &format!("{options} {files}"));
        let (mut found, mut bytes) = (Vec::new(), 0);
        for minute in ["00:00", "00:01", "00:02"] {
            for worker in 0..workers {
                let directory = root.join(format!("date=2015-07-15/time={minute}"));
                let path = directory.join(format!("part-{worker}.csv"));
                bytes += fs::metadata(&path).unwrap().len();
                let (header, rows) = csv_rows(&path);
                assert_eq!(header.join(" "), "auction bidder price date_time extra");
                let minute = ["2015-07-15".to_owned(), minute.to_owned()];
                found.extend(rows.into_iter().map(|row| [row, minute.to_vec()].concat()));
            }
        }
        found.sort();
        let (_, rows) = csv_rows(&results);
        assert!(rows == found && rows.len() > 25_000, "{} rows, {}", rows.len(), found.len());
        assert_eq!(report["io"]["bytes_written"], bytes);
        let message = refusal(&format!("{options} {files}"));
        assert!(message.contains("is not empty"), "{message}");
        fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn a_state_may_have_a_layout_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--query q4 --events 8000 --layout auto";
    let all = report(dir.path(), options);
    let apart = report(dir.path(), &format!("{options} --place winning-bids/items=heap"));
    let layouts = |report: &Value| {
        let states = report["states"].as_array().expect("states").clone();
        let pair = |state: &Value| (state["name"].to_string(), state["layout"].to_string());
        states.iter().map(pair).collect::<BTreeMap<_, _>>()
    };
    let name = "\"winning-bids/items\"";
    assert_eq!(
        (&layouts(&all)[name][..], &layouts(&apart)[name][..]),
        ("\"hybrid-log\"", "\"heap\"")
    );
    assert_eq!(all["checksum"], apart["checksum"]);
}

/// The operators of q3 to q8 with their states on an engine of bytes: catches a value that is not written
/// back, states of one engine that see each other's keys, and windows that an engine loses.
#[test]
fn queries_on_an_engine_of_bytes_give_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    for query in
        ["q3", "q4-hotstorage", "q5-hotstorage", "q6-hotstorage", "q7-hotstorage", "q8-hotstorage"]
    {
        let options = format!("--query {query} --events 20000 --in-flight 40");
        let ours = report(dir.path(), &options);
        for engine in ["--engine btree", "--engine hashbrown --monolithic --workers 2"] {
            let on_bytes = report(dir.path(), &format!("{options} {engine}"));
            assert_eq!(on_bytes["checksum"], ours["checksum"], "{query} {engine}");
            assert!(on_bytes["codec_calls"].as_u64().unwrap() > 0, "{query} {engine}");
            assert!(on_bytes["codec_s"].as_f64().unwrap() > 0.0, "{query} {engine}");
        }
    }
    for (options, expected) in [
        ("--query q3 --events 5 --engine sled", "no engine \"sled\", but"),
        ("--query q9 --events 5 --engine btree", "q9 has no form on an engine of bytes"),
        ("--query q3-on-bytes --events 5", "need its name: --engine"),
        ("--query q3 --events 5 --engine btree --checkpoint-at 3 --dir /tmp", "no checkpoints"),
    ] {
        let message = refusal(options);
        assert!(message.contains(expected), "{options}: {message}");
    }
}

#[test]
fn bids_by_the_wall_clock_are_as_many_and_now() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.csv");
    let mut counts = Vec::new();
    for clock in ["wall", "position"] {
        let options = format!("--query q12-processing-time --events 30000 --clock {clock}");
        report(dir.path(), &format!("{options} --results {}", results.display()));
        let number = |text: &String| text.parse::<i64>().unwrap();
        let (_, rows) = csv_rows(&results);
        counts.push(rows.iter().map(|row| number(&row[1])).sum::<i64>());
        let begins = rows.iter().map(|row| number(&row[2]));
        match clock {
            // 30,000 events at 10,000 a second.
            "position" => assert!(begins.eq(rows.iter().map(|_| 0))),
            _ => assert!(begins.min().unwrap() > 1_700_000_000_000),
        }
    }
    assert!(counts[0] > 20_000 && counts[0] == counts[1], "{counts:?}");
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(dir.path(), "--query q4 --events 20000 --rate 20000 --workers 2");
    let seconds = report["seconds"].as_f64().unwrap();
    assert!((0.95..30.0).contains(&seconds), "{seconds}");
    assert!(report["latency_ns"]["p50"].as_u64().unwrap() > 0);
}

#[test]
fn a_killed_run_goes_on_at_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for (query, layout) in [
        ("q4", "heap"),
        ("q6", "hybrid-log"),
        ("q6-hotstorage", "hybrid-log"),
        ("q102", "hybrid-log"),
        ("q106", "hybrid-log"),
    ] {
        let options = format!("--query {query} --events 60000 --rate 40000 --layout {layout}");
        let whole = report(dir.path(), &options);
        let state = dir.path().join(format!("{query}-{layout}"));
        let options = format!("{options} --dir {} --checkpoint-at 15000", state.display());
        let mut child = bench()
            .args(options.split_whitespace())
            .args(["--memory", "64MiB"])
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        let begin = Instant::now();
        while !state.join("worker-0/MANIFEST").exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no checkpoint");
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let rest = report(dir.path(), &options);
        assert_eq!(rest["checksum"], whole["checksum"], "{query} {layout}");
        let ops = rest["ops"].as_u64().unwrap();
        assert!((40_000..=45_000).contains(&ops), "{query} {layout}: {ops}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    let option = format!("--query q4 --input {} --workers 2", input.display());
    assert!(refusal(&option).contains("person.csv"));
    let events = Generator::new(Config::default(), Stride::ALL).unwrap().take(500);
    export(&input, events).unwrap();
    let bids = fs::read_to_string(input.join("bid.csv")).unwrap();
    let broken: Vec<_> = bids.lines().take(40).chain(["1,2,three,c,u,1436918400049,"]).collect();
    fs::write(input.join("bid.csv"), broken.join("\n")).unwrap();
    let message = refusal(&option);
    assert!(message.contains("bid.csv: line 41, column price: \"three\""), "{message}");
    for (options, expected) in [
        ("--query q99 --events 5", "no query \"q99\", but q0, q1"),
        ("--query q13 --events 5 --side-input /nowhere/s.csv", "/nowhere/s.csv"),
        ("--query q13 --events 5 --memory 100KiB", "shared table \"side-input\" needs"),
        ("--query q4 --events 5 -n 2 --hostfile /nowhere/hosts", "/nowhere/hosts"),
        ("--query q4 --events 5 --in-flight 0", "in-flight 0"),
        ("--query q4 --events 5 --workers 300", "300 workers cannot share 256 key groups"),
        (
            "--query q4 --events 400000 --in-flight 100000 --memory 100KiB --max-value 20KiB",
            "of 102400 bytes",
        ),
        ("--query q3 --events 2000000 --memory 300KiB --workers 2", "state failed in an operator"),
        ("--query q4 --events 5 --checkpoint-at 3", "--dir"),
        ("--query q10 --events 5 --checkpoint-at 3 --dir /nowhere", "has no checkpoints"),
        ("--query q3-plain --events 5 --checkpoint-at 3 --dir /nowhere", "plain maps"),
        ("--query q0 --events 5 --partitions /nowhere", "q0 has no --partitions"),
        ("--query q4 --events 5 --place a=heap", "there is no state \"a\", but "),
        ("--query q4 --events 5 --place heap", "\"heap\" is not a state and its layout"),
        ("--query q12 --events 5 --clock wall", "q12 is in event time"),
        ("--query q12-processing-time --events 5 --clock sun", "position"),
        ("--query q4 --events 5 --results /nowhere/r.csv", "/nowhere/r.csv"),
    ] {
        let message = refusal(&format!("{options} --layout heap"));
        assert!(message.contains(expected), "{options}: {message}");
    }
}
