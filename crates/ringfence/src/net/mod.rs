//! The filtering proxy: the only way out of a fenced run.
//!
//! A run has an empty network namespace and one listener in it, which was made before the fence closed and handed
//! to the server. So nothing has to be believed about the programs inside: those that ignore the proxy variables
//! reach nothing at all. What comes in on the listener is SOCKS5, HTTP CONNECT or a plain HTTP request, and all
//! three pass through `reach`, which checks the name, resolves it once, checks the addresses and dials one of them.

mod address;
mod allow;
mod client;
mod decision;
mod host;
mod http;
mod proxy;
mod reach;
mod resolve;
mod socks;
mod switch;

#[cfg(test)]
mod http_tests;
#[cfg(test)]
mod proxy_tests;
#[cfg(test)]
mod socks_tests;
#[cfg(test)]
mod testing;

pub use allow::Allow;
pub use decision::Decision;
pub use host::Host;
pub use proxy::Proxy;
pub use reach::Dial;
pub use resolve::{Resolver, System};
pub use switch::{Decided, Switch};

/// The variables that make ordinary programs in the run use a proxy on this port of their loopback. The port is a
/// text, since it may have to be filled in by whoever opens it.
pub fn environment(port: &str) -> Vec<(String, String)> {
    let proxy = format!("http://127.0.0.1:{port}");
    // The run's own loopback is inside the namespace, where the server cannot dial.
    let direct = "localhost,127.0.0.1,::1";
    let mut variables = Vec::new();
    // ALL_PROXY speaks HTTP as well, although SOCKS5 is served too: clients that know SOCKS5 only with an optional
    // package fail as soon as any of these variables says `socks5`, whatever they were going to reach.
    for (name, value) in [
        ("HTTP_PROXY", &*proxy),
        ("HTTPS_PROXY", &proxy),
        ("ALL_PROXY", &proxy),
        ("NO_PROXY", direct),
    ] {
        variables.push((name.to_owned(), value.to_owned()));
        variables.push((name.to_lowercase(), value.to_owned()));
    }
    // Node and the installer of Electron look at the variables above only when they are told to.
    for name in ["NODE_USE_ENV_PROXY", "ELECTRON_GET_USE_PROXY"] {
        variables.push((name.to_owned(), "1".to_owned()));
    }
    variables
}
