//! The operators on all engines, those with a native build among them.

fn main() -> std::process::ExitCode {
    alluvium_gadget::cli::main(&alluvium_peers::kinds())
}
