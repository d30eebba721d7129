//! The operators on all engines, those with a native build among them, and Nexmark queries with their
//! states on an engine.

use std::process::ExitCode;

use alluvium_bench::args::NexmarkArgs;
use alluvium_bench::run::nexmark_on;
use clap::Parser;

/// A Nexmark query with its states on an engine.
#[derive(Parser)]
struct Nexmark {
    #[command(flatten)]
    args: NexmarkArgs,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_none_or(|word| word != "nexmark") {
        return alluvium_gadget::cli::main(&alluvium_peers::kinds());
    }
    let Nexmark { args } = Nexmark::parse_from(std::env::args().skip(1));
    let done = nexmark_on(&args, &alluvium_peers::kinds()).and_then(|report| {
        println!("{} on {}: {:.0} events/s", report.workload, report.layout, report.ops_per_s);
        args.report.json.as_deref().map_or(Ok(()), |path| report.write_json(path))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alluvium-peers: {error}");
            ExitCode::FAILURE
        }
    }
}
