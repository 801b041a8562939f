//! The tool that runs code: `code.exec`.

pub mod code_exec;
