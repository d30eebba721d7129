//! The command.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    match alluvium_ysb::suite::command() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("alluvium-ysb: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
