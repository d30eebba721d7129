//! What checkpoints cost a stream that changes only a share of the counters, also while they are taken.
//!
//! The rate without checkpoints is that of the same stream, as few counters are faster to reach, on another
//! store, just before and just after. Each of the share is changed at least once before every checkpoint, in a
//! stretch of the stream: how fast one is taken follows what lies between two.

use super::rates::{Begin, Rate};
use super::{BATCH, Run, share, spread};
use crate::report::Spread;
use crate::workload::{Distribution, Keys};
use crate::{Error, Result};

/// Seed of the keys of the share.
const SEED: u64 = 7;

/// What was measured, one entry for each checkpoint.
#[derive(Default)]
struct ChurnFigures {
    /// Updates per second without checkpoints, by the clock.
    without: Vec<f64>,
    /// Rates while it was taken, by the clock and by processor time, of those without.
    wall: Vec<f64>,
    processor: Vec<f64>,
    /// Seconds until it was durable.
    durable: Vec<f64>,
    /// Bytes written until then for each counter that was changed before it, and records that were
    /// encoded, cloned and moved.
    bytes: Vec<f64>,
    encoded: Vec<f64>,
    cloned: Vec<f64>,
    moved: Vec<f64>,
}

impl Run<'_> {
    /// Measures and prints a row for each share, in percent.
    pub(super) fn by_churn(&mut self, without: &mut Self, churn: &[f64]) -> Result<()> {
        println!(
            "| all that changes, % | K/s without checkpoints | while one is taken, % of that (least, \
             most) | of processor time | durable after, ms (most) | bytes per changed | encoded, K | \
             cloned, K | moved, K |"
        );
        println!("|--|--|--|--|--|--|--|--|--|");
        for &percent in churn {
            let changed = share(self.args.records, percent);
            let mut keys = Keys::new(changed, Distribution::Uniform, SEED);
            let mut beside = ChurnFigures::default();
            let mut before = without.stretch_of_share(changed, &mut keys)?;
            for number in 0..self.args.checkpoints {
                let during = self.beside_one(changed, &mut keys, number, &mut beside)?;
                let after = without.stretch_of_share(changed, &mut keys)?;
                let of = |clock: fn(&Rate) -> f64| {
                    clock(&during) * 2.0 / (clock(&before) + clock(&after))
                };
                beside.wall.push(of(|rate| rate.wall));
                beside.processor.push(of(|rate| rate.processor));
                beside.without.push(before.wall);
                before = after;
            }
            println!("| {percent} | {} |", beside.columns());
        }
        // What is restored at the end has all that was counted.
        self.state.store.checkpoint(0)?;
        Ok(())
    }

    fn stretch_of_share(&mut self, changed: u64, keys: &mut Keys) -> Result<Rate> {
        let (begin, batches) = (Begin::now(), self.args.ops.div_ceil(BATCH as u64));
        (0..batches).try_for_each(|_| self.update_share(changed, keys))?;
        Ok(begin.rate(batches * BATCH as u64).0)
    }

    /// One batch of random counters of the share.
    fn update_share(&mut self, changed: u64, keys: &mut Keys) -> Result<()> {
        let records = self.args.records;
        let mut next = || spread(keys.next().expect("without end"), changed, records);
        let ids: [u64; BATCH] = std::array::from_fn(|_| next());
        self.update(ids.into_iter())
    }

    /// Changes the share, and takes a checkpoint while it is changed further; gives the rate meanwhile.
    fn beside_one(
        &mut self,
        changed: u64,
        keys: &mut Keys,
        number: u64,
        beside: &mut ChurnFigures,
    ) -> Result<Rate> {
        self.state.store.checkpoint(0)?;
        self.change_each(changed)?;
        self.stretch_of_share(changed, keys)?;
        let before = self.state.store.stats()?;
        let mut seal = self.state.store.seal(number)?;
        let (begin, mut ops) = (Begin::now(), 0);
        loop {
            self.update_share(changed, keys)?;
            ops += BATCH as u64;
            if seal.advance()? {
                break;
            }
        }
        let (rate, took) = begin.rate(ops);
        let after = self.state.store.stats()?;
        seal.confirm().map_err(Error::from)?;
        beside.durable.push(took.as_secs_f64());
        let bytes = after.io.bytes_written - before.io.bytes_written;
        beside.bytes.push(bytes as f64 / changed as f64);
        let (before, after) = (before.total(), after.total());
        beside.encoded.push((after.codec_calls - before.codec_calls) as f64);
        beside.cloned.push((after.clones - before.clones) as f64);
        beside.moved.push((after.moves - before.moves) as f64);
        Ok(rate)
    }
}

impl ChurnFigures {
    fn columns(&self) -> String {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let (without, wall) = (of(&self.without), of(&self.wall));
        let (processor, durable) = (of(&self.processor), of(&self.durable));
        let thousands = |values: &[f64]| format!("{:.1}", of(values).median / 1e3);
        let columns = [
            format!("{:.0}", without.median / 1e3),
            format!("{:.0} ({:.0}, {:.0})", wall.median * 1e2, wall.least * 1e2, wall.most * 1e2),
            format!("{:.0}", processor.median * 1e2),
            format!("{:.1} ({:.1})", durable.median * 1e3, durable.most * 1e3),
            format!("{:.1}", of(&self.bytes).median),
            thousands(&self.encoded),
            thousands(&self.cloned),
            thousands(&self.moved),
        ];
        columns.join(" | ")
    }
}
