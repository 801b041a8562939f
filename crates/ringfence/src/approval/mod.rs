//! Approval: who is asked, how the question is worded, and the only place that turns a prepared
//! call into a granted one.

mod choice;
mod gate;
mod pending;
mod prompt;
pub mod required;
pub mod terminal;

pub use gate::{Gate, Grant, Granted, QuestionContext, TrustKey};
pub use pending::ApprovalAnswer;
pub use prompt::ApprovalPrompt;
