//! Rows that share a time, with kills and other numbers of workers, count once each.
//!
//! What this catches: a checkpoint that ends between two rows of one time. The row that was sent before
//! it would be in no store and behind every position.

use crate::job::{Accident, Job, WINDOW, dice, expected, run_in, together};

#[test]
fn a_job_of_equal_times_is_as_if_nothing_had_happened() {
    let rounds = if std::env::var_os("ALLUVIUM_LONG").is_some() { 200 } else { 3 };
    let (mut accidents, mut from_a_checkpoint) = (0, 0);
    for seed in 1..=rounds {
        let mut dice = dice(seed + 1_000);
        let directory = tempfile::tempdir().unwrap();
        let (every, batch) = (20 + dice(60) as i64, 1 + dice(3) as i64);
        let mut job = Job { numbers: 600, every, batch, ties: 2 + dice(12) as i64 };
        let mut history = Vec::new();
        for run in 0..=5 {
            let workers = 1 + dice(4) as usize;
            let accident = match run < 5 {
                true => Accident::after(50 + dice(500) as i64),
                false => Accident::default(),
            };
            // The last one has some numbers more, so that it says every count.
            job.numbers += if run == 5 { 2 * WINDOW } else { 0 };
            let outcome = run_in(directory.path(), workers, job, accident);
            history.push((workers, outcome.is_ok()));
            match outcome {
                Ok(ends) if run == 5 => {
                    let sent: i64 = ends.iter().map(|end| end.sent).sum();
                    let story = format!("seed {seed}, ties {}, {history:?}", job.ties);
                    assert_eq!(together(&ends), expected(job), "{story}");
                    from_a_checkpoint += u64::from(sent < job.numbers);
                }
                // The next one is to have something to do.
                Ok(_) => job.numbers += 200,
                Err(error) => {
                    assert!(error.to_string().contains("an accident"), "seed {seed}: {error}");
                    accidents += 1;
                }
            }
        }
    }
    println!("{accidents} accidents, {from_a_checkpoint} of {rounds} from a checkpoint");
    assert!(accidents > 0 && from_a_checkpoint > 0, "it has lost its point");
}
