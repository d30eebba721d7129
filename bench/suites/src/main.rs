//! The command.

fn main() -> std::process::ExitCode {
    alluvium_suites::cli::main()
}
