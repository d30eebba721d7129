//! `alluvium-bench checkpoint` in a small size: it takes its checkpoints, restores what was counted,
//! and says how fast the stream was without them, between them and while one was taken.

use std::process::Command;

use serde_json::Value;

/// Runs the command and gives what it prints and its report.
fn checkpoint(options: &str) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-bench"));
    command.arg("checkpoint").args(options.split(' ')).arg("--json").arg(&json);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options}: {errors}");
    let report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), report)
}

#[test]
fn the_streams_rates_are_told_by_both_clocks_and_what_is_restored_is_what_was_counted() {
    for layout in ["heap", "hybrid-log"] {
        let options = format!(
            "--records 3000 --ops 2000 --checkpoints 4 --churn 1,100 --memory 16MiB --layout {layout}"
        );
        let (printed, report) = checkpoint(&options);
        for clock in ["wall", "processor"] {
            let rates = &report["beside_checkpoints"][clock];
            let of = |rate: &str, figure: &str| rates[rate][figure].as_f64().unwrap();
            for rate in ["without", "between", "during"] {
                let [least, median, most] = ["least", "median", "most"].map(|f| of(rate, f));
                assert!(0.0 < least && least <= median && median <= most, "{layout}: {rates}");
            }
            for rate in ["between", "during"] {
                let ratio = format!("{rate}_of_without");
                let [least, median, most] = ["least", "median", "most"].map(|f| of(&ratio, f));
                assert!(least <= median && median <= most, "{layout} {rate}: {rates}");
                // Each is of a rate between these.
                let [slowest, fastest] = ["least", "most"].map(|f| of("without", f));
                let bounds = of(rate, "least") / fastest..=of(rate, "most") / slowest;
                let is_within = bounds.contains(&least) && bounds.contains(&most);
                assert!(is_within, "{layout} {rate}: {rates}");
            }
            let pairs = of("during_of_between", "least")..=of("during_of_between", "most");
            assert!(pairs.contains(&of("during_of_between", "median")), "{layout}: {rates}");
        }
        for row in ["while one is taken, % of between, of processor time", "call that seals, us"] {
            assert!(printed.contains(&format!("| {row} |")), "{layout}: {printed}");
        }
        // A row for each share that is all that changes, under the last head.
        let table = printed.split("| all that changes, % |").nth(1).expect("a table by churn");
        for share in ["\n| 1 | ", "\n| 100 | "] {
            assert!(table.contains(share), "{layout}: {printed}");
        }
        // The digest is the sum of all counters: those of the load, of four stretches between (of whole
        // batches of 64), of those while checkpoints were taken, and of what was changed for counting bytes.
        let counted = u64::from_str_radix(report["checksum"].as_str().unwrap(), 16).unwrap();
        let during = report["ops"].as_u64().unwrap();
        let least = 3000 + 4 * 2048 + during + 30 + 3000;
        assert!(counted >= least, "{layout}: {counted} updates are restored of {least}");
    }
}

#[test]
fn copies_of_each_layout_are_equal() {
    let options = "--records 2000 --ops 100 --checkpoints 1 --churn 50 --memory 16MiB --copies";
    let (printed, _) = checkpoint(options);
    for state in ["map | hybrid-log", "lists | append-log", "windows | window-segments"] {
        for what in ["export from storage", "restore by key groups", "import"] {
            assert!(
                printed.contains(&format!("| {state} | {what} |")),
                "{state} {what}: {printed}"
            );
        }
    }
}
