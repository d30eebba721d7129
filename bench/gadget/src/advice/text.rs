//! An advice in words, with the options that it names as a store's configuration.

use std::fmt::Write;

use super::{Advice, Calibration, Candidate, State};

/// Largest values that layouts keep free are at least this large.
const VALUE_MAX_MIN: u64 = 4 << 10;

impl Advice {
    /// The advice in words.
    pub fn text(&self, calibration: &Calibration) -> String {
        let mut text = String::new();
        let memory = size(self.memory_bytes);
        // Writing to a string cannot fail.
        let _ = match self.best() {
            Some(best) => writeln!(text, "Layout: {} with {memory}.", layout(best)),
            None => writeln!(text, "No layout holds this state in {memory}."),
        };
        for candidate in &self.candidates {
            let _ = writeln!(text, "  {:12} {}", layout(candidate), costs(candidate));
        }
        text += &self.runner_up();
        text += &self.configuration();
        if self.needs.is_windows {
            text += "Values are put, read and deleted: if they are windows, keep them as windows \
                     (window-segments); a trace of bytes cannot show what that saves.\n";
        }
        let State { keys, value_bytes, .. } = self.needs.state;
        let _ = writeln!(
            text,
            "State: at most {keys} keys with {} KiB of values: {} KiB in the memory of a hybrid log.",
            value_bytes >> 10,
            self.needs.state.bytes() >> 10,
        );
        let _ = writeln!(
            text,
            "Assumed: keys and values are byte vectors, an LRU cache of whole keys, costs that add \
             up, as measured on {} on {}.",
            calibration.machine, calibration.date
        );
        text
    }

    /// The second best.
    fn runner_up(&self) -> String {
        let mut costs = self.candidates.iter().map(|one| (layout(one), one.cost.as_ref().ok()));
        let (Some((_, Some(best))), Some(second)) = (costs.next(), costs.next()) else {
            return String::new();
        };
        match second {
            (name, Some(cost)) => {
                format!("Runner-up: {name}, {:.2} times as long.\n", cost / best)
            }
            (_, None) => "Runner-up: none.\n".to_owned(),
        }
    }

    /// The options, as a store's configuration has them.
    fn configuration(&self) -> String {
        let Some(best) = self.best() else { return String::new() };
        let (kind, memory) = (layout(best), size(self.memory_bytes));
        let mut text = format!("Options:\n  memory = \"{memory}\"\n");
        // Elements of lists are small, and not known one by one.
        if best.engine != "ours-append-log" {
            let State { key_bytes, value_max, .. } = self.needs.state;
            let largest = (key_bytes + value_max).next_power_of_two().max(VALUE_MAX_MIN);
            let why = "above the largest in the trace; two of these are kept free";
            let _ = writeln!(text, "  max-value = \"{}\"  # {why}", size(largest));
        }
        text + &format!("  [states.NAME]\n  kind = \"{kind}\"\n")
    }
}

fn layout(candidate: &Candidate) -> &'static str {
    candidate.engine.trim_start_matches("ours-")
}

fn costs(candidate: &Candidate) -> String {
    match &candidate.cost {
        Ok(ns) => {
            let misses = candidate.misses * 100.0;
            format!("{ns:.0} ns expected per access; {misses:.1} % miss the memory")
        }
        Err(why) => why.clone(),
    }
}

/// Bytes as a configuration has them.
fn size(bytes: u64) -> String {
    match bytes {
        mib if mib.trailing_zeros() >= 20 && mib > 0 => format!("{} MiB", mib >> 20),
        kib if kib.trailing_zeros() >= 10 && kib > 0 => format!("{} KiB", kib >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::Needs;

    fn advice(candidates: Vec<(&'static str, std::result::Result<f64, String>)>) -> Advice {
        let state = State { keys: 10, key_bytes: 10, value_max: 9000, ..State::default() };
        let candidate = |(engine, cost)| Candidate { engine, cost, misses: 0.0 };
        let candidates = candidates.into_iter().map(candidate).collect();
        let needs = Needs { state, ..Needs::default() };
        Advice { candidates, needs, memory_bytes: 64 << 20 }
    }

    #[test]
    fn options_and_the_runner_up_are_named() {
        let found = advice(vec![
            ("ours-heap", Ok(50.0)),
            ("ours-hybrid-log", Ok(75.0)),
            ("ours-append-log", Err("values are put".to_owned())),
        ]);
        let text = found.text(&Calibration::default());
        for line in [
            "Layout: heap with 64 MiB.",
            "Runner-up: hybrid-log, 1.50 times as long.",
            "  memory = \"64 MiB\"",
            "  max-value = \"16 KiB\"  # above the largest in the trace; two of these are kept free",
            "  kind = \"heap\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in {text}");
        }
        assert!(alluvium::AnyLayout::named("heap").is_some());
    }

    #[test]
    fn where_there_is_no_choice_the_advice_says_so() {
        let refused = || Err("refused".to_owned());
        let one = advice(vec![("ours-append-log", Ok(9.0)), ("ours-heap", refused())]);
        let text = one.text(&Calibration::default());
        assert!(text.contains("Runner-up: none.") && !text.contains("max-value"), "{text}");
        let none = advice(vec![("ours-heap", refused()), ("ours-hybrid-log", refused())]);
        let text = none.text(&Calibration::default());
        assert!(text.starts_with("No layout") && !text.contains("Runner-up"), "{text}");
        assert!(!text.contains("Options"), "{text}");
    }

    #[test]
    fn sizes_are_as_configurations_have_them() {
        assert_eq!([4 << 10, 64 << 20, 1500, 0].map(size), ["4 KiB", "64 MiB", "1500", "0"]);
    }
}
