//! A Timely job with three operators: counts by window, counts by session and a rolling count.

use alluvium::time::nanos;
use alluvium::{Aggregate, Counting, Time, Windows};
use alluvium_timely::{KeyBy, NodeConfig, Rolling, Spec, Windowing, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};

/// A key and an event time.
type Row = (u64, i64);

/// The last event time.
#[derive(Clone, Copy, Debug)]
struct Last;

impl Aggregate<Row> for Last {
    type Acc = i64;
    type Out = i64;

    fn init(&self) -> i64 {
        i64::MIN
    }

    fn add(&self, last: &mut i64, row: &Row) {
        *last = row.1.max(*last);
    }

    fn merge(&self, last: &mut i64, later: &i64) {
        *last = (*later).max(*last);
    }

    fn out(&self, last: &i64) -> Option<i64> {
        (*last != i64::MIN).then_some(*last)
    }
}

fn main() -> alluvium::Result<()> {
    execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
        let probe = ProbeHandle::new();
        let mut rows = worker.dataflow::<i64, _, _>(|scope| -> alluvium::Result<_> {
            let (input, rows) = scope.new_input::<Row>();
            let at = |row: &Row| Time(row.1);
            let key = |row: &Row| row.0;
            rows.clone()
                .key_by(state, key)
                .window(Windows::tumbling(nanos(10)), at)
                .aggregate(Spec::new("tumbling"), Counting)?
                .results
                .inspect(|change| println!("window {change:?}"))
                .probe_with(&probe);
            rows.clone()
                .key_by(state, key)
                .window(Windows::session(nanos(5)), at)
                .aggregate(Spec::new("sessions"), Last)?
                .results
                .inspect(|change| println!("session {change:?}"))
                .probe_with(&probe);
            rows.key_by(state, key)
                .rolling(Spec::new("rolling"), Counting)?
                .inspect(|change| println!("rolling {change:?}"))
                .probe_with(&probe);
            Ok(input)
        })?;
        for time in 0..100 {
            rows.send((time as u64 % 7, time));
            rows.advance_to(time + 1);
            state.run_until(worker, || !probe.less_equal(&time))?;
        }
        rows.close();
        state.run_until(worker, || probe.done())
    })?;
    Ok(())
}
