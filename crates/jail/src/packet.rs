//! Messages between our own processes: one JSON value per packet, with descriptors attached.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest message: below what a socket buffer accepts in one piece.
const MAX_MESSAGE_BYTES: usize = 160 << 10;
/// Enough for all messages except long ones such as a session's setup. Every page of a buffer has a
/// cost.
const SMALL_MESSAGE_BYTES: usize = 8 << 10;
/// Most descriptors in one packet.
const MAX_FDS: usize = 8;

/// One end of a pair of connected sockets that carry packets.
#[derive(Debug)]
pub struct PacketChannel(OwnedFd);

impl PacketChannel {
    /// Creates two connected ends.
    pub fn pair() -> io::Result<(PacketChannel, PacketChannel)> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((PacketChannel(one), PacketChannel(other)))
    }

    /// Sends one message, with descriptors. A message that does not fit into one packet is an
    /// error.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE_BYTES || fds.len() > MAX_FDS {
            return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("no room for the descriptors"));
        }
        let sent = retry_while_crowded(|| {
            rustix::io::retry_on_intr(|| {
                rustix::net::sendmsg(
                    self.0.as_fd(),
                    &[IoSlice::new(&bytes)],
                    &mut control,
                    SendFlags::NOSIGNAL,
                )
            })
        })?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
    }

    /// Receives the next message; `None` when the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_within(SMALL_MESSAGE_BYTES)
    }

    /// Receives the next message, which may be long.
    pub fn receive_long<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_within(MAX_MESSAGE_BYTES)
    }

    fn receive_within<T: DeserializeOwned>(
        &self,
        max_bytes: usize,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; max_bytes];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(self.0.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds = fds.flatten().collect();
        Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, fds)))
    }
}

/// Pauses between attempts to send descriptors while too many are in transit: about half a second
/// in total.
const PAUSES_MS: [u64; 8] = [1, 2, 4, 8, 16, 64, 128, 256];

/// Retries what the kernel refuses with `ETOOMANYREFS`. The kernel counts the descriptors that all
/// processes of a user have sent and that have not been received yet, so other programs can fill
/// the count for a moment.
fn retry_while_crowded<T>(
    mut send: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    for pause in PAUSES_MS {
        match send() {
            Err(rustix::io::Errno::TOOMANYREFS) => std::thread::sleep(Duration::from_millis(pause)),
            result => return result,
        }
    }
    send()
}

impl AsFd for PacketChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for PacketChannel {
    fn from(fd: OwnedFd) -> PacketChannel {
        PacketChannel(fd)
    }
}

impl From<PacketChannel> for OwnedFd {
    fn from(channel: PacketChannel) -> OwnedFd {
        channel.0
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_full_count_of_descriptors_is_waited_for_and_not_without_end() {
        let mut refusals = 3;
        let sent = retry_while_crowded(|| match refusals {
            0 => Ok("sent"),
            _ => {
                refusals -= 1;
                Err(Errno::TOOMANYREFS)
            }
        });
        assert_eq!(sent, Ok("sent"));
        assert_eq!(
            retry_while_crowded(|| Err::<(), _>(Errno::TOOMANYREFS)),
            Err(Errno::TOOMANYREFS)
        );
        let mut tries = 0;
        let refused = retry_while_crowded(|| {
            tries += 1;
            Err::<(), _>(Errno::PIPE)
        });
        assert_eq!((refused, tries), (Err(Errno::PIPE), 1));
    }
}
