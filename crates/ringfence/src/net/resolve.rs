//! Resolves names to addresses, through the system's resolver or a test's.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

/// Resolver of host names.
pub trait Resolver: Send + Sync {
    /// Returns the addresses of a name.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The system's resolver. Each run has its own instance, so that no run can use up the threads of
/// another.
pub struct SystemResolver {
    slots: Arc<Semaphore>,
}

/// Concurrent lookups. An abandoned lookup still occupies its thread until the system's own
/// timeout.
const MAX_LOOKUPS: usize = 16;

impl Default for SystemResolver {
    fn default() -> Self {
        SystemResolver { slots: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }
}

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move {
            let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
            let lookup = move || {
                let addresses = (name.as_str(), 0)
                    .to_socket_addrs()
                    .map(|addresses| addresses.map(|address| address.ip()).collect());
                drop(slot);
                addresses
            };
            tokio::task::spawn_blocking(lookup).await.map_err(io::Error::other)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_this_machine() {
        let found = SystemResolver::default().resolve("localhost").await.unwrap();
        assert!(found.iter().any(IpAddr::is_loopback), "{found:?}");
    }
}
