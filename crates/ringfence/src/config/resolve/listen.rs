//! Address to listen on, and the check that a public one is protected.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::base::{Error, Result};
use crate::config::Config;

/// Parses an address. `PORT` and `localhost:PORT` mean loopback; any other address must be given in
/// full.
pub fn parse_listen_address(text: &str) -> Result<SocketAddr> {
    let loopback = |port: &str| {
        port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    };
    let address = match text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')) {
        Some(port) => loopback(port),
        None => loopback(text).or_else(|| text.parse().ok()),
    };
    address.ok_or_else(|| {
        Error::invalid_arguments("`--http` does not name an address to listen on")
            .with_hint("Use a port (`--http 8080`, loopback only) or an address with a port (`--http 10.0.0.5:8080`).")
    })
}

/// Refuses a public address without auth, unless the operator insists: it would give the tools to
/// the whole network.
pub fn check_listen_address(address: SocketAddr, config: &Config) -> Result<()> {
    // An IPv4-mapped IPv6 address counts as the IPv4 address.
    if address.ip().to_canonical().is_loopback()
        || config.auth.is_some()
        || config.http.insecure_no_auth
    {
        return Ok(());
    }
    Err(Error::permission_denied(
        "public_without_auth",
        format!("{address} can be reached from outside this machine, but auth is off"),
    )
    .with_hint(
        "Set MCP_AUTH_ENABLED=true with a key, listen on 127.0.0.1, or use `--insecure-no-auth`.",
    ))
}
