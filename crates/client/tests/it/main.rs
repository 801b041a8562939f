//! The client against scripted servers, most of them with bad manners.

mod harness;
mod manners;
