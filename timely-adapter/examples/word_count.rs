//! Counts the words of the text on standard input, line by line, on two workers.
//!
//! `echo "to be or not to be" | cargo run -p alluvium-timely --example word_count`

use std::io;

use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};

fn main() -> alluvium::Result<()> {
    execute(timely::Config::process(2), NodeConfig::default(), |worker, state| {
        let probe = ProbeHandle::new();
        let mut lines = worker.dataflow::<u64, _, _>(|scope| -> alluvium::Result<_> {
            let (input, lines) = scope.new_input::<String>();
            lines
                .flat_map(|line: String| {
                    line.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>()
                })
                .key_by(state, String::clone)
                .rolling(Spec::new("words"), Counting)?
                .inspect(|((word, count), line, diff)| println!("{line}: {word} {count} {diff:+}"))
                .probe_with(&probe);
            Ok(input)
        })?;
        if worker.index() == 0 {
            for (number, line) in (0..).zip(io::stdin().lines().map_while(Result::ok)) {
                lines.send(line);
                lines.advance_to(number + 1);
                state.run_until(worker, || !probe.less_equal(&number))?;
            }
        }
        lines.close();
        state.run_until(worker, || probe.done())
    })?;
    Ok(())
}
