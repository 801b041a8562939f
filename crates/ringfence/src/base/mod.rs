//! Vocabulary shared by all other modules: errors, ids, clocks, cancellation, the workspace.

pub mod call;
pub mod caller;
pub mod cancel;
pub mod change;
pub mod clock;
pub mod error;
pub mod glob;
pub mod held_dir;
pub mod ids;
pub mod lexical;
pub mod narrowing;
pub mod nearest;
pub mod seal;
pub mod token_bucket;
pub mod visible;
pub mod workspace;

pub use cancel::{Cancel, Cause};
pub use error::{Error, Kind, Result};
pub use ids::TraceId;
