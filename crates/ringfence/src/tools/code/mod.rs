//! The tool that runs code: `code.exec`.

pub mod exec;
