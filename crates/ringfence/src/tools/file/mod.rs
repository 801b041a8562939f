//! The file tools and the code shared only among them.

pub mod atomic_write;
pub mod blocking;
pub mod chunk_size;
pub mod content;
pub mod cursor;
pub mod diff;
pub mod image;
pub mod list;
pub mod mime;
pub mod old_file;
pub mod path_filter;
pub mod read;
pub mod replace;
pub mod search;
pub mod text;
pub mod write;
