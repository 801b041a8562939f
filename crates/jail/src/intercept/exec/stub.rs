//! Puts a few instructions in the place of a program: to write a message and exit, or to wait.
//!
//! They are written over its first instructions, in the process's own copy of them, while it is
//! stopped.

use std::io;

use super::image::Image;
use crate::sys::trace;

/// Distance from the stack pointer: far enough below it to disturb nothing, near enough to be
/// stack, since the kernel extends the stack by more than that.
const BELOW_STACK: u64 = 8192;
/// Longest message in bytes.
const MAX_MESSAGE: usize = 4000;
/// Number of bytes that the waiting code overwrites, and that have to be saved.
pub const KEPT: usize = 16;

/// Makes the process call `exit_group(code)`, after `write(2, message)` if there is a message.
pub fn end(process: i32, image: &Image, message: &str, code: i32) -> io::Result<()> {
    let message = &message.as_bytes()[..message.len().min(MAX_MESSAGE)];
    // Write over the arguments, which no one will read any more: below them there may be no stack,
    // if it is small or the arguments are many. Only if they are too few is the message written
    // below.
    let stack = image.registers.stack();
    let at =
        if image.size() >= message.len() { stack } else { stack.saturating_sub(BELOW_STACK) & !7 };
    let mut code_bytes = Vec::new();
    if !message.is_empty() {
        trace::write_memory(process, at, message)?;
        code_bytes.extend(say(at, message.len() as u32));
    }
    code_bytes.extend(exit(code));
    trace::write_code(process, image.registers.pc(), &code_bytes)?;
    trace::set_registers(process, &image.registers.settled())
}

/// Makes the process wait until its tracer decides otherwise. Returns the bytes that this
/// overwrites.
pub fn wait(process: i32, image: &Image) -> io::Result<[u8; KEPT]> {
    let mut kept = [0; KEPT];
    let got = trace::read_memory(process, image.registers.pc(), &mut kept)?;
    if got < KEPT {
        return Err(io::Error::other("cannot read its first instructions"));
    }
    trace::write_code(process, image.registers.pc(), &PAUSE)?;
    Ok(kept)
}

/// Undoes [`wait`]: the program starts as if nothing had happened.
pub fn begin(process: i32, image: &Image, kept: &[u8; KEPT]) -> io::Result<()> {
    trace::write_code(process, image.registers.pc(), kept)?;
    trace::set_registers(process, &image.registers.settled())
}

/// `1: mov eax, 34 (pause); syscall; jmp 1b`
const PAUSE: [u8; 9] = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];

/// Encodes `mov edi, 2; mov rsi, at; mov edx, length; mov eax, 1 (write); syscall`.
fn say(at: u64, length: u32) -> Vec<u8> {
    let mut code = vec![0xbf, 2, 0, 0, 0, 0x48, 0xbe];
    code.extend(at.to_le_bytes());
    code.push(0xba);
    code.extend(length.to_le_bytes());
    code.extend([0xb8, 1, 0, 0, 0, 0x0f, 0x05]);
    code
}

/// Encodes `mov edi, code; mov eax, 231 (exit_group); syscall; hlt`.
fn exit(code: i32) -> Vec<u8> {
    let mut bytes = vec![0xbf];
    bytes.extend(code.to_le_bytes());
    bytes.extend([0xb8, 231, 0, 0, 0, 0x0f, 0x05, 0xf4]);
    bytes
}
