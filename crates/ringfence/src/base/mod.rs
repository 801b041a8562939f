//! Vocabulary shared by all other modules: errors, ids, clocks, cancellation, the workspace.

pub mod call;
pub mod cancel;
pub mod client_handle;
pub mod client_process;
pub mod client_sandbox;
pub mod clock;
pub mod error;
pub mod glob;
pub mod held_dir;
pub mod ids;
pub mod lexical;
pub mod list_changes;
pub mod seal;
pub mod shell_quote;
pub mod suggest;
pub mod token_bucket;
pub mod visible;
pub mod workspace;

pub use jail::IgnorePoison;

pub use cancel::{CancelCause, CancelToken};
pub use error::{Error, Kind, Result};
pub use ids::TraceId;
