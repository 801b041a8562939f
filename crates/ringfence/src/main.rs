//! Entry point of the binary.
//!
//! The same binary re-executes itself as the zygote of a session, the supervisor of a run, or the
//! rules evaluator; the first argument selects the role.

use std::process::ExitCode;

fn main() -> ExitCode {
    jail::limits::raise_file_limit();
    match std::env::args_os().nth(1) {
        Some(argument) if argument == jail::supervisor::ARGUMENT => return jail::supervisor::run(),
        Some(argument) if argument == jail::zygote::ARGUMENT => return jail::zygote::run(),
        Some(argument) if argument == rules::evaluate::CHILD_ARGUMENT => {
            return rules::evaluate::run_child();
        }
        _ => {}
    }
    // Inherited descriptors must not leak into the processes we start.
    jail::mark_close_on_exec();
    ringfence::run()
}
