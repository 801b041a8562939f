//! Puts a few instructions in the place of a program: to write a message and exit, or to wait.
//!
//! They are written over its first instructions, in the process's own copy of them, while it is
//! stopped.

use std::io;

use super::image::ProcessImage;
use crate::sys::trace;

/// Distance from the stack pointer: far enough below it to disturb nothing, near enough to be
/// stack, since the kernel extends the stack by more than that.
const BELOW_STACK: u64 = 8192;
/// Longest message in bytes.
const MAX_MESSAGE: usize = 4000;
/// Number of bytes that the waiting code overwrites, and that have to be saved.
pub const SAVED_BYTES: usize = 16;

/// Makes the process call `exit_group(code)`, after `write(2, message)` if there is a message.
pub fn inject_exit(process: i32, image: &ProcessImage, message: &str, code: i32) -> io::Result<()> {
    let message = &message.as_bytes()[..message.len().min(MAX_MESSAGE)];
    // Write over the arguments, which no one will read any more: below them there may be no stack,
    // if it is small or the arguments are many. Only if they are too few is the message written
    // below.
    let stack = image.registers.stack_pointer();
    let message_address = if image.stack_len() >= message.len() {
        stack
    } else {
        stack.saturating_sub(BELOW_STACK) & !7
    };
    let mut code_bytes = Vec::new();
    if !message.is_empty() {
        trace::write_memory(process, message_address, message)?;
        code_bytes.extend(encode_write(message_address, message.len() as u32));
    }
    code_bytes.extend(encode_exit(code));
    trace::write_code(process, image.registers.program_counter(), &code_bytes)?;
    trace::write_registers(process, &image.registers.without_restart())
}

/// Makes the process wait until its tracer decides otherwise. Returns the bytes that this
/// overwrites.
pub fn inject_pause(process: i32, image: &ProcessImage) -> io::Result<[u8; SAVED_BYTES]> {
    let mut saved_code = [0; SAVED_BYTES];
    let length = trace::read_memory(process, image.registers.program_counter(), &mut saved_code)?;
    if length < SAVED_BYTES {
        return Err(io::Error::other("cannot read its first instructions"));
    }
    trace::write_code(process, image.registers.program_counter(), &PAUSE_CODE)?;
    Ok(saved_code)
}

/// Undoes [`inject_pause`]: the program starts as if nothing had happened.
pub fn restore_start(
    process: i32,
    image: &ProcessImage,
    saved_code: &[u8; SAVED_BYTES],
) -> io::Result<()> {
    trace::write_code(process, image.registers.program_counter(), saved_code)?;
    trace::write_registers(process, &image.registers.without_restart())
}

/// `1: mov eax, 34 (pause); syscall; jmp 1b`
const PAUSE_CODE: [u8; 9] = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];

/// Encodes `mov edi, 2; mov rsi, at; mov edx, length; mov eax, 1 (write); syscall`.
fn encode_write(address: u64, length: u32) -> Vec<u8> {
    let mut code = vec![0xbf, 2, 0, 0, 0, 0x48, 0xbe];
    code.extend(address.to_le_bytes());
    code.push(0xba);
    code.extend(length.to_le_bytes());
    code.extend([0xb8, 1, 0, 0, 0, 0x0f, 0x05]);
    code
}

/// Encodes `mov edi, code; mov eax, 231 (exit_group); syscall; hlt`.
fn encode_exit(code: i32) -> Vec<u8> {
    let mut bytes = vec![0xbf];
    bytes.extend(code.to_le_bytes());
    bytes.extend([0xb8, 231, 0, 0, 0, 0x0f, 0x05, 0xf4]);
    bytes
}
