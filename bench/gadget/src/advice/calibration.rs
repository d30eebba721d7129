//! Measured costs of each operation on each layout: at two sizes and two numbers of keys, with and
//! without ranges, and what it costs more when its key is not in memory, with the machine and the date.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::trace::Op;
use crate::{Error, Result};

/// Engines whose layouts can be advised.
pub const CANDIDATES: [&str; 3] = ["ours-heap", "ours-hybrid-log", "ours-append-log"];
/// What one operation costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// The engine.
    pub engine: String,
    /// The operation.
    pub op: String,
    /// Bytes that are read or written.
    pub bytes: u32,
    /// Keys that live.
    pub keys: u64,
    /// Whether the engine keeps its keys in order too, for ranges.
    #[serde(default)]
    pub ordered: bool,
    /// Nanoseconds.
    pub ns: f64,
}

/// All costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The processor and the system.
    pub machine: String,
    /// When.
    pub date: String,
    /// The commit of the source.
    pub commit: String,
    /// Costs in memory.
    pub constants: Vec<Constant>,
    /// What operations on keys beyond memory cost more, on the device of the temporary files.
    pub cold: Vec<Constant>,
}

impl Calibration {
    /// Adds the medians of some rounds.
    pub(super) fn take(
        &mut self,
        engine: &str,
        bytes: u32,
        keys: u64,
        ordered: bool,
        rounds: &[Vec<(Op, f64)>],
    ) {
        for (place, (op, _)) in rounds[0].iter().enumerate() {
            let mut all: Vec<f64> = rounds.iter().map(|round| round[place].1).collect();
            all.sort_by(f64::total_cmp);
            let (engine, op, ns) = (engine.to_owned(), op.text().to_owned(), all[all.len() / 2]);
            self.constants.push(Constant { engine, op, bytes, keys, ordered, ns });
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file's, and what is no calibration.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, "read", error))?;
        let refuse = |error: serde_json::Error| {
            Error::input(path, error.line() as u64, format!("no calibration: {error}"))
        };
        serde_json::from_str(&text).map_err(refuse)
    }

    /// What an operation costs at a size and a number of keys, `ordered` if the trace has ranges:
    /// between measured sizes in proportion, between numbers of keys in proportion to their
    /// logarithms. Beyond the measured ones sizes go on in proportion, and keys stay.
    pub fn cost(&self, engine: &str, op: Op, ordered: bool, bytes: f64, keys: f64) -> Option<f64> {
        let of = self
            .constants
            .iter()
            .filter(|one| one.engine == engine && one.op == op.text() && one.ordered == ordered);
        let mut of: Vec<&Constant> = of.collect();
        of.sort_by_key(|one| (one.keys, one.bytes));
        let at = |keys: u64| {
            let of: Vec<_> = of.iter().filter(|one| one.keys == keys).collect();
            let (first, last) = (of.first()?, of.last()?);
            let wide = f64::from(last.bytes) - f64::from(first.bytes);
            let slope = if wide > 0.0 { (last.ns - first.ns) / wide } else { 0.0 };
            Some((first.ns + slope * (bytes - f64::from(first.bytes))).max(1.0))
        };
        let (few, many) = (of.first()?.keys, of.last()?.keys);
        let share = match many > few {
            true => ((keys / few as f64).ln() / (many as f64 / few as f64).ln()).clamp(0.0, 1.0),
            false => 0.0,
        };
        Some(at(few)? * (1.0 - share) + at(many)? * share)
    }

    /// What an operation costs more if its key is not in memory.
    pub fn cold(&self, engine: &str, op: Op) -> Option<f64> {
        let mut of = self.cold.iter();
        of.find(|one| one.engine == engine && one.op == op.text()).map(|one| one.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_lie_between_those_that_were_measured() {
        let constant = |bytes, keys, ns| Constant {
            engine: "e".to_owned(),
            op: "get".to_owned(),
            bytes,
            keys,
            ordered: false,
            ns,
        };
        let constants = vec![
            constant(0, 100, 10.0),
            constant(100, 100, 20.0),
            constant(0, 10_000, 30.0),
            constant(100, 10_000, 40.0),
        ];
        let calibration = Calibration { constants, ..Calibration::default() };
        let cost = |bytes, keys| calibration.cost("e", Op::Get, false, bytes, keys).unwrap();
        assert_eq!((cost(0.0, 100.0), cost(50.0, 100.0)), (10.0, 15.0));
        assert!((cost(50.0, 1000.0) - 25.0).abs() < 1e-9);
        assert_eq!((cost(50.0, 1e9), cost(200.0, 1.0)), (35.0, 30.0));
        assert_eq!(calibration.cost("e", Op::Put, false, 1.0, 1.0), None);
        assert_eq!(calibration.cost("e", Op::Get, true, 1.0, 1.0), None);
    }

    #[test]
    fn a_calibration_is_read_as_it_was_written_and_others_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut calibration = Calibration::default();
        calibration.take("e", 16, 500, true, &[vec![(Op::Get, 3.0)], vec![(Op::Get, 4.0)]]);
        let path = dir.path().join("c.json");
        std::fs::write(&path, serde_json::to_string(&calibration).unwrap()).unwrap();
        assert_eq!(Calibration::read(&path).unwrap(), calibration);
        std::fs::write(&path, "{}\n").unwrap();
        let error = Calibration::read(&path).unwrap_err().to_string();
        assert!(error.contains("c.json: line") && error.contains("no calibration"), "{error}");
    }
}
