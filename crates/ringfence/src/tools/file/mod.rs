//! The file tools and the code shared only among them.

pub mod content;
pub mod cursor;
pub mod diff;
pub mod existing;
pub mod file_list;
pub mod file_read;
pub mod file_replace;
pub mod file_search;
pub mod file_write;
pub mod image;
pub mod mime;
pub mod selection;
pub mod store;
pub mod stride;
pub mod text;
pub mod turn;
