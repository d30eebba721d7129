//! Counts the words of the text on standard input, line by line, on two workers.
//!
//! `echo "to be or not to be" | cargo run -p alluvium-timely --example word_count`

use std::error::Error;
use std::io;

use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, WorkerState, install};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::{Input, Map};
use timely::dataflow::operators::{Inspect, Probe};

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = timely::Config::process(2);
    install(&mut config, NodeConfig::default())?;
    let workers = timely::execute(config, |worker| -> alluvium::Result<()> {
        let state = WorkerState::new(worker, Default::default())?;
        let probe = ProbeHandle::new();
        let mut lines = worker.dataflow::<u64, _, _>(|scope| -> alluvium::Result<_> {
            let (input, lines) = scope.new_input::<String>();
            lines
                .flat_map(|line: String| {
                    line.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>()
                })
                .key_by(&state, String::clone)
                .rolling(Spec::new("words"), Counting)?
                .inspect(|((word, count), line, diff)| println!("{line}: {word} {count} {diff:+}"))
                .probe_with(&probe);
            Ok(input)
        })?;
        if worker.index() == 0 {
            for (number, line) in (0..).zip(io::stdin().lines().map_while(Result::ok)) {
                lines.send(line);
                lines.advance_to(number + 1);
                while probe.less_than(&number) && !state.has_failed() {
                    worker.step();
                }
            }
        }
        lines.close();
        while !probe.done() && !state.has_failed() {
            worker.step();
        }
        state.abandon_if_failed(worker)
    })?;
    for result in workers.join() {
        result??;
    }
    Ok(())
}
