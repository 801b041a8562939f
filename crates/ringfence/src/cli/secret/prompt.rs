//! Prompts for a secret at a terminal without echo.

use std::io::{self, Read, Write};

use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::config::secrets::MAX_VALUE_BYTES;
use crate::redact::secret::Secret;

/// Restores the terminal settings when dropped, on every path.
struct TerminalGuard(Termios);

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // If the terminal is gone, there is nowhere left to report to.
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
        let _ = writeln!(io::stderr());
    }
}

/// Returns the typed value, or None if the user cancelled.
pub fn prompt_secret(question: &str) -> io::Result<Option<Secret>> {
    let original_modes = tcgetattr(stdin())?;
    let mut silent_modes = original_modes.clone();
    // Read key by key, and Ctrl-C as an ordinary key: if the signal killed this process, the
    // terminal would stay without echo.
    silent_modes
        .local_modes
        .remove(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
    let _restored = TerminalGuard(original_modes);
    tcsetattr(stdin(), OptionalActions::Flush, &silent_modes)?;
    let mut stderr = io::stderr();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    read_keys(io::stdin().lock().bytes())
}

fn read_keys(keys: impl Iterator<Item = io::Result<u8>>) -> io::Result<Option<Secret>> {
    // Allocated in full at the start: growing the vector would leave copies of the secret in
    // memory.
    let mut value = Zeroizing::new(Vec::with_capacity(MAX_VALUE_BYTES + 1));
    for key in keys {
        match key? {
            b'\r' | b'\n' => return Ok(Some(Secret::new(std::mem::take(&mut *value)))),
            // Ctrl-C, Ctrl-D, Ctrl-\.
            3 | 4 | 28 => return Ok(None),
            // Backspace removes a whole character, Ctrl-U the whole line.
            8 | 127 => while value.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            21 => value.clear(),
            byte if value.len() <= MAX_VALUE_BYTES => value.push(byte),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[u8]) -> Option<Vec<u8>> {
        read_keys(keys.iter().map(|key| Ok(*key))).unwrap().map(|value| value.expose().to_vec())
    }

    #[test]
    fn keys_make_a_value() {
        assert_eq!(typed(b"hunter2\r").as_deref(), Some(&b"hunter2"[..]));
        assert_eq!(typed("aü\x7f\x7fb\n".as_bytes()).as_deref(), Some(&b"b"[..]));
        assert_eq!(typed(b"wrong\x15right\n").as_deref(), Some(&b"right"[..]));
        assert_eq!(typed(b"\x7f\n").as_deref(), Some(&b""[..]));
        assert_eq!(typed(b"half\x03"), None);
        assert_eq!(typed(b"the end"), None);
    }
}
