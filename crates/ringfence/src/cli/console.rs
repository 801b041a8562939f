//! Terminal of the person who answers questions.

use std::io::IsTerminal;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{QueueSelector, tcflush};

use super::write_output;
use crate::base::{Error, Kind, Result};

/// Console of the person who answers: a real terminal, or a script in tests.
pub trait ApproverConsole {
    /// Returns whether a person reads what is shown and types the answers.
    fn is_interactive(&self) -> bool;
    /// Shows text to the person.
    fn show_message(&mut self, text: &str) -> Result<()>;
    /// Prints text to the person or to a pipe.
    fn print_output(&mut self, text: &str) -> Result<()>;
    /// Discards input typed before the question was on the screen.
    fn discard_input(&mut self);
    /// Returns a line if one was typed in time; an empty string means end of input.
    fn read_line(&mut self, timeout: Duration) -> Result<Option<String>>;
}

/// Standard input and output of this process.
pub struct StdioConsole;

impl ApproverConsole for StdioConsole {
    fn is_interactive(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    fn show_message(&mut self, text: &str) -> Result<()> {
        write_output(&mut std::io::stderr().lock(), text)
    }

    fn print_output(&mut self, text: &str) -> Result<()> {
        write_output(&mut std::io::stdout().lock(), text)
    }

    fn discard_input(&mut self) {
        // Fails only without a terminal, and then no question is asked.
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
    }

    /// Bypasses the standard input buffer: a line typed ahead must not remain there and answer the
    /// next question.
    fn read_line(&mut self, timeout: Duration) -> Result<Option<String>> {
        let failed = |error: rustix::io::Errno| {
            Error::new(Kind::Unavailable, "the terminal cannot be read").with_source(error)
        };
        let stdin = std::io::stdin();
        let poll_timeout = Timespec::try_from(timeout)
            .map_err(|error| Error::internal("the timeout is out of range").with_source(error))?;
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&poll_timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
        // A terminal never returns a longer line.
        let mut bytes = [0u8; 4096];
        let count = rustix::io::read(&stdin, &mut bytes).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes[..count]);
        Ok(Some(text.split_inclusive('\n').next().unwrap_or_default().to_owned()))
    }
}
