//! Reads a program that has just been put in place: its arguments, environment and name, from the
//! stack that the kernel has built for it.
//!
//! None of its instructions has run, and the process has no other thread left that could write.

use std::io;

use crate::sys::trace::{self, Registers};

/// Sizes to try: the first fits nearly everything; the last is above what the kernel accepts.
const STACK_SIZES: [usize; 3] = [16 << 10, 256 << 10, 8 << 20];
const WORD: usize = 8;
/// Key in the auxiliary vector (after the environment) of the name that was passed to the kernel.
const EXECFN: u64 = 31;

/// Program that has not run yet: registers, arguments, environment and name.
pub struct ProcessImage {
    pub registers: Registers,
    stack: Vec<u8>,
    argv: Vec<(usize, usize)>,
    env: Vec<(usize, usize)>,
    execfn: (usize, usize),
}

impl ProcessImage {
    /// Reads the program of a process that is stopped before its first instruction.
    pub fn read(process: i32) -> io::Result<ProcessImage> {
        let registers = trace::read_registers(process)?;
        for size in STACK_SIZES {
            let mut stack = vec![0; size];
            let length = trace::read_memory(process, registers.stack_pointer(), &mut stack)?;
            let is_complete = length < size;
            stack.truncate(length);
            if let Some((argv, env, execfn)) = parse_stack(&stack, registers.stack_pointer()) {
                return Ok(ProcessImage { registers, stack, argv, env, execfn });
            }
            if is_complete {
                break;
            }
        }
        Err(io::Error::other("cannot read its arguments"))
    }

    /// Returns how many bytes were read, from the stack pointer upwards.
    pub fn stack_len(&self) -> usize {
        self.stack.len()
    }

    /// Returns the arguments.
    pub fn argv(&self) -> Vec<&[u8]> {
        self.argv.iter().map(|span| self.slice_at(*span)).collect()
    }

    /// Returns the environment, each entry as `NAME=value`.
    pub fn env(&self) -> impl Iterator<Item = &[u8]> {
        self.env.iter().map(|span| self.slice_at(*span))
    }

    /// Returns the name that was passed to the kernel.
    pub fn execfn(&self) -> &[u8] {
        self.slice_at(self.execfn)
    }

    fn slice_at(&self, (from, to): (usize, usize)) -> &[u8] {
        self.stack.get(from..to).unwrap_or_default()
    }
}

type StackSpan = (usize, usize);

/// Parses `argc, argv…, 0, env…, 0, (key, value)…, 0`, followed by the strings. Returns `None` when
/// something is beyond the end of what was read.
fn parse_stack(stack: &[u8], base: u64) -> Option<(Vec<StackSpan>, Vec<StackSpan>, StackSpan)> {
    let read_word = |index: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(
            stack.get(index.checked_mul(WORD)?..)?.get(..WORD)?.try_into().ok()?,
        ))
    };
    let string_span = |pointer: u64| -> Option<StackSpan> {
        let from = usize::try_from(pointer.checked_sub(base)?).ok()?;
        let length = stack.get(from..)?.iter().position(|byte| *byte == 0)?;
        Some((from, from + length))
    };
    let argc = usize::try_from(read_word(0)?).ok().filter(|argc| *argc <= stack.len() / WORD)?;
    let argv = (1..=argc).map(|index| string_span(read_word(index)?)).collect::<Option<_>>()?;
    let mut index = argc + 2;
    let mut env = Vec::new();
    while read_word(index)? != 0 {
        env.push(string_span(read_word(index)?)?);
        index += 1;
    }
    index += 1;
    loop {
        match read_word(index)? {
            0 => return None,
            EXECFN => return Some((argv, env, string_span(read_word(index + 1)?)?)),
            _ => index += 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(words: &[u64], text: &[u8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).chain(text.iter().copied()).collect()
    }

    #[test]
    fn a_stack_is_read_and_a_short_one_is_not() {
        let base = 0x7000;
        let text = base + 10 * 8;
        let words = [2, text, text + 3, 0, text + 6, 0, 6, 4096, EXECFN, text + 10];
        let whole = stack(&words, b"ls\0-l\0A=b\0/bin/ls\0");
        let (argv, env, execfn) = parse_stack(&whole, base).unwrap();
        let show = |span: &StackSpan| String::from_utf8_lossy(&whole[span.0..span.1]).into_owned();
        assert_eq!(argv.iter().map(show).collect::<Vec<_>>(), ["ls", "-l"]);
        assert_eq!(env.iter().map(show).collect::<Vec<_>>(), ["A=b"]);
        assert_eq!(show(&execfn), "/bin/ls");
        for short in 0..whole.len() {
            assert!(parse_stack(&whole[..short], base).is_none(), "{short}");
        }
        assert!(parse_stack(&stack(&[u64::MAX, 0], b""), base).is_none());
        assert!(parse_stack(&stack(&[1, 1, 0, 0], b""), base).is_none());
    }
}
