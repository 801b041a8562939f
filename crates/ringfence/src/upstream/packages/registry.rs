//! Which registry packages come from, and the way to it.

use std::net::{IpAddr, SocketAddr};

use http::Uri;

use crate::base::{Error, Kind, Result};
use crate::sandbox::env::registry_setting;

const NPM_REGISTRY: &str = "https://registry.npmjs.org/";
const PYTHON_INDEX: &str = "https://pypi.org/simple/";
/// Host of the public index, and of the files that it lists.
const PYTHON_HOST: &str = "pypi.org";
const PYTHON_FILES: &str = "files.pythonhosted.org:443";
const NPM_VARIABLES: &[&str] = &["npm_config_registry", "NPM_CONFIG_REGISTRY"];
const PYTHON_VARIABLES: &[&str] = &["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"];

/// A registry, and what an installation may reach to use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryAccess {
    /// Address, which may contain a password.
    pub url: String,
    /// Host and port, for people and the log.
    pub host: String,
    pub allow_domains: Vec<String>,
    pub allow_addresses: Vec<String>,
    /// It is on this machine, which programs take for their own unless they are told otherwise.
    pub is_loopback: bool,
}

/// Returns the registry that the operator's environment names.
pub fn registry_from_env(is_python: bool) -> Option<String> {
    registry_setting(if is_python { PYTHON_VARIABLES } else { NPM_VARIABLES })
}

/// Returns the public registry.
pub fn public_registry(is_python: bool) -> &'static str {
    if is_python { PYTHON_INDEX } else { NPM_REGISTRY }
}

impl RegistryAccess {
    /// Finds the way to a registry. One that the operator names may have a private address: exactly
    /// that address becomes reachable.
    pub async fn find(url: &str, is_named: bool) -> Result<RegistryAccess> {
        let mut access = RegistryAccess::parse(url)?;
        for domain in access.allow_domains.iter().filter(|_| is_named) {
            let addresses = tokio::net::lookup_host(domain).await.map_err(|error| {
                Error::new(Kind::Unavailable, format!("the registry {domain} is not found"))
                    .with_source(error)
            })?;
            access.allow_addresses.extend(addresses.map(|address| address.to_string()));
        }
        Ok(access)
    }

    fn parse(url: &str) -> Result<RegistryAccess> {
        let invalid = || {
            // The address may contain a password, so that it is not shown.
            Error::invalid_arguments("the address of the package registry is not valid").with_hint(
                "Set it to an http or https address: `npm_config_registry` for npm, `UV_DEFAULT_INDEX` or `PIP_INDEX_URL` for Python.",
            )
        };
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let default_port = match uri.scheme_str() {
            Some("https") => 443,
            Some("http") => 80,
            _ => return Err(invalid()),
        };
        let port = uri.port_u16().unwrap_or(default_port);
        let name = uri.host().ok_or_else(invalid)?;
        let mut access = RegistryAccess {
            url: url.to_owned(),
            host: format!("{name}:{port}"),
            allow_domains: Vec::new(),
            allow_addresses: Vec::new(),
            is_loopback: name == "localhost",
        };
        match name.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => {
                access.is_loopback = address.is_loopback();
                access.allow_addresses.push(SocketAddr::new(address, port).to_string());
            }
            Err(_) => access.allow_domains.push(access.host.clone()),
        }
        if name == PYTHON_HOST {
            access.allow_domains.push(PYTHON_FILES.to_owned());
        }
        Ok(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_registry_is_reachable() {
        let access = |url| RegistryAccess::parse(url).unwrap();
        let named = access("https://user:pass@packages.example:8443/npm/");
        assert_eq!(named.host, "packages.example:8443");
        assert_eq!(named.allow_domains, ["packages.example:8443"]);
        assert!(named.allow_addresses.is_empty() && !named.is_loopback);
        let local = access("http://127.0.0.1:4873");
        assert_eq!(
            (local.allow_addresses, local.is_loopback),
            (vec!["127.0.0.1:4873".to_owned()], true)
        );
        assert!(local.allow_domains.is_empty());
        assert_eq!(access("http://[::1]:80/").allow_addresses, ["[::1]:80"]);
        assert_eq!(access(PYTHON_INDEX).allow_domains, ["pypi.org:443", PYTHON_FILES]);
        for url in ["", "npm", "file:///x", "ftp://x/", "https://"] {
            assert!(RegistryAccess::parse(url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn a_private_registry_is_reachable_by_exactly_its_address_if_it_is_named() {
        let access = RegistryAccess::find("http://localhost:4873/", false).await.unwrap();
        assert!(access.allow_addresses.is_empty(), "{access:?}");
        let access = RegistryAccess::find("http://localhost:4873/", true).await.unwrap();
        assert_eq!(access.allow_domains, ["localhost:4873"]);
        assert!(access.allow_addresses.contains(&"127.0.0.1:4873".to_owned()), "{access:?}");
        assert!(access.is_loopback);
    }
}
