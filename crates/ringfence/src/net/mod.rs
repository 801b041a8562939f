//! The filtering proxy: the only way out of a sandboxed run.
//!
//! A run has an empty network namespace with one listener in it, which was created before the
//! sandbox was closed and handed to the server. So the programs inside need not be trusted: those
//! that ignore the proxy variables reach nothing at all. What arrives at the listener is SOCKS5,
//! HTTP CONNECT or a plain HTTP request, and all three go through the connector, which checks the
//! name, resolves it once, checks the addresses and dials one of them.

mod address;
mod allow_list;
mod client;
mod connector;
mod decision;
mod host;
mod http;
mod proxy;
mod resolve;
mod session_router;
mod socks;

#[cfg(test)]
mod http_tests;
#[cfg(test)]
mod proxy_tests;
#[cfg(test)]
mod socks_tests;
#[cfg(test)]
mod testing;

pub use allow_list::AllowList;
pub use connector::DialFn;
pub use decision::ProxyDecision;
pub use host::Host;
pub use proxy::Proxy;
#[cfg(test)]
pub use resolve::Resolver;
pub use resolve::SystemResolver;
pub use session_router::{OnDecision, SessionRouter};

/// Returns the variables that make ordinary programs in the run use a proxy on this port of their
/// loopback. The port is text because it may have to be filled in later by the code that opens it.
pub fn proxy_environment(port: &str) -> Vec<(String, String)> {
    let proxy = format!("http://127.0.0.1:{port}");
    // The run's own loopback is inside its namespace, where the server cannot dial.
    let no_proxy = "localhost,127.0.0.1,::1";
    let mut variables = Vec::new();
    // ALL_PROXY names HTTP as well, although SOCKS5 is also served: clients that support SOCKS5
    // only through an optional package fail as soon as any of these variables says `socks5`,
    // whatever they want to reach.
    for (name, value) in [
        ("HTTP_PROXY", &*proxy),
        ("HTTPS_PROXY", &proxy),
        ("ALL_PROXY", &proxy),
        ("NO_PROXY", no_proxy),
    ] {
        variables.push((name.to_owned(), value.to_owned()));
        variables.push((name.to_lowercase(), value.to_owned()));
    }
    // Node and the Electron installer use the variables above only if these are set.
    for name in ["NODE_USE_ENV_PROXY", "ELECTRON_GET_USE_PROXY"] {
        variables.push((name.to_owned(), "1".to_owned()));
    }
    variables
}
