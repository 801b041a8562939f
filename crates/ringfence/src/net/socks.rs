//! Serves SOCKS5 (RFC 1928) from inside the sandbox: CONNECT without authentication.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::client::ProxyClient;
use super::connector::Connector;
use super::decision::{ProxyRefusal, RefusalReason};
use super::host::{ConnectTarget, Host, sanitize_host};

const VERSION: u8 = 5;

/// Failed request and its reply code; `None` if no reply can be sent.
struct SocksFailure {
    refusal: ProxyRefusal,
    code: Option<u8>,
}

impl From<ProxyRefusal> for SocksFailure {
    fn from(refusal: ProxyRefusal) -> Self {
        SocksFailure { code: Some(refusal.reason.socks_reply()), refusal }
    }
}

/// Serves one SOCKS5 request.
pub async fn serve_socks(
    client: &mut ProxyClient,
    connector: &Connector,
    deadline: Instant,
) -> io::Result<()> {
    let request = match timeout_at(deadline, read_request(client)).await {
        Ok(request) => request?,
        Err(_) => Err(SocksFailure {
            refusal: ProxyRefusal::from_unreadable(RefusalReason::HeadTooSlow),
            code: None,
        }),
    };
    let connection = match request {
        Ok(target) if client.is_over_limit => {
            Err(ProxyRefusal::new(RefusalReason::Limit, &target.host.display_text(), target.port)
                .into())
        }
        Ok(target) => connector.connect(&target, "socks5").await.map_err(SocksFailure::from),
        Err(failure) => Err(failure),
    };
    let outcome = match connection {
        Ok(upstream) => {
            send_reply(client, 0).await?;
            client.tunnel_to(upstream).await
        }
        Err(SocksFailure { refusal, code }) => {
            (connector.on_decision)(&refusal.to_decision("socks5"));
            match code {
                Some(code) => send_reply(client, code).await,
                None => Ok(()),
            }
        }
    };
    client.finish_connection().await;
    outcome
}

/// Reads greeting and request. The outer error means that the client disconnected.
async fn read_request(client: &mut ProxyClient) -> io::Result<Result<ConnectTarget, SocksFailure>> {
    let _version = client.read.read_u8().await?;
    let methods = read_length_prefixed(client).await?;
    if !methods.contains(&0) {
        client.write.write_all(&[VERSION, 0xff]).await?;
        return Ok(Err(bad_request_failure(None)));
    }
    client.write.write_all(&[VERSION, 0]).await?;
    let mut request = [0; 4];
    client.read.read_exact(&mut request).await?;
    let [version, command, reserved, address_type] = request;
    if version != VERSION || reserved != 0 {
        return Ok(Err(bad_request_failure(Some(1))));
    }
    // BIND and UDP would be ways out that are not checked here.
    if command != 1 {
        return Ok(Err(bad_request_failure(Some(7))));
    }
    let (host, host_text) = match address_type {
        1 => host_from_address(client.read.read_u32().await.map(Ipv4Addr::from)?.into()),
        3 => {
            let name = read_length_prefixed(client).await?;
            (Host::parse(&name), sanitize_host(&name))
        }
        4 => host_from_address(client.read.read_u128().await.map(Ipv6Addr::from)?.into()),
        _ => return Ok(Err(bad_request_failure(Some(8)))),
    };
    let port = client.read.read_u16().await?;
    Ok(match host {
        Some(host) if port != 0 => Ok(ConnectTarget { host, port }),
        Some(_) => Err(ProxyRefusal::new(RefusalReason::BadRequest, &host_text, port).into()),
        None => Err(ProxyRefusal::new(RefusalReason::BadName, &host_text, port).into()),
    })
}

fn host_from_address(address: IpAddr) -> (Option<Host>, String) {
    (Host::from_address(address), address.to_string())
}

async fn read_length_prefixed(client: &mut ProxyClient) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(client.read.read_u8().await?)];
    client.read.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn bad_request_failure(code: Option<u8>) -> SocksFailure {
    SocksFailure { refusal: ProxyRefusal::from_unreadable(RefusalReason::BadRequest), code }
}

/// Sends a reply. Its address field would be the address we dial from, which the sandbox must not
/// learn, so it is zero.
async fn send_reply(client: &mut ProxyClient, code: u8) -> io::Result<()> {
    client.write.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await
}
