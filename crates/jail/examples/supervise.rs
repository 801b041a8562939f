//! The supervisor as a program of its own, for the tests of this crate and for trying it by hand.

fn main() -> std::process::ExitCode {
    jail::supervisor::run()
}
