//! The operators on the engines that need no native build. `bench/peers` has the same with more.

fn main() -> std::process::ExitCode {
    alluvium_gadget::cli::main(&alluvium_gadget::engine::built_in())
}
