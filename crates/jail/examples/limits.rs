//! Limits as a program of its own, for the tests of this crate and for trying them by hand:
//! `limits rlimits LIMITS PROGRAM [ARGUMENT]…` sets the advisory ones and becomes the program;
//! `limits cage RUN PROGRAM [ARGUMENT]…` starts the program in a cage, prints both pids, and waits to be ended.

use std::env::Args;
use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use jail::limits::{LimitMechanism, ResourceLimits, RunLimits, set_file_limit, set_rlimits};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args();
    let action = args.nth(1).unwrap_or_default();
    let subject = args.next().ok_or("the second argument is missing")?;
    match action.as_str() {
        "rlimits" => confine(&serde_json::from_str(&subject)?, args),
        "cage" => encage(&subject, args),
        _ => Err("the first argument is rlimits or cage".into()),
    }
}

fn program(mut args: Args) -> Result<Command, Box<dyn Error>> {
    let mut command = Command::new(args.next().ok_or("the program is missing")?);
    command.args(args);
    Ok(command)
}

fn confine(limits: &ResourceLimits, args: Args) -> Result<(), Box<dyn Error>> {
    let mut program = program(args)?;
    set_rlimits(limits, LimitMechanism::Rlimits)?;
    set_file_limit(limits)?;
    Err(program.exec().into())
}

fn encage(run: &str, args: Args) -> Result<(), Box<dyn Error>> {
    let cage = RunLimits::new(run, &ResourceLimits::default());
    let child = program(args)?.spawn()?;
    cage.add_process(rustix::process::Pid::from_child(&child))?;
    writeln!(io::stdout(), "{} {}", std::process::id(), child.id())?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
