//! The client against scripted servers, most of them with bad manners.

mod eras;
mod floods;
mod greetings;
mod harness;
mod http_manners;
mod lifecycle;
mod lists;
mod manners;
mod processes;
mod sse_manners;
