//! The binary. It is also the supervisor of the processes it starts: then it is run again under another word.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == jail::supervisor::ARGUMENT) {
        return jail::supervisor::run();
    }
    // What we inherited is not for the processes we start.
    jail::close_on_exec();
    ringfence::cli::run()
}
