//! Serves SOCKS5 (RFC 1928) from inside the sandbox: CONNECT without authentication.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::decision::{Reason, Refusal};
use super::host::{Host, Target, show};
use super::reach::Reach;

const VERSION: u8 = 5;

/// Failed request and its reply code; `None` if no reply can be sent.
struct Stop {
    refusal: Refusal,
    code: Option<u8>,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop { code: Some(refusal.reason.socks_reply()), refusal }
    }
}

/// Serves one SOCKS5 request.
pub async fn serve(client: &mut Client, reach: &Reach, deadline: Instant) -> io::Result<()> {
    let asked = match timeout_at(deadline, read_request(client)).await {
        Ok(asked) => asked?,
        Err(_) => Err(Stop { refusal: Refusal::unread(Reason::HeadTooSlow), code: None }),
    };
    let reached = match asked {
        Ok(target) if client.surplus => {
            Err(Refusal::new(Reason::Limit, &target.host.shown(), target.port).into())
        }
        Ok(target) => reach.connect(&target, "socks5").await.map_err(Stop::from),
        Err(stop) => Err(stop),
    };
    let served = match reached {
        Ok(upstream) => {
            reply(client, 0).await?;
            client.tunnel(upstream).await
        }
        Err(Stop { refusal, code }) => {
            (reach.decided)(&refusal.decision("socks5"));
            match code {
                Some(code) => reply(client, code).await,
                None => Ok(()),
            }
        }
    };
    client.finish().await;
    served
}

/// Reads greeting and request. The outer error means that the client disconnected.
async fn read_request(client: &mut Client) -> io::Result<Result<Target, Stop>> {
    let _version = client.read.read_u8().await?;
    let methods = read_counted(client).await?;
    if !methods.contains(&0) {
        client.write.write_all(&[VERSION, 0xff]).await?;
        return Ok(Err(stop(None)));
    }
    client.write.write_all(&[VERSION, 0]).await?;
    let mut request = [0; 4];
    client.read.read_exact(&mut request).await?;
    let [version, command, reserved, kind] = request;
    if version != VERSION || reserved != 0 {
        return Ok(Err(stop(Some(1))));
    }
    // BIND and UDP would be ways out that are not checked here.
    if command != 1 {
        return Ok(Err(stop(Some(7))));
    }
    let (host, shown) = match kind {
        1 => read_address(client.read.read_u32().await.map(Ipv4Addr::from)?.into()),
        3 => {
            let name = read_counted(client).await?;
            (Host::parse(&name), show(&name))
        }
        4 => read_address(client.read.read_u128().await.map(Ipv6Addr::from)?.into()),
        _ => return Ok(Err(stop(Some(8)))),
    };
    let port = client.read.read_u16().await?;
    Ok(match host {
        Some(host) if port != 0 => Ok(Target { host, port }),
        Some(_) => Err(Refusal::new(Reason::BadRequest, &shown, port).into()),
        None => Err(Refusal::new(Reason::BadName, &shown, port).into()),
    })
}

fn read_address(address: IpAddr) -> (Option<Host>, String) {
    (Host::from_address(address), address.to_string())
}

async fn read_counted(client: &mut Client) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(client.read.read_u8().await?)];
    client.read.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn stop(code: Option<u8>) -> Stop {
    Stop { refusal: Refusal::unread(Reason::BadRequest), code }
}

/// Sends a reply. Its address field would be the address we dial from, which the sandbox must not
/// learn, so it is zero.
async fn reply(client: &mut Client, code: u8) -> io::Result<()> {
    client.write.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await
}
