//! The binary. It is also the zygote of its sessions, the supervisor of what it starts and the reader of rules: then it
//! is run again under another word.

use std::process::ExitCode;

fn main() -> ExitCode {
    jail::limits::raise_files();
    match std::env::args_os().nth(1) {
        Some(word) if word == jail::supervisor::ARGUMENT => return jail::supervisor::run(),
        Some(word) if word == jail::zygote::ARGUMENT => return jail::zygote::run(),
        Some(word) if word == rules::evaluate::ARGUMENT => return rules::evaluate::child(),
        _ => {}
    }
    // What we inherited is not for the processes we start.
    jail::close_on_exec();
    ringfence::cli::run()
}
